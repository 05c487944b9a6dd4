"""Run a study's cells in worker processes, with the same rows whatever the number of workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from fedge.child_processes import count_cores
from fedge.clock import RealClock
from fedge.devices.tables.table_checks import list_table_notes
from fedge.studies.prediction_cells import CellResult, MethodSetup, PredictionCell, PredictionTarget, run_cell, warm_up
from fedge.studies.process_pool import run_in_processes

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
"""Read by numeric libraries when they are loaded; each uses one thread, because the cells fill the cores."""


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
        workers: Number of worker processes; None for the cores that this process may use. 0 runs in this process, with
            as many threads as its libraries were loaded for; sums split over threads round differently.
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
        if workers == 0:
            return [
                _drop_unshown_predictions(run_cell(cell, study.targets[cell.target], RealClock()))
                for cell in _iterate_cells(study, report)
            ]
        return _run_cells_in_processes(study, workers or count_cores(), report)


def _list_preparations(study: PredictionStudy) -> list[tuple[MethodSetup, PredictionTarget]]:
    """Return every method with every set of references, on which reference networks are trained."""
    preparations: dict[tuple[str, tuple[str, ...]], tuple[MethodSetup, PredictionTarget]] = {}
    for target in study.targets:
        for setup in study.setups:
            preparations.setdefault((setup.method, target.background.references), (setup, target))
    return list(preparations.values())


def _iterate_cells(study: PredictionStudy, report: Callable[[str], None]) -> Iterator[PredictionCell]:
    for cell in study.cells:
        yield cell
        report(_describe_cell(cell))


def _describe_cell(cell: PredictionCell) -> str:
    return f"{cell.setup.method}, {cell.modes} modes, seed {cell.seed}"


def _drop_unshown_predictions(outcome: CellResult) -> CellResult:
    """Drop predictions that are not plotted."""
    return outcome if outcome.cell.seed == 0 else replace(outcome, predictions=None)


def _run_cells_in_processes(study: PredictionStudy, workers: int, report: Callable[[str], None]) -> list[CellResult]:
    cells = study.cells

    def done(place: int, _: CellResult) -> None:
        report(_describe_cell(cells[place]))

    return run_in_processes(
        _run_worker_cell, jobs=range(len(cells)), workers=workers, done=done, prepare=partial(_start_worker, study)
    )


@contextmanager
def limit_to_one_thread() -> Iterator[None]:
    """Let numeric libraries loaded inside, also by new processes, use one thread; then restore the environment."""
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


_study: PredictionStudy | None = None
"""The study of this worker process, set once when it starts."""
_warm: set[tuple[str, tuple[str, ...]]] = set()


def _start_worker(study: PredictionStudy) -> None:
    """Initialise a worker process."""
    global _study  # noqa: PLW0603 - the one thing a worker process keeps between its cells
    _study = study


def _run_worker_cell(place: int) -> CellResult:
    assert _study is not None
    cell = _study.cells[place]
    target = _study.targets[cell.target]
    key = (cell.setup.method, target.background.references)
    if key not in _warm:  # loading a library is not fitting
        _warm.add(key)
        warm_up(cell.setup, target)
    return _drop_unshown_predictions(run_cell(cell, target, RealClock()))
