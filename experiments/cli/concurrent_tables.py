"""Tables of a training job and of inference jobs from the command line, checked to belong to one board."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedge.devices.tables.mode_table import list_batch_sizes, parse_workload_kind, read_mode_table
from fedge.errors import BadInput
from fedge.knowledge.table_background import find_board_spec, resolve_maxn
from fedge.pareto import find_nearest_row
from fedge.studies.implausible_rows import find_plausible_rows
from fedge.types import PowerMode, ProfileTable


@dataclass(frozen=True, slots=True)
class ConcurrentTableOptions:
    """Command-line options; names default to those in the tables' paths."""

    train: tuple[Path, ...] = ()
    infer: tuple[Path, ...] = ()
    device: str | None = None
    workload: str | None = None
    batch_size: int | None = None
    """Batch size of the training tables, if they hold several."""


def read_job_tables(typed: ConcurrentTableOptions) -> tuple[list[ProfileTable], list[tuple[ProfileTable, ...]]]:
    """Read all tables.

    Returns:
        The training tables, and per inference table one table for each of its batch sizes.

    Raises:
        BadInput: If a table is invalid.
    """
    if not typed.train and not typed.infer:
        raise BadInput("--train, --infer", "no table", "a training table, an inference table or both")
    if typed.workload is not None and len(typed.train) + len(typed.infer) > 1:
        raise BadInput(
            "--workload", f"{len(typed.train) + len(typed.infer)} tables", "one table: names come from paths"
        )
    for option, paths in (("--train", typed.train), ("--infer", typed.infer)):
        if len({path.resolve() for path in paths}) < len(paths):
            raise BadInput(option, "the same table twice", "each table once")
    training = [_read_training_table(path, typed) for path in typed.train]
    inference = [_read_inference_tables(path, typed) for path in typed.infer]
    return training, inference


def check_same_board(train: ProfileTable | None, infer: Sequence[ProfileTable]) -> None:
    """Raise ``BadInput`` if the tables are known to belong to different boards."""
    names = [table.device for table in ([] if train is None else [train]) + list(infer)]
    boards = [spec for spec in map(find_board_spec, names) if spec is not None]
    if any(spec != boards[0] for spec in boards):
        got = ", ".join(dict.fromkeys(names))
        raise BadInput("--train, --infer", f"tables of {got}", "tables of one kind of board (see --device)")


def list_implausible_rows(tables: Iterable[ProfileTable], mode: PowerMode) -> Iterator[str]:
    """Yield a description of each table whose row for this mode is implausible, see ``find_plausible_rows``."""
    for table in tables:
        row = find_nearest_row(table.modes, mode)
        if not find_plausible_rows(table, resolve_maxn(table, find_board_spec(table.device)))[row]:
            seen = f"{1e3 * table.step_s[row]:.1f} ms and {table.power_w[row]:.1f} W"
            yield f"{table.workload} at batch size {table.batch_size}: {seen} are far off its other modes"


def _read_training_table(path: Path, typed: ConcurrentTableOptions) -> ProfileTable:
    if path.exists() and parse_workload_kind(path) == "infer":
        raise BadInput("--train", f"{path}, which lies in a folder of inference", "a table of training")
    return read_mode_table(path, typed.device, typed.workload, typed.batch_size)


def _read_inference_tables(path: Path, typed: ConcurrentTableOptions) -> tuple[ProfileTable, ...]:
    if path.exists() and path.resolve().parent.name == "train":
        raise BadInput("--infer", f"{path}, which lies in a folder of training", "a table of inference")
    sizes = list_batch_sizes(path)
    return tuple(read_mode_table(path, typed.device, typed.workload, size) for size in sizes)
