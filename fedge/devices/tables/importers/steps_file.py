"""The steps file that accompanies a power log: when steps ran in which power mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedge.devices.tables.csv_sheet import SheetRow, parse_number, parse_sheet
from fedge.devices.tables.importers import ImportKey
from fedge.devices.tables.importers.timestamps import TIME_FORMATS, parse_time_s
from fedge.errors import BadInput

STEPS_COLUMNS = ("start_s", "end_s", "cores", "cpu_khz", "gpu_hz", "mem_hz")
"""Required columns; ``batch_size`` and ``steps`` (steps in the row, 1 by default) are optional."""


@dataclass(frozen=True, slots=True)
class StepRun:
    """Consecutive steps in one mode.

    Attributes:
        start_s: Start, on the log's clock.
        end_s: End, on the log's clock.
    """

    start_s: float
    end_s: float
    steps: int
    knobs: ImportKey

    @property
    def step_ms(self) -> float:
        """Time per step, in milliseconds."""
        return 1e3 * (self.end_s - self.start_s) / self.steps


@dataclass(frozen=True, slots=True)
class StepsFile:
    """A steps file: its path and its rows, at least one."""

    where: str
    runs: tuple[StepRun, ...]


def read_steps_file(where: str, text: str, batch_size: int | None = None) -> StepsFile:
    """Parse a steps file.

    ``batch_size`` is that of a file without this column, and selects the rows of a file with it.

    Raises:
        BadInput: A cell is invalid (names line and column), or no row has the batch size.
    """
    sheet = parse_sheet(where, text, STEPS_COLUMNS)
    sized = "batch_size" in sheet.columns
    if not sized and batch_size is None:
        raise BadInput(where, "no column batch_size", "the column, or --batch-size")
    counted = "steps" in sheet.columns
    runs = [_parse_run(f"{where}: line {row.line}", row, None if sized else batch_size, counted) for row in sheet.rows]
    if not runs:
        raise BadInput(where, "no rows", "at least one row of minibatches")
    return StepsFile(where, _select_batch_size(where, runs, batch_size))


def _select_batch_size(where: str, runs: Sequence[StepRun], batch_size: int | None) -> tuple[StepRun, ...]:
    if batch_size is None:
        return tuple(runs)
    known = sorted({run.knobs.batch_size for run in runs})
    if batch_size not in known:
        raise BadInput(f"{where}: batch size", str(batch_size), f"known: {', '.join(map(str, known))}")
    return tuple(run for run in runs if run.knobs.batch_size == batch_size)


def _parse_run(where: str, row: SheetRow, batch_size: int | None, counted: bool) -> StepRun:
    start_s, end_s = (_parse_time_s(where, name, row.cells[name]) for name in ("start_s", "end_s"))
    if not end_s > start_s:
        raise BadInput(f"{where}, end_s", row.cells["end_s"], f"a time after start_s, {row.cells['start_s']}")
    cpu_khz, gpu_hz, mem_hz = (parse_number(where, name, row.cells[name]) for name in ("cpu_khz", "gpu_hz", "mem_hz"))
    cores = int(parse_number(where, "cores", row.cells["cores"], whole=True))
    size = batch_size or int(parse_number(where, "batch_size", row.cells["batch_size"], whole=True))
    steps = int(parse_number(where, "steps", row.cells["steps"], whole=True)) if counted else 1
    knobs = ImportKey(cores, cpu_khz=cpu_khz, gpu_hz=gpu_hz, mem_hz=mem_hz, batch_size=size)
    return StepRun(start_s, end_s, steps, knobs)


def _parse_time_s(where: str, column: str, text: str) -> float:
    at_s = parse_time_s(text)
    if at_s is None:
        raise BadInput(
            f"{where}, {column}", repr(text[:40]), f"a time: {TIME_FORMATS}, or seconds since the log's first line"
        )
    return at_s
