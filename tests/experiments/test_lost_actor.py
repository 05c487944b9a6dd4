"""A simulated run whose actor is killed ends with its cause, and goes on as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from contracts.launching import FEDGE
from contracts.processes import wait_for

from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, RoundRow

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("simulations")]
ROUNDS = 5
LIMIT_S = 600.0


def start_run(config: Path, folder: Path, backend: str) -> subprocess.Popen[str]:
    command = [*FEDGE, "run", str(config), "--backend", backend, "--folder", str(folder), "--set", f"rounds={ROUNDS}"]
    environment = os.environ | {"FLWR_HOME": str(folder.parent / "unused")}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def find_actors(folder: Path) -> list[int]:
    """Return the processes of the run's actors; their title replaces their environment, but not their folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            here = str((process / "cwd").readlink())
            if b"ClientAppActor" in (process / "cmdline").read_bytes() and here.startswith(str(folder)):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def test_a_run_whose_actor_was_killed_says_so_and_resumes_to_the_rows_of_an_undisturbed_run(
    tmp_path: Path, project_root: Path
) -> None:
    config = project_root / "experiments/configs/quickstart.yaml"
    whole, disturbed = tmp_path / "whole", tmp_path / "disturbed"
    with start_run(config, disturbed, "sim") as run:
        wait_for(lambda: run.poll() is not None or len(read_rows(disturbed, RoundRow)) >= 2, "two rounds", LIMIT_S)
        actors = find_actors(disturbed)
        assert actors
        os.kill(actors[0], signal.SIGKILL)
        said, _ = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 1, said
    assert "a process that emulates clients ended" in said
    assert "fedge resume" in said
    assert len(read_rows(disturbed, RoundRow)) < ROUNDS

    resumed = subprocess.run(
        [*FEDGE, "resume", str(disturbed)], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert resumed.returncode == 0, resumed.stderr
    with start_run(config, whole, "local") as run:
        said, _ = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 0, said
    for kind in (RoundRow, ClientRow):
        assert read_rows(disturbed, kind) == read_rows(whole, kind)
