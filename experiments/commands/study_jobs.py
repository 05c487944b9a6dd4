"""Plays a study's jobs on as many processes as this one has cores; a user's mistake in one of them stays one line."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

from fedge.errors import FedgeError, RunFailed

J = TypeVar("J")
R = TypeVar("R")


def play_all(
    play: Callable[[J], R], jobs: Sequence[J], told: Callable[[str], None], workers: int | None = None
) -> list[R]:
    """``play`` of every job, in the order of ``jobs``; ``told`` hears ``str(job)`` whenever one is done.

    ``play`` is a function of a module, jobs and results can be pickled. Raises the first job's ``FedgeError``.
    """
    count = min(workers or len(os.sched_getaffinity(0)), len(jobs))
    if count < 2:
        return [_told(play(job), job, told) for job in jobs]
    # Started afresh: what a copy of this process would inherit, threads and locks, may hang it.
    context = multiprocessing.get_context("spawn")
    found: dict[int, R] = {}
    with _pool(ProcessPoolExecutor(count, context, _begin)) as pool:
        with _deaf():  # the first submission starts the processes
            futures = {pool.submit(_caught, play, job): place for place, job in enumerate(jobs)}
        for future in as_completed(futures):
            result, error = future.result()
            if error is not None or result is None:
                raise FedgeError(error or "a job gave nothing")
            found[futures[future]] = result
            told(str(jobs[futures[future]]))
    return [found[place] for place in range(len(jobs))]


def _told(result: R, job: J, told: Callable[[str], None]) -> R:
    told(str(job))
    return result


def _caught(play: Callable[[J], R], job: J) -> tuple[R | None, str | None]:
    """The result, or the text of an error on purpose: those cannot be pickled."""
    try:
        return play(job), None
    except FedgeError as error:
        return None, str(error)


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


def _begin() -> None:
    """A worker's start; a parent that dies takes its workers along."""
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
