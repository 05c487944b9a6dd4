"""Every process of a run ends with it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from experiments.backends.processes import Launch, ending, private

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
SCRIPT = "env -i sleep 1000 & echo $!; wait"


def test_a_child_that_lost_its_runs_mark_is_ended_as_well(tmp_path: Path) -> None:
    env = private(os.environ, tmp_path)
    launch = Launch(tmp_path, tmp_path, tmp_path, env, lambda: None)
    with ending(launch), subprocess.Popen(["/bin/sh", "-c", SCRIPT], env=env, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        launch.started.append(parent)
        child = Path("/proc") / parent.stdout.readline().decode().strip() / "stat"
        assert child.exists()
        with ending(launch):
            pass
        assert parent.wait(10) != 0

    assert not child.exists() or child.read_text().rpartition(")")[2].split()[0] in "ZX"
