"""Plays a study's cells in processes of their own, with the same rows whatever their number, and leaves none behind."""

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
"""The numeric libraries read these when they are loaded; one thread each, because the cells fill the cores."""


@dataclass(frozen=True, slots=True, eq=False)
class PredictionStudy:
    """What is judged on what: every way on every target with every number of modes and every seed from 0."""

    targets: tuple[PredictionTarget, ...]
    setups: tuple[MethodSetup, ...]
    modes: tuple[int, ...]
    seeds: int

    @property
    def cells(self) -> tuple[PredictionCell, ...]:
        """In the order of the rows."""
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
    """Play every cell, in the order of ``PredictionStudy.cells``; ``told`` gets a word on each step that is done.

    No worker at all plays in this process, with as many threads as its libraries were loaded for; sums split over
    threads round differently. Predictions are kept of seed 0 only. Raises ``RunFailed`` when a worker dies.
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
    """How many methods are prepared before the cells."""
    return len(_list_preparations(study))


def _list_preparations(study: PredictionStudy) -> list[tuple[MethodSetup, PredictionTarget]]:
    """Every method with every set of references, which is what a reference network is trained on."""
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
    """Without the predictions that no picture shows."""
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
    """Numeric libraries that are loaded inside, also by new processes, use one thread; the environment is put back."""
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
"""What this worker process plays; set once, when it begins."""
_warm: set[tuple[str, tuple[str, ...]]] = set()


def _start_worker(study: PredictionStudy) -> None:
    """What a worker process does first."""
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
