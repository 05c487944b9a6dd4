"""``fedge profile`` on the board at hand: the real daemon, sensors and worker make a table in the normal form."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from contracts.desk import desk

from fedge.characterisation import worker_bench
from fedge.characterisation.worker_bench import RESTART_STEPS, EndlessTraining, open_worker_bench
from fedge.client import worker_training
from fedge.devices.node_settings import NodeSettings
from fedge.devices.tables.mode_table import read_mode_table
from fedge.errors import WorkerFailed
from fedge.powerd.powerd_client import PowerdClient as Power
from fedge.types import Workload
from fedge.worker.worker_client import WorkerError

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 4.0
"""Too short for any mode to settle, so that the test's length does not depend on how even the machine is."""


@pytest.mark.slow
@pytest.mark.xdist_group("desk")
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the worker trains with torch")
def test_a_board_is_profiled_into_a_table_and_left_as_found(tmp_path):
    with desk("xavier-nx", tmp_path) as board:
        settings = tmp_path / "node.yaml"
        settings.write_text(json.dumps(board.settings.model_dump(mode="json")), encoding="utf-8")
        power = Power(board.settings.power_socket)
        before = power.get()
        out = tmp_path / "xavier-nx" / "train" / "digits-cnn.csv"
        out.parent.mkdir(parents=True)
        command = [sys.executable, "-m", "experiments.cli.main", "profile", "--settings", str(settings), "--modes", "3"]
        command += ["--workload", "digits-cnn", "--batch-size", "16", "--out", str(out), "--json"]
        command += ["--limit-s", f"{LIMIT_S:g}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=400)
        after = power.get()
        power.close()

    assert done.returncode == 0, done.stderr
    table = read_mode_table(out)
    assert len(table.modes) == 3
    assert (table.device, table.workload, table.batch_size) == ("xavier-nx", "digits-cnn", 16)
    assert (table.power_w > 0).all()
    record = json.loads((tmp_path / "xavier-nx" / "train" / "digits-cnn.csv.json").read_text(encoding="utf-8"))
    assert record["label"] == "emulated"  # a recorded folder is no board
    assert record["method"]["limit_s"] == LIMIT_S < record["method"]["least_s"]
    assert json.loads(done.stdout)["not_settled"] == 3
    assert all(mode["note"].startswith("not settled: ") for mode in record["modes"])
    assert after["limits"] == before["limits"]
    assert after["lease"] is None


class Trainer:
    """A worker in memory that notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fails: WorkerError | None = None

    def train(self, begin: Any = None, arrays: Any = None, share: Any = None, steps: int = 0) -> Any:
        self.asked.append("begin" if begin else f"{steps}")
        if steps and self.fails:
            raise self.fails
        return {"done": steps, "stopped": None}, {}

    def status(self) -> Any:
        raise WorkerError("unreachable", "no answer to status; is the worker stopped? restart it")

    def load(self, task: Any, data: Any) -> Any:
        return {"samples": 8}

    def close(self) -> None: ...


def test_a_training_is_begun_before_the_mode_is_set_and_never_in_the_middle_of_metered_work():
    trainer = Trainer()
    work = EndlessTraining(trainer, lambda: trainer.asked.append("ready"), 16, 0)

    work.prepare()
    for _ in range(3):
        work.advance(RESTART_STEPS)
        work.advance(7)
    assert trainer.asked == ["ready", "begin", *3 * [f"{RESTART_STEPS}", "7"]]
    work.prepare()
    work.advance(1)
    work.prepare()
    work.advance(1)

    assert trainer.asked[8:] == ["ready", "begin", "1", "1"]


def test_after_a_failure_the_worker_is_made_ready_and_a_training_is_begun_anew():
    trainer = Trainer()
    work = EndlessTraining(trainer, lambda: trainer.asked.append("ready"), 16, 0)
    work.prepare()
    trainer.fails = WorkerError("oom", "memory ran out")
    with pytest.raises(WorkerFailed, match="memory ran out"):
        work.advance(3)
    trainer.fails = None

    work.prepare()
    work.advance(3)

    assert trainer.asked == ["ready", "begin", "3", "ready", "begin", "3"]


def test_a_worker_that_does_not_tell_its_status_is_an_error_of_the_board(monkeypatch):
    @contextmanager
    def here(place: Any) -> Any:
        yield SimpleNamespace()

    for module in (worker_bench, worker_training):
        monkeypatch.setattr(module, "WorkerClient", lambda *_: Trainer())
    monkeypatch.setattr(worker_bench, "open_local_board", here)

    with (
        pytest.raises(WorkerFailed, match="no answer to status"),
        open_worker_bench(NodeSettings(board="here"), Workload("digits-cnn", 16), 0),
    ):
        pytest.fail("the bench counts as there")
