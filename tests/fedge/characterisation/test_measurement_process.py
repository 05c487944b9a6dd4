"""A measuring program as a process: heard, given up, ended with all that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedge.characterisation.measurement_process import run_program
from fedge.errors import BoardError

LIMIT_S = 20.0
WITH_A_CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print('{"pids": [%d, %d]}' % (__import__("os").getpid(), child.pid), flush=True)
time.sleep(600)
"""
STARTER = """
import sys
from fedge.characterisation.measurement_process import run_program
run_program([sys.executable, "-c", sys.argv[1]], lambda said: print(*said["pids"], flush=True))
"""


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def gone(pid: int) -> bool:
    """Whether a process has ended, within the limit."""
    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        try:
            state = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_lines_of_json_are_heard_and_others_passed_over() -> None:
    heard: list[Mapping[str, Any]] = []
    run_program(python('print(\'a word\\n{"step": 1}\\n[2]\\n{"step": 2}\')'), heard.append)
    assert heard == [{"step": 1}, {"step": 2}]


def test_the_programs_own_reason_is_the_errors() -> None:
    with pytest.raises(BoardError, match=r"^no such folder$"):
        run_program(python('print(\'{"failed": "no such folder"}\'); raise SystemExit(1)'), lambda said: None)


def test_without_a_reason_the_last_word_on_stderr_is_told() -> None:
    with pytest.raises(BoardError, match=r"exit code 1: ZeroDivisionError: division by zero"):
        run_program(python("1 / 0"), lambda said: None)


def test_a_killed_program_may_have_run_out_of_memory() -> None:
    with pytest.raises(BoardError, match="was killed; memory may have run out"):
        run_program(python("import os; os.kill(os.getpid(), 9)"), lambda said: None)


def test_what_cannot_be_started_says_so() -> None:
    with pytest.raises(BoardError, match="cannot be started: No such file"):
        run_program(["/no/such/program"], lambda said: None)


def test_a_program_that_falls_silent_is_ended_with_its_children() -> None:
    pids: list[int] = []
    with pytest.raises(BoardError, match=r"nothing was heard of the measuring program for 0\.5 s"):
        run_program(python(WITH_A_CHILD), lambda said: pids.extend(said["pids"]), silence_s=0.5)
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)


def test_a_program_that_speaks_is_not_given_up() -> None:
    run_program(
        python("import time\nfor k in range(8): print('{}', flush=True); time.sleep(0.1)"),
        lambda _: None,
        silence_s=0.7,
    )


def test_whatever_goes_wrong_here_ends_the_program_with_its_children() -> None:
    pids: list[int] = []

    def heard(said: Mapping[str, Any]) -> None:
        pids.extend(said["pids"])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_program(python(WITH_A_CHILD), heard)
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)


def test_ctrl_c_ends_the_program_with_its_children() -> None:
    starter = [sys.executable, "-c", STARTER, WITH_A_CHILD]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    with subprocess.Popen(starter, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as outer:
        assert outer.stdout is not None
        killer = threading.Timer(LIMIT_S, outer.kill)
        killer.start()
        pids = [int(pid) for pid in outer.stdout.readline().split()]
        outer.send_signal(signal.SIGINT)
        outer.wait(LIMIT_S)
        killer.cancel()
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)
