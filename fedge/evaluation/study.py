"""Plays a study's cells in processes of their own, with the same rows whatever their number, and leaves none behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace

from fedge.clock import RealClock
from fedge.errors import RunFailed
from fedge.evaluation.cells import Cell, Outcome, Target, Way, play, warm_up

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


# Processes ------------------------------------------------------------------------------------------------------------


def _spread(study: Study, workers: int, told: Callable[[str], None]) -> list[Outcome]:
    # Started afresh: what a copy of this process would inherit, threads and locks, may hang it.
    context = multiprocessing.get_context("spawn")
    cells = study.cells
    with _pool(ProcessPoolExecutor(min(workers, len(cells)), context, _begin, (study,))) as pool:
        with _deaf():  # the first submission starts the processes
            futures = {pool.submit(_play, place): place for place in range(len(cells))}
        found: dict[int, Outcome] = {}
        for future in as_completed(futures):
            place = futures[future]
            found[place] = future.result()
            told(_name(cells[place]))
    return [found[place] for place in range(len(cells))]


@contextmanager
def _pool(pool: ProcessPoolExecutor) -> Iterator[ProcessPoolExecutor]:
    """Waits for its processes, or ends them at once where an error or Ctrl-C leaves them with work."""
    before = {process.pid for process in multiprocessing.active_children()}
    try:
        yield pool
    except BaseException as error:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            if process.pid not in before:
                process.terminate()
        if isinstance(error, BrokenProcessPool):
            raise RunFailed("a worker process ended before its time (out of memory?)") from error
        raise
    pool.shutdown()


@contextmanager
def _deaf() -> Iterator[None]:
    """Ctrl-C is ignored for a moment, and for good by processes that begin inside: ending them is left to this one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


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
    """A worker's start; a parent that dies takes its workers along."""
    global _study  # noqa: PLW0603 - the one thing a worker process keeps between its cells
    _study = study
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _play(place: int) -> Outcome:
    assert _study is not None
    cell = _study.cells[place]
    target = _study.targets[cell.target]
    key = (cell.way.method, target.background.references)
    if key not in _warm:  # loading a library is not fitting
        _warm.add(key)
        warm_up(cell.way, target)
    return _slim(play(cell, target, RealClock()))
