"""One experiment, two backends, the same rows; real Flower, Ray and sockets."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedge.telemetry.rows import ClientRow, EventRow, RoundRow
from fedge.telemetry.store import read_rows

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("flower")]
QUICK = ["--set", "rounds=3", "--set", "workload.local_epochs=1"]


def fedge(root: Path, backend: str, out: Path, cwd: Path, *more: str) -> subprocess.CompletedProcess[str]:
    config = root / "experiments/configs/quickstart.yaml"
    command = [sys.executable, "-m", "experiments.cli", "run", str(config), "--backend", backend, "--out", str(out)]
    return subprocess.run(
        [*command, *QUICK, *more],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment(root),
    )


def environment(root: Path) -> dict[str, str]:
    import os

    return os.environ | {"PYTHONPATH": str(root), "PYTHONSAFEPATH": "1"}


def rows(folder: Path) -> list:
    return [row for kind in (RoundRow, ClientRow, EventRow) for row in read_rows(folder, kind)]


def test_local_and_sim_write_the_same_rows_also_beside_a_folder_called_clients(
    tmp_path: Path, project_root: Path
) -> None:
    poisoned = tmp_path / "elsewhere"
    (poisoned / "clients").mkdir(parents=True)
    (poisoned / "clients" / "__init__.py").write_text("raise SystemExit('the wrong clients')\n")
    (poisoned / "clients" / "app.py").write_text("raise SystemExit('the wrong app')\n")

    local = fedge(project_root, "local", tmp_path / "local", tmp_path)
    sim = fedge(project_root, "sim", tmp_path / "a sim run", poisoned)

    assert (local.returncode, sim.returncode) == (0, 0), local.stderr + sim.stdout + sim.stderr
    assert len(read_rows(tmp_path / "local", ClientRow)) == 3 * 8
    assert rows(tmp_path / "local") == rows(tmp_path / "a sim run")
    for name in ("run.yaml", "summary.json", "model.safetensors", "report.html"):
        assert (tmp_path / "a sim run" / name).stat().st_size > 0
    local_model, sim_model = ((tmp_path / run / "model.safetensors").read_bytes() for run in ("local", "a sim run"))
    assert local_model == sim_model


def test_two_runs_at_once_do_not_disturb_each_other(tmp_path: Path, project_root: Path) -> None:
    def run(seed: int) -> subprocess.CompletedProcess[str]:
        return fedge(project_root, "sim", tmp_path / f"seed-{seed}", tmp_path, "--seed", str(seed), "--set", "rounds=1")

    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(run, (1, 2)))

    assert [process.returncode for process in done] == [0, 0], [process.stderr for process in done]
    assert all(len(read_rows(tmp_path / f"seed-{seed}", ClientRow)) == 8 for seed in (1, 2))
    assert rows(tmp_path / "seed-1") != rows(tmp_path / "seed-2")


def test_another_seed_is_another_run(tmp_path: Path, project_root: Path) -> None:
    for name, seed in (("one", "1"), ("again", "1"), ("two", "2")):
        done = fedge(project_root, "local", tmp_path / name, tmp_path, "--seed", seed, "--set", "rounds=1")
        assert done.returncode == 0, done.stderr

    assert rows(tmp_path / "one") == rows(tmp_path / "again") != rows(tmp_path / "two")
