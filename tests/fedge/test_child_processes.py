"""A child process is ended and reaped, also one that ignores SIGTERM."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from fedge.child_processes import end_process

DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("import signal; print(flush=True); signal.pause()", -signal.SIGTERM),
        (DEAF, -signal.SIGKILL),
        ("print(flush=True)", 0),
    ],
)
def test_a_process_is_gone_afterwards(program: str, status: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as output:
        output.readline()
        if status == 0:
            process.wait()

        end_process(process, 0.2)

    assert process.returncode == status
