"""A study of predictors: its options, parsed and checked, and its cells, with equal rows for any number of workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fedge import registry
from fedge.child_processes import limit_to_one_thread
from fedge.clock import RealClock
from fedge.devices.tables.mode_table import list_table_notes, read_mode_table
from fedge.errors import BadInput
from fedge.knowledge.table_background import build_background, find_board_spec, read_reference_table
from fedge.predictors import PREDICTORS
from fedge.predictors.explorers import EXPLORERS
from fedge.studies.implausible_rows import find_plausible_rows
from fedge.studies.prediction_cells import (
    CellResult,
    MethodSetup,
    PredictionCell,
    PredictionTarget,
    default_budgets,
    resolve_setup,
    run_cell,
    warm_up,
)
from fedge.studies.task_pool import run_jobs
from fedge.types import ProfileTable


@dataclass(frozen=True, slots=True, eq=False)
class PredictionStudy:
    """A full grid: every setup on every target with every number of modes and every seed from 0 to ``seeds`` - 1."""

    targets: tuple[PredictionTarget, ...]
    setups: tuple[MethodSetup, ...]
    modes: tuple[int, ...]
    seeds: int

    @property
    def cells(self) -> tuple[PredictionCell, ...]:
        """The cells in the order of the rows."""
        return tuple(
            PredictionCell(target, setup, count, seed)
            for target in range(len(self.targets))
            for setup in self.setups
            for count in self.modes
            for seed in range(self.seeds)
        )

    @property
    def step_count(self) -> int:
        """Number of steps that are reported while it runs: preparations of methods, then cells."""
        return len(_list_preparations(self)) + len(self.cells)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the tables and on the available priors, each once."""
        notes = [
            note
            for target in self.targets
            for note in (
                *(f"{target.table.path}: {note}" for note in list_table_notes(target.table)),
                *target.background.notes,
            )
        ]
        return tuple(dict.fromkeys(notes))


def run_prediction_study(
    study: PredictionStudy, workers: int | None = None, report: Callable[[str], None] = lambda _: None
) -> list[CellResult]:
    """Run every cell.

    Args:
        study: The grid of cells.
        workers: Number of cells at a time; None for the cores that this process may use, or the cluster's. 1 runs in
            this process, with as many threads as its libraries were loaded for; sums split over threads round
            differently.
        report: Called with a description of each finished step.

    Returns:
        Results in the order of ``PredictionStudy.cells``; predictions are kept for seed 0 only.

    Raises:
        RunFailed: If a worker dies.
    """
    with limit_to_one_thread():
        for setup, target in _list_preparations(study):
            report(f"prepare {setup.method}")
            warm_up(setup, target)
            _warm.add(_preparation_key(setup, target))
        return run_jobs(partial(_run_study_cell, study), study.cells, report, workers)


def _list_preparations(study: PredictionStudy) -> list[tuple[MethodSetup, PredictionTarget]]:
    """Return every method with every set of references, on which reference networks are trained."""
    preparations: dict[tuple[str, tuple[str, ...]], tuple[MethodSetup, PredictionTarget]] = {}
    for target in study.targets:
        for setup in study.setups:
            preparations.setdefault(_preparation_key(setup, target), (setup, target))
    return list(preparations.values())


def _preparation_key(setup: MethodSetup, target: PredictionTarget) -> tuple[str, tuple[str, ...]]:
    return setup.method, target.background.references


_warm: set[tuple[str, tuple[str, ...]]] = set()
"""Preparations made in this process."""


def _run_study_cell(study: PredictionStudy, cell: PredictionCell) -> CellResult:
    """Run one cell, in a worker process if there are several."""
    target = study.targets[cell.target]
    key = _preparation_key(cell.setup, target)
    if key not in _warm:  # loading a library is not fitting
        _warm.add(key)
        warm_up(cell.setup, target)
    outcome = run_cell(cell, target, RealClock())
    return outcome if cell.seed == 0 else replace(outcome, predictions=None)


MAX_BUDGETS = 1000
MIN_ROWS = 2
"""Fewest rows of a table: one to profile and one to predict."""


@dataclass(frozen=True, slots=True)
class PredictionStudyOptions:
    """Options of a study of predictors.

    Attributes:
        methods: Predictors, separated by commas; by default fedge, and powertrain if there is a reference.
        modes: Numbers of profiled modes, separated by commas.
        budgets: Power budgets in watts as ``LOW:HIGH:STEP``; None for those of the table.
        explorer: Name of the explorer; None for each method's own.
        choice: Name of the choice rule; None for each method's own.
        prior_without: Workloads and boards whose calibrated profiles are left out of the prior.
        board: The board; None takes it from the table's path.
        workload: The workload; None takes it from the table's name.
        batch_size: Batch size, if a table holds several.
    """

    targets: tuple[Path, ...]
    references: tuple[Path, ...] = ()
    methods: str | None = None
    modes: str = "10,20,50"
    seeds: int = 5
    budgets: str | None = None
    explorer: str | None = None
    choice: str | None = None
    prior_without: tuple[str, ...] = ()
    board: str | None = None
    workload: str | None = None
    batch_size: int | None = None


def build_prediction_study(options: PredictionStudyOptions) -> PredictionStudy:
    """Build the study from the options.

    Raises:
        BadInput: If an option or table is invalid.
    """
    setups = _parse_setups(options)
    counts = registry.split_counts("--modes", options.modes, "10,20,50")
    budgets = None if options.budgets is None else _parse_budgets(options.budgets)
    if options.workload is not None and len(options.targets) > 1:
        raise BadInput(
            "--workload", f"{len(options.targets)} targets", "one target (names come from the tables' paths)"
        )
    if len(set(options.targets)) < len(options.targets):
        raise BadInput("--target", "the same table twice", "each table once")
    tables = [_read_target_table(path, options, max(counts)) for path in options.targets]
    references = [read_reference_table(path, options.batch_size) for path in options.references]
    targets = tuple(_build_target(table, references, options.prior_without, budgets) for table in tables)
    return PredictionStudy(targets, setups, counts, options.seeds)


def _parse_setups(options: PredictionStudyOptions) -> tuple[MethodSetup, ...]:
    methods = options.methods or ("powertrain,fedge" if options.references else "fedge")
    names = registry.split_names("--methods", methods, "names of predictors, separated by commas")
    setups = tuple(resolve_setup(name, options.explorer, options.choice) for name in names)
    for setup in setups:
        registry.load_named("--methods", setup.method, PREDICTORS)
        registry.load_named("--explorer", setup.explorer, EXPLORERS)
    return setups


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


def _read_target_table(path: Path, options: PredictionStudyOptions, most_modes: int) -> ProfileTable:
    table = read_mode_table(path, options.board, options.workload, options.batch_size)
    if len(table.modes) < MIN_ROWS:
        raise BadInput(str(path), "one power mode", "a table of several: some are profiled, the others predicted")
    if most_modes >= len(table.modes):
        right = f"fewer than the {len(table.modes)} modes of {path}: the others are to be predicted"
        raise BadInput("--modes", str(most_modes), right)
    return table


def _build_target(
    table: ProfileTable, references: Sequence[ProfileTable], without: Sequence[str], budgets: tuple[float, ...] | None
) -> PredictionTarget:
    background = build_background(table, references, without)
    plausible = find_plausible_rows(table, background.knowledge.maxn)
    spec = find_board_spec(table.device)
    usual = default_budgets(table.power_w[plausible], spec.max_w.value if spec else None)
    return PredictionTarget(table, background, plausible, usual if budgets is None else budgets)
