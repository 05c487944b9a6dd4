"""Plays a study's cells in processes of their own, with the same rows whatever their number, and leaves none behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from fedge.clock import RealClock
from fedge.evaluation.cells import Cell, Outcome, Target, Way, play, warm_up
from fedge.evaluation.processes import spread

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
"""The numeric libraries read these when they are loaded; one thread each, because the cells fill the cores."""


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """What is judged on what: every way on every target with every number of modes and every seed from 0."""

    targets: tuple[Target, ...]
    ways: tuple[Way, ...]
    modes: tuple[int, ...]
    seeds: int

    @property
    def cells(self) -> tuple[Cell, ...]:
        """In the order of the rows."""
        return tuple(
            Cell(target, way, count, seed)
            for target in range(len(self.targets))
            for way in self.ways
            for count in self.modes
            for seed in range(self.seeds)
        )


def run(study: Study, workers: int, told: Callable[[str], None] = lambda _: None) -> list[Outcome]:
    """Play every cell, in the order of ``Study.cells``; ``told`` gets a word on each step that is done.

    No worker at all plays in this process, with as many threads as its libraries were loaded for; sums split over
    threads round differently. Predictions are kept of seed 0 only. Raises ``RunFailed`` when a worker dies.
    """
    with one_thread():
        for way, target in _once(study):
            told(f"prepare {way.method}")
            warm_up(way, target)
        if workers == 0:
            return [_slim(play(cell, study.targets[cell.target], RealClock())) for cell in _each(study, told)]
        return _spread(study, workers, told)


def preparations(study: Study) -> int:
    """How many methods are prepared before the cells."""
    return len(_once(study))


def _once(study: Study) -> list[tuple[Way, Target]]:
    """Every method with every set of references, which is what a reference network is trained on."""
    found: dict[tuple[str, tuple[str, ...]], tuple[Way, Target]] = {}
    for target in study.targets:
        for way in study.ways:
            found.setdefault((way.method, target.background.references), (way, target))
    return list(found.values())


def _each(study: Study, told: Callable[[str], None]) -> Iterator[Cell]:
    for cell in study.cells:
        yield cell
        told(_name(cell))


def _name(cell: Cell) -> str:
    return f"{cell.way.method}, {cell.modes} modes, seed {cell.seed}"


def _slim(outcome: Outcome) -> Outcome:
    """Without the predictions that no picture shows."""
    return outcome if outcome.cell.seed == 0 else replace(outcome, predictions=None)


def _spread(study: Study, workers: int, told: Callable[[str], None]) -> list[Outcome]:
    cells = study.cells

    def done(place: int, _: Outcome) -> None:
        told(_name(cells[place]))

    return spread(_play, range(len(cells)), workers, done, partial(_begin, study))


@contextmanager
def one_thread() -> Iterator[None]:
    """Numeric libraries that are loaded inside, also by new processes, use one thread; the environment is put back."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


_study: Study | None = None
"""What this worker process plays; set once, when it begins."""
_warm: set[tuple[str, tuple[str, ...]]] = set()


def _begin(study: Study) -> None:
    """What a worker process does first."""
    global _study  # noqa: PLW0603 - the one thing a worker process keeps between its cells
    _study = study


def _play(place: int) -> Outcome:
    assert _study is not None
    cell = _study.cells[place]
    target = _study.targets[cell.target]
    key = (cell.way.method, target.background.references)
    if key not in _warm:  # loading a library is not fitting
        _warm.add(key)
        warm_up(cell.way, target)
    return _slim(play(cell, target, RealClock()))
