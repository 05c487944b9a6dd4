"""Run jobs in freshly started processes and return results in the jobs' order; no process outlives the call."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from fedge.child_processes import count_cores, exit_with_parent
from fedge.errors import FedgeError, RunFailed

J = TypeVar("J")
R = TypeVar("R")


def run_jobs(
    run: Callable[[J], R], jobs: Sequence[J], report: Callable[[str], None], workers: int | None = None
) -> list[R]:
    """Run all jobs of a study in parallel.

    Args:
        run: Module-level function that runs one job.
        jobs: The jobs; they and their results must be picklable.
        report: Called with ``str(job)`` whenever a job has finished.
        workers: Number of processes; None for the cores that this process may use.

    Returns:
        The results in the order of ``jobs``.

    Raises:
        FedgeError: That of the first job that fails with one.
    """
    count = min(workers or count_cores(), len(jobs))
    if count < 2:
        return [_report_done(run(job), job, report) for job in jobs]

    def finish(job: J, outcome: tuple[R | None, str | None]) -> None:
        _unwrap_result(outcome)
        report(str(job))

    return [_unwrap_result(outcome) for outcome in run_in_processes(partial(_run_catching, run), jobs, count, finish)]


def _report_done(result: R, job: J, report: Callable[[str], None]) -> R:
    report(str(job))
    return result


def _run_catching(run: Callable[[J], R], job: J) -> tuple[R | None, str | None]:
    """Return the result or the text of an expected error, because such errors cannot be pickled."""
    try:
        return run(job), None
    except FedgeError as error:
        return None, str(error)


def _unwrap_result(outcome: tuple[R | None, str | None]) -> R:
    result, error = outcome
    if error is not None or result is None:
        raise FedgeError(error or "a job returned no result")
    return result


def run_in_processes(
    run: Callable[[J], R],
    jobs: Sequence[J],
    workers: int,
    done: Callable[[J, R], None] = lambda _job, _result: None,
    prepare: Callable[[], None] | None = None,
) -> list[R]:
    """Call ``run`` for every job in worker processes.

    Args:
        run: The function to call; like jobs and results it must be picklable.
        jobs: Its arguments.
        workers: Number of processes at most.
        done: Called in this process with each job and its result as it ends.
        prepare: Called once in each process before its first job; must be picklable.

    Returns:
        Results in the order of ``jobs``.

    Raises:
        RunFailed: If a process dies. Any exception, also of ``done``, and Ctrl-C end all processes.
    """
    # Spawned, not forked: a forked child inherits threads' locks and may hang.
    context = multiprocessing.get_context("spawn")
    with _managed_pool(ProcessPoolExecutor(min(workers, len(jobs)), context, _start_worker, (prepare,))) as pool:
        with _ignore_interrupts():  # the first submission starts the processes
            futures = {pool.submit(run, job): place for place, job in enumerate(jobs)}
        results: dict[int, R] = {}
        for future in as_completed(futures):
            place = futures[future]
            results[place] = future.result()
            done(jobs[place], results[place])
    return [results[place] for place in range(len(jobs))]


@contextmanager
def _managed_pool(pool: ProcessPoolExecutor) -> Iterator[ProcessPoolExecutor]:
    """Wait for the pool's processes, or end them at once after an error or Ctrl-C."""
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
    """Ignore Ctrl-C for a moment, and permanently in processes started inside: this process ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _start_worker(prepare: Callable[[], None] | None) -> None:
    """Initialise a worker process that ends with its parent."""
    exit_with_parent()
    if prepare is not None:
        prepare()
