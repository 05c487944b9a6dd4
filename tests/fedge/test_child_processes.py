"""A child process is ended and reaped, also one that ignores SIGTERM; a call in one gives its result or a reason."""

import multiprocessing
import os
import signal
import subprocess
import sys

import pytest

from fedge.child_processes import end_process, run_in_child
from fedge.errors import BadInput, RunFailed

DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("import signal; print(flush=True); signal.pause()", -signal.SIGTERM),
        (DEAF, -signal.SIGKILL),
        ("print(flush=True)", 0),
    ],
)
def test_a_process_is_gone_afterwards(program, status):
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as output:
        output.readline()
        if status == 0:
            process.wait()

        end_process(process, 0.2)

    assert process.returncode == status


def halve(value: int) -> tuple[int, int]:
    if value < 0:
        os._exit(3)
    if value % 2:
        raise BadInput("value", str(value), "an even one")
    return value // 2, os.getpid()


def test_a_call_in_a_child_gives_its_result_and_leaves_no_process():
    half, pid = run_in_child(halve, 8)

    assert half == 4
    assert pid != os.getpid()
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("value", "reason"), [(3, "value: got 3; an even one"), (-1, "a worker process ended before its time")]
)
def test_a_call_that_fails_in_a_child_says_why(value, reason):
    with pytest.raises(RunFailed, match=reason):
        run_in_child(halve, value)
    assert not multiprocessing.active_children()
