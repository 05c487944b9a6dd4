"""The example app runs under plain ``flwr run``, and its rows are those of a run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the example trains with torch")

from contracts.processes import program

from experiments.backends.run_processes import RUN_MARK, find_marked_processes
from experiments.backends.simulation import find_free_port, simulation_environment
from experiments.report.run.loaded_runs import load_run

# Ray is not imported here: it reads the tokens of private sessions, which other tests start, only once per process.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.xdist_group("flower"),
    pytest.mark.skipif(find_spec("ray") is None, reason="Flower's simulation runs on Ray"),
]

NODES, ROUNDS = 2, 2
RUN_LIMIT_S = 600


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Return an environment with a SuperLink of its own, which ends with the test."""
    env = simulation_environment(os.environ, tmp_path / "app", tmp_path / "state")
    env["FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"] = str(find_free_port())
    Path(env["FLWR_HOME"]).mkdir(parents=True)
    yield env
    for pid in find_marked_processes(env[RUN_MARK]):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_flwr_run_runs_it(environment: dict[str, str], project_root: Path, tmp_path: Path) -> None:
    shutil.copytree(project_root / "examples" / "flower-app", tmp_path / "app")
    words = [program("flwr"), "run", ".", "local", "--stream", "--federation-config", f"num-supernodes={NODES}"]
    config = f'folder="{tmp_path / "run"}" num-server-rounds={ROUNDS}'

    done = subprocess.run(
        [*words, "-c", config],
        cwd=tmp_path / "app",
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT_S,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    run = load_run(tmp_path / "run")
    assert [row.done for row in run.rounds] == [NODES] * ROUNDS
    assert set(run.device_by_board) == {"nano-1", "agx-orin-64gb-1"}
    assert run.summary["energy_j"] > 0
