"""Plain ``flwr run`` runs the quickstart in this repository, and the example app; their rows are those of a run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the example trains with torch")

from contracts.processes import program

from experiments.backends import launcher
from experiments.backends.plain_flower_app import load_run_config
from experiments.backends.run_processes import RUN_MARK, find_marked_processes
from experiments.backends.sim_backend import find_free_port, simulation_environment
from experiments.report.run.loaded_runs import load_run
from experiments.spec.experiment_loader import load_experiment
from fedge.errors import BadInput
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, RoundRow

# Ray is not imported here: it reads the tokens of private sessions, which other tests start, only once per process.
NODES, ROUNDS, RUN_LIMIT_S = 2, 2, 1200
QUICKSTART = Path("experiments/configs/quickstart.yaml")


def test_real_boards_are_refused(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text("backend: fleet\nfleet: [nano]\n", encoding="utf-8")

    with pytest.raises(BadInput, match=r"fleet.yaml: got real boards; .*`fedge run`"):
        load_run_config({"experiment": str(path), "folder": ""})


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


def flwr_run(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that starts Flower's simulation."""
    without_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Flower's simulation runs on Ray")
    return pytest.mark.slow(pytest.mark.long(pytest.mark.xdist_group("flower")(without_ray(test))))


def run_flwr(environment: dict[str, str], app: Path, *words: str) -> str:
    command = [program("flwr"), "run", ".", "local", "--stream", *words]
    done = subprocess.run(
        command, cwd=app, env=environment, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@flwr_run
def test_this_repository_runs_the_quickstart(environment, project_root, tmp_path):
    del environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"]  # as it is for a user
    config = tomllib.loads((project_root / "pyproject.toml").read_text("utf-8"))["tool"]["flwr"]["app"]["config"]
    said = run_flwr(environment, project_root, "-c", f'folder="{tmp_path / "run"}"')
    if "uv sync failed" in said:
        pytest.skip("Flower needs a package index to look for dependencies")
    experiment = load_experiment(project_root / QUICKSTART, ["backend=local"])
    launcher.start_run(experiment, tmp_path / "local", lambda: None)

    assert config == {"experiment": str(QUICKSTART), "folder": ""}
    assert "No additional application dependencies needed installation" in said
    for record in (RoundRow, ClientRow):
        assert read_rows(tmp_path / "run", record) == read_rows(tmp_path / "local", record)


@flwr_run
def test_the_example_app_runs_and_a_second_run_starts_from_what_the_first_one_measured(
    environment, project_root, tmp_path
):
    shutil.copytree(project_root / "examples" / "flower-app", tmp_path / "app")
    environment["HOME"] = str(tmp_path / "home")
    for name in ("cold", "warm"):
        config = f'folder="{tmp_path / name}" num-server-rounds={ROUNDS}'
        run_flwr(environment, tmp_path / "app", "--federation-config", f"num-supernodes={NODES}", "-c", config)

    run = load_run(tmp_path / "cold")
    assert [row.done for row in run.rounds] == [NODES] * ROUNDS
    assert set(run.device_by_board) == {"nano-1", "agx-orin-64gb-1"}
    assert run.summary["energy_j"] > 0
    cold, warm = (read_rows(tmp_path / name, ClientRow) for name in ("cold", "warm"))
    assert {row.recalled_samples for row in cold} == {0}
    assert all(row.recalled_samples for row in warm)
