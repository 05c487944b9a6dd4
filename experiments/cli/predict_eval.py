"""``fedge predict eval``: evaluates predictors on measured tables, prints the results, writes rows and a page."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.cli.command_output import check_output
from fedge import registry
from fedge.devices.tables.mode_table import read_mode_table
from fedge.devices.tables.table_checks import list_table_notes
from fedge.errors import BadInput, FedgeError
from fedge.knowledge.table_background import build_background, find_board_spec
from fedge.predictors import PREDICTORS
from fedge.predictors.explorers import EXPLORERS
from fedge.studies.implausible_rows import find_plausible_rows
from fedge.studies.power_budgets import default_budgets
from fedge.studies.prediction_cells import (
    CellResult,
    MethodSetup,
    PredictionRow,
    PredictionTarget,
    resolve_setup,
    row_to_dict,
)
from fedge.studies.prediction_study import PredictionStudy, count_preparations, run_prediction_study
from fedge.telemetry import run_folder
from fedge.types import ProfileTable

if TYPE_CHECKING:
    from rich.console import Console

MAX_BUDGETS = 1000
MIN_ROWS = 2
"""Fewest rows of a table: one to profile and one to predict."""


@dataclass(frozen=True, slots=True)
class PredictEvalOptions:
    """Command-line options."""

    targets: tuple[Path, ...]
    references: tuple[Path, ...] = ()
    methods: str | None = None
    """Names separated by commas; by default fedge, and powertrain if there is a reference to train it on."""
    modes: str = "10,20,50"
    seeds: int = 5
    budgets: str | None = None
    explorer: str | None = None
    choice: str | None = None
    prior_without: tuple[str, ...] = ()
    device: str | None = None
    workload: str | None = None
    batch_size: int | None = None


def evaluate_predictors(asked: PredictEvalOptions, json_file: Path | None, html: Path | None) -> None:
    """Evaluate predictors, print a table, and optionally write JSON and a page.

    Raises:
        BadInput: If the input is invalid; raised before any computation.
        FedgeError: At the end, if cells failed.
    """
    check_output("--json", json_file, "[")
    check_output("--html", html, "<!doctype html")
    study = build_study(asked)
    outcomes = run_study(study)
    rows = [outcome.row for outcome in outcomes]
    from experiments.report.predictors.evaluation_tables import build_evaluation_tables

    _make_console().print(build_evaluation_tables(rows))
    if json_file is not None:
        _write_output("--json", json_file, lambda path: run_folder.write_json(path, [row_to_dict(row) for row in rows]))
    if html is not None:
        _write_output("--html", html, lambda path: _write_page(study, outcomes, path))
    _check_failures(rows)


def build_study(asked: PredictEvalOptions) -> PredictionStudy:
    """Build the study from the options.

    Raises:
        BadInput: If an option or table is invalid.
    """
    ways = _parse_ways(asked)
    counts = _parse_counts(asked.modes)
    budgets = None if asked.budgets is None else _parse_budgets(asked.budgets)
    if asked.workload is not None and len(asked.targets) > 1:
        raise BadInput("--workload", f"{len(asked.targets)} targets", "one target (names come from the tables' paths)")
    if len(set(asked.targets)) < len(asked.targets):
        raise BadInput("--target", "the same table twice", "each table once")
    tables = [_read_target_table(path, asked, max(counts)) for path in asked.targets]
    references = [_read_reference_table(path, asked.batch_size) for path in asked.references]
    targets = tuple(_build_target(table, references, asked.prior_without, budgets) for table in tables)
    for note in dict.fromkeys(note for target in targets for note in _list_notes(target)):
        sys.stderr.write(f"fedge: {note}\n")
    return PredictionStudy(targets, ways, counts, asked.seeds)


def run_study(study: PredictionStudy, workers: int | None = None) -> list[CellResult]:
    """Run all cells in parallel with a progress line on standard error.

    Args:
        study: The study.
        workers: Number of processes; by default the cores available to this process.
    """
    total = len(study.cells) + count_preparations(study)
    with _show_progress(total) as told:
        return run_prediction_study(study, workers or len(os.sched_getaffinity(0)), told)


# Input ----------------------------------------------------------------------------------------------------------------


def _parse_ways(asked: PredictEvalOptions) -> tuple[MethodSetup, ...]:
    methods = asked.methods or ("powertrain,fedge" if asked.references else "fedge")
    names = _split_words("--method", methods, "names of predictors, separated by commas")
    ways = tuple(resolve_setup(name, asked.explorer, asked.choice) for name in names)
    for way in ways:
        registry.load_named("--method", way.method, PREDICTORS)
        registry.load_named("--explorer", way.explorer, EXPLORERS)
    return ways


def _parse_counts(text: str) -> tuple[int, ...]:
    right = "whole numbers above 0, separated by commas, e.g. 10,20,50"
    words = _split_words("--modes", text, right)
    if not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
        raise BadInput("--modes", repr(text), right)
    return tuple(int(word) for word in words)


def _split_words(option: str, text: str, right: str) -> tuple[str, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(words) or len(set(words)) < len(words):
        raise BadInput(option, repr(text), f"{right}, each once")
    return tuple(words)


def _parse_budgets(text: str) -> tuple[float, ...]:
    right = f"LOW:HIGH:STEP in watts, e.g. 17:50:1, at most {MAX_BUDGETS} budgets"
    try:
        low, high, step = (float(word) for word in text.split(":"))
    except ValueError as error:
        raise BadInput("--budgets", repr(text), right) from error
    good = all(math.isfinite(v) and v > 0 for v in (low, high, step)) and low <= high
    if not good or (high - low) / step >= MAX_BUDGETS:
        raise BadInput("--budgets", repr(text), right)
    return tuple(low + i * step for i in range(math.floor((high - low) / step + 1e-9) + 1))


def _read_target_table(path: Path, asked: PredictEvalOptions, most_modes: int) -> ProfileTable:
    table = read_mode_table(path, asked.device, asked.workload, asked.batch_size)
    if len(table.modes) < MIN_ROWS:
        raise BadInput(str(path), "one power mode", "a table of several: some are profiled, the others predicted")
    if most_modes >= len(table.modes):
        right = f"fewer than the {len(table.modes)} modes of {path}: the others are to be predicted"
        raise BadInput("--modes", str(most_modes), right)
    return table


def _read_reference_table(path: Path, batch_size: int | None) -> ProfileTable:
    """Read a reference at the target's batch size if available, otherwise at its only one."""
    try:
        return read_mode_table(path, batch_size=batch_size)
    except BadInput:
        if batch_size is None:
            raise
        return read_mode_table(path)


def _build_target(
    table: ProfileTable, references: Sequence[ProfileTable], without: Sequence[str], budgets: tuple[float, ...] | None
) -> PredictionTarget:
    background = build_background(table, references, without)
    plausible = find_plausible_rows(table, background.knowledge.maxn)
    spec = find_board_spec(table.device)
    usual = default_budgets(table.power_w[plausible], spec.max_w.value if spec else None)
    return PredictionTarget(table, background, plausible, usual if budgets is None else budgets)


def _list_notes(target: PredictionTarget) -> tuple[str, ...]:
    """Return notes on a target's table and on the available prior."""
    return (*(f"{target.table.path}: {note}" for note in list_table_notes(target.table)), *target.background.notes)


# Output ---------------------------------------------------------------------------------------------------------------


def _write_page(study: PredictionStudy, outcomes: Sequence[CellResult], path: Path) -> None:
    from experiments.report.predictors.evaluation_page import write_evaluation_page

    write_evaluation_page(study, outcomes, path)


def _write_output(option: str, path: Path, write: Callable[[Path], None]) -> None:
    try:
        write(path)
    except OSError as error:
        raise BadInput(option, str(path), f"a file that can be written ({error.strerror})") from error


def _check_failures(rows: Sequence[PredictionRow]) -> None:
    errors = [f"{row.method} on {row.target}: {row.error}" for row in rows if row.error is not None]
    if errors:
        raise FedgeError(f"{len(errors)} of {len(rows)} cells failed; {'; '.join(dict.fromkeys(errors))}")


def _make_console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr)


@contextmanager
def _show_progress(total: int) -> Iterator[Callable[[str], None]]:
    """Show the number of finished steps and the last one on the terminal; silent without one."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = _make_console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=total)
        yield lambda step: progress.update(task, advance=1, description=step)
