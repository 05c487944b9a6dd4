"""Jobs come back in their order from fresh processes, and an error leaves none of them behind."""

from __future__ import annotations

import multiprocessing
import os
import time
from functools import partial

import pytest

from fedge.errors import BadInput, FedgeError, RunFailed
from fedge.studies.process_pool import run_in_processes, run_jobs

_prepared: list[str] = []


def place(job: int) -> tuple[int, int, list[str]]:
    time.sleep(0.05 * (3 - job))
    return job, os.getpid(), list(_prepared)


def die(_: int) -> None:
    os._exit(3)


def test_results_have_the_jobs_order_and_each_process_was_prepared_once() -> None:
    told: list[int] = []

    found = run_in_processes(place, [1, 3, 2], 2, lambda job, _: told.append(job), partial(_prepared.append, "ready"))

    assert [job for job, _, _ in found] == [1, 3, 2]
    assert sorted(told) == [1, 2, 3]
    assert os.getpid() not in {pid for _, pid, _ in found}
    assert not multiprocessing.active_children()


def test_an_error_of_the_listener_ends_all_processes() -> None:
    def fail(job: int, _: object) -> None:
        raise KeyError(job)

    with pytest.raises(KeyError):
        run_in_processes(place, [1, 2, 3], 2, fail)

    deadline_s = time.monotonic() + 10.0
    while multiprocessing.active_children() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not multiprocessing.active_children()


def test_a_process_that_dies_is_told_with_a_reason() -> None:
    with pytest.raises(RunFailed, match="worker process ended"):
        run_in_processes(die, [1, 2], 2)


def _square(value: int) -> int:
    if value < 0:
        raise BadInput("value", str(value), "a positive one")
    return value * value


def test_jobs_are_answered_in_their_order_on_any_number_of_processes() -> None:
    told: list[str] = []

    assert run_jobs(_square, [3, 1, 2], told.append, workers=2) == [9, 1, 4]
    assert sorted(told) == ["1", "2", "3"]
    assert run_jobs(_square, [3, 1, 2], told.append, workers=1) == [9, 1, 4]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_jobs_mistake_is_told_as_it_is(workers: int) -> None:
    with pytest.raises(FedgeError, match="value: got -1; a positive one"):
        run_jobs(_square, [3, -1], lambda _: None, workers=workers)
