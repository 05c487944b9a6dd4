"""``fedge profile`` on the board at hand: its bench, the endless training behind it, and a table made for real."""

import importlib.util
import json
import math
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from contracts.desk import desk

from fedge.characterisation import worker_bench
from fedge.characterisation.board_profile import ProfilingCampaign, ProfilingRequest, build_header
from fedge.characterisation.profiling_journal import open_profiling_journal
from fedge.characterisation.worker_bench import (
    RESTART_STEPS,
    EndlessTraining,
    build_real_bench,
    open_worker_bench,
    resolve_workload,
    wait_for_board,
)
from fedge.client import worker_training
from fedge.client.run_claim import CLAIM_FILE, write_claim
from fedge.clock import SimulatedClock
from fedge.costs.cost_priors import build_priors
from fedge.devices.catalogue import load_catalogue
from fedge.devices.local_board import NodeSettings
from fedge.devices.tables.mode_table import read_mode_table
from fedge.errors import BadInput, BoardError, WorkerFailed
from fedge.experiment import WorkloadSpec
from fedge.knowledge.evidence_files import describe_file
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
        command += ["--max-mode-s", f"{LIMIT_S:g}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=400)
        after = power.get()
        power.close()

    assert done.returncode == 0, done.stderr
    table = read_mode_table(out)
    assert len(table.modes) == 3
    assert (table.device, table.workload, table.batch_size) == ("xavier-nx", "digits-cnn", 16)
    assert (table.power_w > 0).all()
    assert (table.label, describe_file(out).label) == ("estimated", "estimated")
    record = json.loads((tmp_path / "xavier-nx" / "train" / "digits-cnn.csv.json").read_text(encoding="utf-8"))
    assert (record["label"], record["emulated"], record["recorded"]) == ("estimated", True, True)  # no board
    assert "date" in record
    assert 10.0 < record["peak_mb"] < 10_000.0
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


@pytest.mark.parametrize(
    ("name", "folder", "message"),
    [
        ("mine.py", None, "mine.py, whose samples cannot be generated; data_folder"),
        ("shakespeare-lstm", None, "shakespeare-lstm, whose samples cannot be generated; data_folder"),
        ("nothing.py", "/data", "nothing.py: got a task file that cannot be read"),
        ("no-such-net", "/data", "--workload: got 'no-such-net'"),
    ],
)
def test_a_task_that_cannot_be_profiled_is_refused_by_name(name, folder, message):
    with (
        pytest.raises(BadInput, match=re.escape(message)),
        open_worker_bench(NodeSettings(board="here", data_folder=folder), Workload(name, 16), 0),
    ):
        pytest.fail("the bench counts as there")


def test_a_claimed_board_is_waited_for_within_the_limit_and_refused_without_one(tmp_path):
    settings, notes = NodeSettings(board="here", state_dir=tmp_path, power_socket=str(tmp_path / "none")), list[str]()
    clock = SimulatedClock()
    write_claim(tmp_path / CLAIM_FILE, "other run", 100.0, 1000.0)

    def wait(limit_s: float) -> float:
        return wait_for_board(settings, limit_s, notes.append, clock=clock, wall_s=lambda: 1000.0 + clock.now_s())

    for limit_s in (0.0, 50.0):
        with pytest.raises(BoardError, match='here works for run "other run"'):
            wait(limit_s)
    assert clock.now_s() == pytest.approx(50.0, abs=5.0)
    waited_s = wait(math.inf)

    assert 100.0 <= clock.now_s() < 106.0
    assert waited_s == pytest.approx(50.0, abs=6.0)
    assert [note.partition(" (")[0] for note in notes] == ['waiting: here works for run "other run"'] * 2
    assert wait(0.0) == 0.0


@pytest.fixture
def bench(fake):
    board, _ = fake()
    board.total_power = "POM_5V_IN + EXTRA"
    work = resolve_workload("resnet18-imagenet", None)
    given = {"clock": board.clock, "seed": 3, "software": {"torch": "1.10"}}
    return board, build_real_bench(board, work, board.done.append, lambda: board.temperature_c, **given)


def test_a_campaign_runs_the_trainer_and_says_that_it_measured(bench, tmp_path):
    board, one = bench
    wanted = ProfilingRequest(4, "active", seed=3)
    header = build_header(one, wanted)
    with open_profiling_journal(tmp_path / "j", header) as journal:
        campaign = ProfilingCampaign(one, wanted, journal)
        while (mode := campaign.choose_next_mode()) is not None:
            campaign.measure_and_record(mode)
        done = journal.past.done

    assert len(done) == 4
    assert done[0].mode == one.device.spec.maxn
    assert sum(board.done) == sum(board.chunks) > 0
    assert (header.label, header.emulated, header.total_power) == ("measured", False, "POM_5V_IN + EXTRA")
    assert header.software.keys() == {"fedge", "torch"}


@pytest.mark.parametrize("batch_size", [16, 64])
def test_what_is_believed_beforehand_is_of_the_batch_size_that_is_measured(fake, batch_size):
    board, _ = fake()
    work = resolve_workload("resnet18-imagenet", batch_size)
    known = build_real_bench(board, work, board.done.append, lambda: None, clock=SimulatedClock()).knowledge
    wanted = build_priors(board.spec, work.name, load_catalogue(), batch_size=batch_size, layered=False)
    assert [p.time.tolist() for p in known.priors] == [p.coefficients.time.tolist() for p in wanted]


def test_a_workload_has_its_own_batch_size_or_that_of_an_experiment():
    assert resolve_workload("resnet18-imagenet", None) == Workload("resnet18-imagenet", 16)
    assert resolve_workload("mine", 4) == Workload("mine", 4)
    assert resolve_workload("mine", None) == Workload("mine", WorkloadSpec().batch_size)
    with pytest.raises(BadInput, match="--batch-size: got 0"):
        resolve_workload("mine", 0)
