"""Run a study's cells in worker processes, with the same rows whatever the number of workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from fedge.clock import RealClock
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
            PredictionCell(target, way, count, seed)
            for target in range(len(self.targets))
            for way in self.setups
            for count in self.modes
            for seed in range(self.seeds)
        )


def run_prediction_study(
    study: PredictionStudy, workers: int, told: Callable[[str], None] = lambda _: None
) -> list[CellResult]:
    """Run every cell.

    Args:
        study: The grid of cells.
        workers: Number of worker processes. 0 runs in this process, with as many threads as its libraries were loaded
            for; sums split over threads round differently.
        told: Called with a description of each finished step.

    Returns:
        Results in the order of ``PredictionStudy.cells``; predictions are kept for seed 0 only.

    Raises:
        RunFailed: If a worker dies.
    """
    with limit_to_one_thread():
        for way, target in _list_preparations(study):
            told(f"prepare {way.method}")
            warm_up(way, target)
        if workers == 0:
            return [
                _drop_unshown_predictions(run_cell(cell, study.targets[cell.target], RealClock()))
                for cell in _iterate_cells(study, told)
            ]
        return _run_cells_in_processes(study, workers, told)


def count_preparations(study: PredictionStudy) -> int:
    """Return the number of methods that are prepared before the cells."""
    return len(_list_preparations(study))


def _list_preparations(study: PredictionStudy) -> list[tuple[MethodSetup, PredictionTarget]]:
    """Return every method with every set of references, on which reference networks are trained."""
    found: dict[tuple[str, tuple[str, ...]], tuple[MethodSetup, PredictionTarget]] = {}
    for target in study.targets:
        for way in study.setups:
            found.setdefault((way.method, target.background.references), (way, target))
    return list(found.values())


def _iterate_cells(study: PredictionStudy, told: Callable[[str], None]) -> Iterator[PredictionCell]:
    for cell in study.cells:
        yield cell
        told(_describe_cell(cell))


def _describe_cell(cell: PredictionCell) -> str:
    return f"{cell.setup.method}, {cell.modes} modes, seed {cell.seed}"


def _drop_unshown_predictions(outcome: CellResult) -> CellResult:
    """Drop predictions that are not plotted."""
    return outcome if outcome.cell.seed == 0 else replace(outcome, predictions=None)


def _run_cells_in_processes(study: PredictionStudy, workers: int, told: Callable[[str], None]) -> list[CellResult]:
    cells = study.cells

    def done(place: int, _: CellResult) -> None:
        told(_describe_cell(cells[place]))

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
