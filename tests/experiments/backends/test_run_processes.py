"""Every process of a run ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from contracts.processes import wait_for

from experiments.backends.run_processes import Launch, end_processes_on_exit, private_environment

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
LOST = "env -i sleep 1000 & echo $!; wait"
# Deaf to SIGTERM, and without its mark only once the run's end has begun.
LOST_LATE = "(trap '' TERM; sleep 0.5; exec env -i sleep 1000) & echo $!; wait"


def alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("script", [LOST, LOST_LATE])
def test_a_child_that_lost_its_runs_mark_is_ended_as_well(tmp_path, script):
    env = private_environment(os.environ, tmp_path)
    launch = Launch(tmp_path, tmp_path, tmp_path, env, lambda: None)
    parent = subprocess.Popen(["/bin/sh", "-c", script], env=env, stdout=subprocess.PIPE)
    with end_processes_on_exit(launch):
        launch.started.append(parent)
        child = int(parent.stdout.readline())
        assert alive(child)

    assert not alive(child)
    assert parent.wait(10) != 0
    parent.stdout.close()


KILLED_LAUNCHER = """
import os, signal, subprocess, sys, time
from pathlib import Path
from experiments.backends.run_processes import Launch, end_processes_on_exit, private_environment
folder = Path(sys.argv[1])
env = private_environment(os.environ, folder)
with end_processes_on_exit(Launch(folder, folder, folder, env, lambda: None)):
    child = subprocess.Popen(["sleep", "1000"], env=env, start_new_session=True)
    print(child.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_processes_of_a_killed_launcher_end(tmp_path):
    command = [sys.executable, "-c", KILLED_LAUNCHER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as launcher:
        child = int(launcher.stdout.readline())
    assert launcher.returncode == -signal.SIGKILL
    wait_for(lambda: not alive(child), "the child of the killed launcher ended", 60.0)
