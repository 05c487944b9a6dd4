"""One experiment, two backends, the same rows; real Flower, Ray and sockets."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, EventRow, RoundRow, SampleRow

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("simulations")]
QUICK = ["--set", "rounds=3", "--set", "workload.local_epochs=1"]
FEDBUFF = ("rounds=5", "strategy.name=FedBuff", "strategy.options.buffer_size=2", "strategy.options.concurrency=5")
BESIDE = (
    "fleet.3.serving={cost: resnet50-imagenet, rate_hz: 60, latency_s: 0.8}",
    "fleet.0.memory_mb=1800",
    "workload.memory.lower=width-first",
)
KINDS: dict[str, tuple[str, ...]] = {
    "rounds": tuple(part for option in BESIDE for part in ("--set", option)),
    "asynchronous": tuple(part for option in FEDBUFF for part in ("--set", option)),
}
"""What differs from ``QUICK`` in the runs that are held against each other."""


def fedge(root: Path, backend: str, out: Path, cwd: Path, *more: str) -> subprocess.CompletedProcess[str]:
    config = root / "experiments/configs/quickstart.yaml"
    command = [
        sys.executable,
        "-m",
        "experiments.cli.main",
        "run",
        str(config),
        "--backend",
        backend,
        "--out",
        str(out),
    ]
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
    return [row for kind in (RoundRow, ClientRow, EventRow, SampleRow) for row in read_rows(folder, kind)]


@dataclass(frozen=True, slots=True)
class Played:
    """One experiment on both backends; the sim run went on beside another one."""

    local: Path
    sim: Path


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, project_root: Path) -> dict[str, Played]:
    """Rounds in which two boards serve and two have little memory, and an asynchronous run; both at once.

    They run beside a folder called clients.
    """
    folder = tmp_path_factory.mktemp("backends")
    poisoned = folder / "elsewhere"
    (poisoned / "clients").mkdir(parents=True)
    (poisoned / "clients" / "__init__.py").write_text("raise SystemExit('the wrong clients')\n")
    (poisoned / "clients" / "app.py").write_text("raise SystemExit('the wrong app')\n")
    runs = {name: Played(folder / f"{name} local", folder / f"a {name} sim run") for name in KINDS}

    def simulated(name: str) -> subprocess.CompletedProcess[str]:
        return fedge(project_root, "sim", runs[name].sim, poisoned, *KINDS[name])

    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(simulated, KINDS))
    done += [fedge(project_root, "local", runs[name].local, folder, *more) for name, more in KINDS.items()]
    for process in done:
        assert process.returncode == 0, process.stdout + process.stderr
    return runs


@pytest.mark.parametrize("name", KINDS)
def test_local_and_sim_write_the_same_rows_and_model_also_with_two_runs_at_once(
    played: dict[str, Played], name: str
) -> None:
    local, sim = played[name].local, played[name].sim
    assert rows(local) == rows(sim)
    for written in ("run.yaml", "summary.json", "model.safetensors", "report.html"):
        assert (sim / written).stat().st_size > 0
    assert (local / "model.safetensors").read_bytes() == (sim / "model.safetensors").read_bytes()


def test_boards_that_serve_tell_of_it_and_the_others_do_not(played: dict[str, Played]) -> None:
    serving = {row.board for row in read_rows(played["rounds"].sim, ClientRow) if row.requests}
    assert serving == {"agx-orin-64gb-1", "agx-orin-64gb-2"}


def test_boards_with_little_memory_train_a_narrower_network_and_the_others_do_not(played: dict[str, Played]) -> None:
    narrow = {row.device for row in read_rows(played["rounds"].sim, ClientRow) if (row.width or 1.0) < 1.0}
    assert narrow == {"nano"}


def test_every_board_of_every_round_has_a_row_and_a_trace_and_every_model_a_row(played: dict[str, Played]) -> None:
    assert len(read_rows(played["rounds"].sim, ClientRow)) == 3 * 8
    assert len(read_rows(played["asynchronous"].sim, RoundRow)) == 5
    for runs in played.values():
        assert {sample.board for sample in read_rows(runs.sim, SampleRow)} >= {"nano-1", "agx-orin-64gb-2"}


def test_a_run_with_knowledge_writes_the_same_rows_on_both(
    played: dict[str, Played], project_root: Path, tmp_path: Path
) -> None:
    more = (*KINDS["rounds"], "--set", f"knowledge={played['rounds'].local}")
    for backend in ("local", "sim"):
        process = fedge(project_root, backend, tmp_path / backend, tmp_path, *more)
        assert process.returncode == 0, process.stdout + process.stderr

    assert rows(tmp_path / "local") == rows(tmp_path / "sim")
    first = [row for row in read_rows(tmp_path / "sim", ClientRow) if row.round == 1]
    assert len(first) == 8
    assert all(row.recalled_samples or row.error for row in first), "also beside a service and with little memory"
