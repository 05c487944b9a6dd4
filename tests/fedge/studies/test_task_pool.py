"""Tasks give equal outcomes in this process and on Ray, are repeated if a worker is lost, and leave nothing behind."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedge.child_processes import THREAD_VARIABLES
from fedge.errors import BadInput, FedgeError, RunFailed
from fedge.import_path import ROOT
from fedge.studies import ray_session, task_pool
from fedge.studies.ray_session import ADDRESS_VARIABLE, LOOPBACK_VARIABLE, open_ray
from fedge.studies.task_pool import TaskOptions, describe_package, run_jobs, run_tasks


@pytest.fixture(scope="module")
def ray_of_two_cores() -> Iterator[None]:
    """One Ray for all tests of this file: it takes seconds to start."""
    with open_ray(2):
        yield


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.slow)], ids=["here", "ray"])
def workers(request: pytest.FixtureRequest) -> int:
    """A number of workers: 1 is this process, 2 is Ray."""
    if request.param > 1:
        request.getfixturevalue("ray_of_two_cores")
    return int(request.param)


def square(value: int) -> int:
    if value < 0:
        raise BadInput("value", str(value), "a positive one")
    return value * value


def add(known: dict[str, int], name: str) -> int:
    return known[name]


def test_results_have_the_order_of_the_jobs(workers):
    reported: list[str] = []

    assert run_jobs(square, [3, 1, 2], reported.append, workers) == [9, 1, 4]
    assert sorted(reported) == ["1", "2", "3"]


def test_a_function_may_hold_what_all_jobs_share(workers):
    assert run_jobs(partial(add, {"a": 1, "b": 2}), ["b", "a"], lambda _: None, workers) == [2, 1]


def test_an_error_of_a_job_is_that_of_the_study(workers):
    with pytest.raises(FedgeError, match="value: got -1; a positive one"):
        run_jobs(square, [3, -1], lambda _: None, workers=workers)


def test_a_failed_task_is_an_outcome_and_the_others_go_on(workers):
    outcomes = {one.place: one for one in run_tasks(square, [3, -1, 2], TaskOptions(workers))}

    assert {place: one.result for place, one in outcomes.items()} == {0: 9, 1: None, 2: 4}
    assert str(outcomes[1].error) == "value: got -1; a positive one"


def fail(job: int) -> None:
    raise KeyError(job)


def test_a_mistake_of_the_program_stays_what_it_is(workers):
    with pytest.raises(KeyError):
        run_jobs(fail, [1, 2], lambda _: None, workers)


def test_nothing_is_started_for_no_job():
    assert run_jobs(square, [], lambda _: None) == []


# On Ray --------------------------------------------------------------------------------------------------------------


def read_environment(_: int) -> tuple[int, int, dict[str, str | None]]:
    return os.getpid(), os.nice(0), {name: os.environ.get(name) for name in THREAD_VARIABLES}


@pytest.mark.slow
def test_a_task_runs_in_another_process_with_one_thread_and_the_same_priority(ray_of_two_cores):
    for pid, niceness, threads in run_jobs(read_environment, [1, 2], lambda _: None, 2):
        assert pid != os.getpid()
        assert niceness == os.nice(0)
        assert set(threads.values()) == {"1"}


def die_at_first(folder: Path, job: int) -> int:
    """Count this attempt; the first one of job 2 ends its process."""
    attempt = len(list(folder.glob(f"{job}-*")))
    (folder / f"{job}-{attempt}").touch()
    if job == 2 and attempt == 0:
        os._exit(3)
    return job


@pytest.mark.slow
def test_only_the_task_of_a_lost_process_is_repeated(ray_of_two_cores, tmp_path):
    assert run_jobs(partial(die_at_first, tmp_path), [1, 2, 3], lambda _: None, 2) == [1, 2, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1-0", "2-0", "2-1", "3-0"]


def die(_: int) -> None:
    os._exit(3)


@pytest.mark.slow
def test_a_task_that_ends_its_process_again_and_again_is_given_up(ray_of_two_cores):
    outcomes = list(run_tasks(die, [1, 2], TaskOptions(2, retries=0)))

    assert len(outcomes) == 2
    for outcome in outcomes:
        with pytest.raises(RunFailed, match="worker process ended before its time"):
            outcome.unwrap()


KILLING_RAY = """
import os, signal, sys, time
from contextlib import closing
from pathlib import Path
from fedge.errors import RunFailed
from fedge.studies import ray_session
from fedge.studies.task_pool import TaskOptions, run_tasks

ray_session.HEAD_GONE_S = 1.0
with closing(run_tasks(time.sleep, [0.2] * 1000, TaskOptions(2))) as outcomes:
    next(outcomes)
    children = [pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]
    command = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\\0")[0].decode() for pid in children}
    os.kill(next(pid for pid, program in command.items() if program.endswith(sys.argv[1])), signal.SIGKILL)
    try:
        for _ in outcomes:
            pass
    except RunFailed as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "cause"),
    [("gcs_server", r"Ray's head at 127\.0\.0\.1:\d+ died"), ("raylet", "Ray on this machine died")],
)
def test_a_ray_that_dies_midway_ends_the_tasks_with_its_cause_and_a_cure(program, cause):
    command = [sys.executable, "-c", KILLING_RAY, program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stderr[-2000:]
    assert re.fullmatch(cause + r" \(out of memory\?\); call this again\n", done.stdout)


def sleep(_: int) -> None:
    time.sleep(600)


@pytest.mark.slow
def test_closing_the_outcomes_ends_the_tasks(ray_of_two_cores):
    outcomes = run_tasks(lengthen, [0, 1, 2], TaskOptions(2))
    assert next(outcomes).place == 0
    outcomes.close()

    assert run_jobs(square, [5, 6], lambda _: None, 2) == [25, 36]


def lengthen(job: int) -> int:
    return sleep(job) or job if job else job


@pytest.mark.slow
def test_a_task_that_no_machine_can_hold_is_refused(ray_of_two_cores):
    with pytest.raises(BadInput, match=r"resources of a task: got 2 cores, 9 GPUs and 0 MB; at most \d+ cores, \d+ GP"):
        list(run_tasks(square, [1, 2], TaskOptions(2, cpus=2, gpus=9)))


@pytest.mark.slow
def test_another_fedge_on_a_machine_is_told_with_both_versions(ray_of_two_cores, monkeypatch):
    own = describe_package()
    monkeypatch.setattr(task_pool, "describe_package", lambda: "0.0.9 (sources 12345678)")

    with pytest.raises(BadInput) as error:
        run_jobs(square, [1, 2], lambda _: None, 2)

    assert error.value.got.startswith(f"{own} on ")
    assert error.value.right == "0.0.9 (sources 12345678), as in this process"


def test_a_cluster_that_is_not_there_is_told(monkeypatch):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setattr(ray_session, "_is_connected", lambda: False)
    monkeypatch.setenv(LOOPBACK_VARIABLE, "0")
    monkeypatch.setenv(ADDRESS_VARIABLE, f"127.0.0.1:{port}")

    with pytest.raises(BadInput, match=r"RAY_ADDRESS: got 127\.0\.0\.1:\d+(, for Ray [\d.:]+)?, where nothing answers"):
        run_jobs(square, [1, 2], lambda _: None)


def test_the_version_names_the_release_and_the_sources():
    import fedge

    assert describe_package().startswith(f"{fedge.__version__} (sources ")


def test_the_task_function_needs_no_fedge_to_say_that_there_is_none(monkeypatch):
    import importlib

    from ray import cloudpickle

    task: Callable[..., Any] = cloudpickle.loads(cloudpickle.dumps(task_pool._make_remote_function()))

    def find_nothing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", find_nothing)
    kind, found = task([None], b"", "0.1.0", "note")
    assert kind == "package"
    assert found.startswith("not installed on ")
