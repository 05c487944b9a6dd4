"""``fedge predict eval``: judges predictors on measured tables, prints what they reach, writes rows and pictures."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.commands.outputs import check_output
from fedge import registry
from fedge.errors import BadInput, FedgeError
from fedge.evaluation.budgets import default_budgets
from fedge.evaluation.cells import Outcome, Row, Target, Way, as_data, way_of
from fedge.evaluation.implausible import plausible_rows
from fedge.evaluation.knowledge import background_of, board_of
from fedge.evaluation.study import Study, preparations, run
from fedge.explorers import EXPLORERS
from fedge.predictors import PREDICTORS
from fedge.profiles.health import notes_of
from fedge.profiles.table import read_table
from fedge.telemetry import run_folder
from fedge.types import ProfileTable

if TYPE_CHECKING:
    from rich.console import Console

MOST_BUDGETS = 1000
FEWEST_ROWS = 2
"""One to profile and one to predict."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The options as they were typed."""

    targets: tuple[Path, ...]
    references: tuple[Path, ...] = ()
    methods: str | None = None
    """Separated by commas; by default fedge, and powertrain where there is a reference to train it on."""
    modes: str = "10,20,50"
    seeds: int = 5
    budgets: str | None = None
    explorer: str | None = None
    choice: str | None = None
    prior_without: tuple[str, ...] = ()
    device: str | None = None
    workload: str | None = None
    batch_size: int | None = None


def evaluate(asked: Asked, json_file: Path | None, html: Path | None) -> None:
    """Judge, print the table, write ``json_file`` and ``html`` where given.

    Raises ``BadInput`` for wrong input before anything is computed, ``FedgeError`` at the end when cells failed.
    """
    check_output("--json", json_file, "[")
    check_output("--html", html, "<!doctype html")
    study = study_of(asked)
    outcomes = judge(study)
    rows = [outcome.row for outcome in outcomes]
    from experiments.report.study.terminal import as_tables

    _console().print(as_tables(rows))
    if json_file is not None:
        _write("--json", json_file, lambda path: run_folder.write_json(path, [as_data(row) for row in rows]))
    if html is not None:
        _write("--html", html, lambda path: _draw(study, outcomes, path))
    _check_failures(rows)


def study_of(asked: Asked) -> Study:
    """What is to be judged; raises ``BadInput`` for everything that is wrong with the options or the tables."""
    ways = _ways(asked)
    counts = _counts(asked.modes)
    budgets = None if asked.budgets is None else _budgets(asked.budgets)
    if asked.workload is not None and len(asked.targets) > 1:
        raise BadInput("--workload", f"{len(asked.targets)} targets", "one target (names come from the tables' paths)")
    if len(set(asked.targets)) < len(asked.targets):
        raise BadInput("--target", "the same table twice", "each table once")
    tables = [_target_table(path, asked, max(counts)) for path in asked.targets]
    references = [_reference_table(path, asked.batch_size) for path in asked.references]
    targets = tuple(_target(table, references, asked.prior_without, budgets) for table in tables)
    for note in dict.fromkeys(note for target in targets for note in _notes(target)):
        sys.stderr.write(f"fedge: {note}\n")
    return Study(targets, ways, counts, asked.seeds)


def judge(study: Study, workers: int | None = None) -> list[Outcome]:
    """Play all cells on as many processes as this one has cores, with a line of progress on the error stream."""
    total = len(study.cells) + preparations(study)
    with _progress(total) as told:
        return run(study, workers or len(os.sched_getaffinity(0)), told)


# Input ----------------------------------------------------------------------------------------------------------------


def _ways(asked: Asked) -> tuple[Way, ...]:
    methods = asked.methods or ("powertrain,fedge" if asked.references else "fedge")
    names = _words("--method", methods, "names of predictors, separated by commas")
    ways = tuple(way_of(name, asked.explorer, asked.choice) for name in names)
    for way in ways:
        registry.load("--method", way.method, PREDICTORS)
        registry.load("--explorer", way.explorer, EXPLORERS)
    return ways


def _counts(text: str) -> tuple[int, ...]:
    right = "whole numbers above 0, separated by commas, e.g. 10,20,50"
    words = _words("--modes", text, right)
    if not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
        raise BadInput("--modes", repr(text), right)
    return tuple(int(word) for word in words)


def _words(option: str, text: str, right: str) -> tuple[str, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(words) or len(set(words)) < len(words):
        raise BadInput(option, repr(text), f"{right}, each once")
    return tuple(words)


def _budgets(text: str) -> tuple[float, ...]:
    right = f"LOW:HIGH:STEP in watts, e.g. 17:50:1, at most {MOST_BUDGETS} budgets"
    try:
        low, high, step = (float(word) for word in text.split(":"))
    except ValueError as error:
        raise BadInput("--budgets", repr(text), right) from error
    good = all(math.isfinite(v) and v > 0 for v in (low, high, step)) and low <= high
    if not good or (high - low) / step >= MOST_BUDGETS:
        raise BadInput("--budgets", repr(text), right)
    return tuple(low + i * step for i in range(math.floor((high - low) / step + 1e-9) + 1))


def _target_table(path: Path, asked: Asked, most_modes: int) -> ProfileTable:
    table = read_table(path, asked.device, asked.workload, asked.batch_size)
    if len(table.modes) < FEWEST_ROWS:
        raise BadInput(str(path), "one power mode", "a table of several: some are profiled, the others predicted")
    if most_modes >= len(table.modes):
        right = f"fewer than the {len(table.modes)} modes of {path}: the others are to be predicted"
        raise BadInput("--modes", str(most_modes), right)
    return table


def _reference_table(path: Path, batch_size: int | None) -> ProfileTable:
    """At the target's batch size where the table has it, else at the only one that it has."""
    try:
        return read_table(path, batch_size=batch_size)
    except BadInput:
        if batch_size is None:
            raise
        return read_table(path)


def _target(
    table: ProfileTable, references: Sequence[ProfileTable], without: Sequence[str], budgets: tuple[float, ...] | None
) -> Target:
    background = background_of(table, references, without)
    plausible = plausible_rows(table, background.knowledge.maxn)
    spec = board_of(table.device)
    usual = default_budgets(table.power_w[plausible], spec.max_w.value if spec else None)
    return Target(table, background, plausible, usual if budgets is None else budgets)


def _notes(target: Target) -> tuple[str, ...]:
    """What a reader should know of the table and of what is known beforehand."""
    return (*(f"{target.table.path}: {note}" for note in notes_of(target.table)), *target.background.notes)


# Output ---------------------------------------------------------------------------------------------------------------


def _draw(study: Study, outcomes: Sequence[Outcome], path: Path) -> None:
    from experiments.report.study.page import write_study

    write_study(study, outcomes, path)


def _write(option: str, path: Path, write: Callable[[Path], None]) -> None:
    try:
        write(path)
    except OSError as error:
        raise BadInput(option, str(path), f"a file that can be written ({error.strerror})") from error


def _check_failures(rows: Sequence[Row]) -> None:
    errors = [f"{row.method} on {row.target}: {row.error}" for row in rows if row.error is not None]
    if errors:
        raise FedgeError(f"{len(errors)} of {len(rows)} cells failed; {'; '.join(dict.fromkeys(errors))}")


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
    """A line on the terminal: how many steps are done and which was the last; nothing where there is no terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = _console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=total)
        yield lambda step: progress.update(task, advance=1, description=step)
