"""Run a study's cells in worker processes, with the same rows whatever the number of workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from fedge.child_processes import limit_to_one_thread
from fedge.devices.tables.mode_table import list_table_notes
from fedge.protocols import RealClock
from fedge.studies.prediction_cells import CellResult, MethodSetup, PredictionCell, PredictionTarget, run_cell, warm_up
from fedge.studies.task_pool import run_jobs


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
