"""Jobs played in processes started afresh, results in the jobs' order; none of the processes outlives the call."""

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

from fedge.errors import RunFailed

J = TypeVar("J")
R = TypeVar("R")


def run_in_processes(
    play: Callable[[J], R],
    jobs: Sequence[J],
    workers: int,
    done: Callable[[J, R], None] = lambda _job, _result: None,
    prepare: Callable[[], None] | None = None,
) -> list[R]:
    """``play`` of every job on ``workers`` processes; ``done`` hears, in this one, of each as it ends.

    ``play``, ``prepare``, jobs and results can be pickled; each process calls ``prepare`` once, before its first job.
    An error, of ``play`` or of ``done``, or Ctrl-C ends all processes. Raises ``RunFailed`` when one dies.
    """
    # Started afresh: what a copy of this process would inherit, threads and locks, may hang it.
    context = multiprocessing.get_context("spawn")
    with _managed_pool(ProcessPoolExecutor(min(workers, len(jobs)), context, _start_worker, (prepare,))) as pool:
        with _ignore_interrupts():  # the first submission starts the processes
            futures = {pool.submit(play, job): place for place, job in enumerate(jobs)}
        found: dict[int, R] = {}
        for future in as_completed(futures):
            place = futures[future]
            found[place] = future.result()
            done(jobs[place], found[place])
    return [found[place] for place in range(len(jobs))]


@contextmanager
def _managed_pool(pool: ProcessPoolExecutor) -> Iterator[ProcessPoolExecutor]:
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
def _ignore_interrupts() -> Iterator[None]:
    """Ctrl-C is ignored for a moment, and for good by processes that begin inside: ending them is left to this one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _start_worker(prepare: Callable[[], None] | None) -> None:
    """A worker's start; a parent that dies takes its workers along."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    if prepare is not None:
        prepare()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
