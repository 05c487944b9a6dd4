"""Processes that share the clients of a local run: the same rows and model, no process left, nothing lost with one."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from experiments.backends.local_backend import MIN_CLIENT_ROUNDS, count_jobs, open_clients, run_local
from fedge.child_processes import count_cores
from fedge.experiment import Experiment, FleetEntry, WorkloadSpec
from fedge.import_path import ROOT
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, EventRow, RoundRow, SampleRow

FLEET = (FleetEntry(device="nano", count=2), FleetEntry(device="agx-orin-64gb", count=3))
SMALL = Experiment(backend="local", rounds=3, fleet=FLEET, workload=WorkloadSpec(local_epochs=0.2))


def run(folder: Path, jobs: int) -> Path:
    folder.mkdir()
    run_local(SMALL.model_copy(update={"jobs": jobs}), folder, lambda: None)
    return folder


def outcome(folder: Path) -> tuple[list[object], bytes]:
    rows = [row for kind in (RoundRow, ClientRow, EventRow, SampleRow) for row in read_rows(folder, kind)]
    return rows, (folder / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in one process."""
    return run(tmp_path_factory.mktemp("alone") / "run", jobs=1)


@pytest.mark.parametrize(
    ("rounds", "jobs", "expected"),
    [
        (3, None, 1),
        (MIN_CLIENT_ROUNDS // 5 - 1, None, 1),
        (MIN_CLIENT_ROUNDS // 5, None, min(count_cores(), 5)),
        (3, 2, 2),
        (3, 64, 5),
    ],
)
def test_a_run_has_the_processes_asked_for_or_those_that_are_worth_their_start(rounds, jobs, expected):
    assert count_jobs(SMALL.model_copy(update={"rounds": rounds, "jobs": jobs})) == expected


@pytest.mark.slow
def test_rows_and_model_do_not_depend_on_the_number_of_processes(alone, tmp_path):
    shared = run(tmp_path / "shared", jobs=2)

    assert outcome(shared) == outcome(alone)
    assert not multiprocessing.active_children()


def test_workers_have_the_environment_of_their_run_and_not_of_the_first_one(tmp_path, monkeypatch):
    for value in ("first", "second"):
        monkeypatch.setenv("FEDGE_TEST", value)
        with open_clients(SMALL.model_copy(update={"jobs": 2}), tmp_path) as clients:
            assert clients._pools[0].submit(os.getenv, "FEDGE_TEST").result() == value


def test_workers_find_fedge_and_torch_before_files_of_the_working_folder(tmp_path):
    for name in ("torch.py", "experiments/__init__.py", "fedge/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise SystemExit('the file of the working folder was imported')", "utf-8")
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL.model_dump(mode="json", exclude_defaults=True)), "utf-8")
    program = "from experiments.cli.main import main; main()"
    command = [sys.executable, "-P", "-c", program, "run", "small.yaml", "--jobs", "2", "--folder", "run"]

    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "was imported" not in done.stdout + done.stderr
