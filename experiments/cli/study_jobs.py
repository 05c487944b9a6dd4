"""Plays a study's jobs on as many processes as this one has cores; a user's mistake in one of them stays one line."""

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
    """``play`` of every job, in the order of ``jobs``; ``told`` hears ``str(job)`` whenever one is done.

    ``play`` is a function of a module, jobs and results can be pickled. Raises the ``FedgeError`` of the first job that
    ends with one.
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
    """The result, or the text of an error on purpose: those cannot be pickled."""
    try:
        return play(job), None
    except FedgeError as error:
        return None, str(error)


def _unwrap_result(ended: tuple[R | None, str | None]) -> R:
    result, error = ended
    if error is not None or result is None:
        raise FedgeError(error or "a job gave nothing")
    return result
