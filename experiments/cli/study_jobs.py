"""Runs a study's jobs in parallel processes; a user's error in one of them remains a one-line message."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from fedge.errors import FedgeError
from fedge.studies.process_pool import run_in_processes

J = TypeVar("J")
R = TypeVar("R")


def run_jobs(
    play: Callable[[J], R], jobs: Sequence[J], told: Callable[[str], None], workers: int | None = None
) -> list[R]:
    """Run all jobs in parallel.

    Args:
        play: Module-level function that runs one job.
        jobs: The jobs; they and their results must be picklable.
        told: Called with ``str(job)`` whenever a job has finished.
        workers: Number of processes; by default the cores available to this process.

    Returns:
        The results in the order of ``jobs``.

    Raises:
        FedgeError: That of the first job that fails with one.
    """
    count = min(workers or len(os.sched_getaffinity(0)), len(jobs))
    if count < 2:
        return [_report_done(play(job), job, told) for job in jobs]

    def done(job: J, ended: tuple[R | None, str | None]) -> None:
        _unwrap_result(ended)
        told(str(job))

    return [_unwrap_result(ended) for ended in run_in_processes(partial(_run_catching, play), jobs, count, done)]


def _report_done(result: R, job: J, told: Callable[[str], None]) -> R:
    told(str(job))
    return result


def _run_catching(play: Callable[[J], R], job: J) -> tuple[R | None, str | None]:
    """Return the result or the text of an expected error, because such errors cannot be pickled."""
    try:
        return play(job), None
    except FedgeError as error:
        return None, str(error)


def _unwrap_result(ended: tuple[R | None, str | None]) -> R:
    result, error = ended
    if error is not None or result is None:
        raise FedgeError(error or "a job gave nothing")
    return result
