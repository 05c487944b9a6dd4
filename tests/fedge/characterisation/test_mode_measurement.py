"""One mode is measured in chunks until it has settled, within a limit, and once more if it throttled."""

import dataclasses
import importlib.util
import itertools
import json
import math
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from contracts.desk import desk
from contracts.device import WORK, DeviceContract
from hypothesis import given
from hypothesis import strategies as st

from fedge.characterisation import mode_measurement
from fedge.characterisation.board_profile import ProfilingCampaign, ProfilingRequest, build_header
from fedge.characterisation.mode_measurement import (
    BLIND_REST_S,
    MAX_REST_S,
    REST_S,
    RESTART_STEPS,
    EndlessTraining,
    build_emulated_bench,
    build_real_bench,
    count_chunk_steps,
    measure_mode,
    open_worker_bench,
    resolve_workload,
    wait_for_board,
)
from fedge.characterisation.profiling_journal import open_profiling_journal
from fedge.characterisation.stability import StabilityRule
from fedge.client import worker_training
from fedge.client.run_claim import CLAIM_FILE, write_claim
from fedge.clock import SimulatedClock
from fedge.costs.cost_priors import build_priors
from fedge.decisions.candidate_modes import mask_above_floor
from fedge.devices.catalogue import load_catalogue
from fedge.devices.local_board import NodeSettings
from fedge.devices.tables.mode_table import read_mode_table
from fedge.errors import BadInput, BoardError, ModeNotSet, SensorLost, UnknownName, WorkerFailed
from fedge.experiment import WorkloadSpec
from fedge.knowledge.evidence_files import describe_file
from fedge.knowledge.profiling_source import source_from_board
from fedge.powerd.powerd_client import PowerdClient as Power
from fedge.protocols import Device
from fedge.types import Measurement, PowerMode, Workload
from fedge.worker.worker_client import WorkerError

RULE = StabilityRule()
MODE = PowerMode(4, 921.6, 307.2, 1600.0)
TRUE_S = 300.0 / 307.2 / 10


def tenth(seen: Measurement) -> Measurement:
    return dataclasses.replace(seen, step_s=seen.step_s / 10)


def noisy(seen: Measurement, count=itertools.count()) -> Measurement:  # noqa: B008 -- every call differs on purpose
    return dataclasses.replace(seen, step_s=seen.step_s * (2.0 if next(count) % 3 else 0.5))


def hot(times: int):
    """Throttles in the first ``times`` chunks."""
    count = itertools.count()
    return lambda seen: dataclasses.replace(tenth(seen), throttled=next(count) < times)


def test_a_steady_board_is_left_as_soon_as_it_has_settled(fake):
    board, bench = fake(change=tenth)

    seen = measure_mode(bench, MODE, RULE)

    assert seen.verdict.settled
    assert seen.verdict.step_s == pytest.approx(TRUE_S)
    assert seen.note == ""
    assert board.chunks == [1] + [round(1 / TRUE_S)] * RULE.least_chunks
    assert board.visits == [MODE]
    assert seen.seconds == pytest.approx(board.clock.now_s(), abs=1e-3)
    assert seen.joules == pytest.approx(5.0 * board.clock.now_s(), abs=1e-2)


def test_a_board_that_never_settles_is_left_at_the_limit_and_marked(fake):
    board, bench = fake(change=noisy)

    seen = measure_mode(bench, MODE, RULE)

    assert not seen.verdict.settled
    assert seen.note.startswith("not settled: ")
    assert RULE.limit_s <= board.clock.now_s() < RULE.limit_s + 10
    assert seen.as_measurement().step_s > 0


def test_a_throttled_board_rests_until_it_is_cooler_and_is_measured_once_more(fake):
    board, bench = fake(change=hot(1), temperature_c=97.0)

    seen = measure_mode(bench, MODE, RULE)

    assert board.visits == [MODE, MODE]
    assert board.rested_s == [REST_S] * 5, "3 degrees each, until 15 degrees cooler"
    assert not seen.throttled
    assert seen.verdict.settled
    assert seen.note == "measured again after it had throttled"
    assert seen.joules == pytest.approx(5.0 * (board.clock.now_s() - 50.0) + 1.5 * 50.0, abs=1e-2)


def test_a_board_that_throttles_again_is_kept_with_a_note(fake):
    board, bench = fake(change=hot(1000), temperature_c=97.0)

    seen = measure_mode(bench, MODE, RULE)

    assert len(board.visits) == 2
    assert seen.throttled
    assert not seen.verdict.settled
    assert seen.note == "not settled: it throttled; throttled, again after cooling"
    assert seen.as_measurement().throttled


def test_a_rest_has_a_limit(fake):
    board, bench = fake(change=hot(1), temperature_c=97.0)
    bench = dataclasses.replace(bench, temperature_c=lambda: 97.0)

    measure_mode(bench, MODE, RULE)

    assert sum(board.rested_s) == MAX_REST_S


@pytest.mark.parametrize(("temperature_c", "rests"), [(None, [BLIND_REST_S]), (60.0, [REST_S])])
def test_a_board_without_a_sensor_or_without_heat_rests_for_a_fixed_time(fake, temperature_c, rests):
    board, bench = fake(change=hot(1), temperature_c=temperature_c)

    measure_mode(bench, MODE, RULE)

    assert board.rested_s == rests


def test_a_lost_sensor_ends_the_mode_and_the_mode_before_is_set_again(fake):
    def lost(seen):
        raise SensorLost("no rail")

    board, bench = fake(change=lost)

    with pytest.raises(SensorLost):
        measure_mode(bench, MODE, RULE)
    assert board.mode != MODE


def test_the_work_is_prepared_before_every_attempt_while_nothing_is_metered(fake):
    board, bench = fake(change=hot(1), temperature_c=97.0)
    prepared = []
    bench = dataclasses.replace(bench, prepare=lambda: prepared.append((board.mode, len(board.visits))))

    measure_mode(bench, MODE, RULE)

    assert prepared == [(bench.device.spec.maxn, 0), (bench.device.spec.maxn, 1)]


@given(st.floats(1e-6, 1e4))
def test_a_chunk_is_about_a_second_or_one_minibatch(step_s):
    steps = count_chunk_steps(step_s, RULE)

    assert 1 <= steps <= 10_000
    assert steps * step_s <= 1.5 * RULE.chunk_s or steps == 1


SPEC = build_emulated_bench("orin-nano", "resnet18-imagenet").device.spec
LOW = PowerMode(2, SPEC.cpu_mhz[10], SPEC.gpu_mhz[0], SPEC.mem_mhz[0])


class TestBenchBoard(DeviceContract):
    modes = (SPEC.maxn, LOW)

    @pytest.fixture
    def device(self) -> Device:
        return build_emulated_bench("orin-nano", "resnet18-imagenet").device


def bench(seed: int = 0, temperature_c: float | None = None, ambient_c: float = 25.0):
    return build_emulated_bench("orin-nano", "resnet18-imagenet", None, seed, temperature_c, ambient_c)


def test_a_mode_measures_the_same_whatever_was_measured_before():
    before = bench()
    measure_mode(before, SPEC.maxn, StabilityRule())
    fresh = bench(temperature_c=before.temperature_c())

    assert measure_mode(before, LOW, StabilityRule()) == measure_mode(fresh, LOW, StabilityRule())


def test_a_second_visit_and_another_seed_see_other_noise():
    same = bench()
    first, second = measure_mode(same, LOW, StabilityRule()), measure_mode(same, LOW, StabilityRule())

    assert first.verdict.step_s != second.verdict.step_s
    assert measure_mode(bench(seed=1), LOW, StabilityRule()).verdict.step_s != first.verdict.step_s


def test_work_heats_rest_cools_and_both_take_time():
    one = bench()
    with one.device.use_mode(SPEC.maxn):
        seen = one.device.measure(WORK, 500, one.work)
    warm_c = one.temperature_c()
    one.idle_for(100.0)

    assert 25.0 < one.temperature_c() < warm_c
    assert one.clock.now_s() == pytest.approx(seen.work_s + 100.0)


def test_a_board_in_hot_air_throttles_and_is_measured_once_more():
    seen = measure_mode(bench(ambient_c=82.0, temperature_c=96.9), SPEC.maxn, StabilityRule())

    assert seen.attempts == 2


def test_settled_measurements_lie_near_the_truth():
    one = bench()
    seen = measure_mode(one, LOW, StabilityRule())
    row = one.device.surface.find_row(LOW)

    assert seen.verdict.step_s == pytest.approx(one.device.surface.step_s[row], rel=0.03)
    assert seen.verdict.power_w == pytest.approx(one.device.surface.power_w[row], rel=0.03)


def test_a_mode_that_the_board_lacks_is_not_set():
    with pytest.raises(ModeNotSet), bench().device.use_mode(PowerMode(99, 1.0, 1.0, 1.0)):
        pass


def test_a_profile_and_a_fit_under_one_name_emulate_the_same_board():
    truth = source_from_board("agx-orin", "resnet18-imagenet", seed=0).truth

    assert build_emulated_bench("agx-orin", "resnet18-imagenet").device.surface.step_s.tolist() == truth.step_s.tolist()


def test_unknown_names_and_batch_sizes_are_refused():
    with pytest.raises(UnknownName, match="--board"):
        build_emulated_bench("nosuch", "resnet18-imagenet")
    with pytest.raises(BadInput, match="--workload"):
        build_emulated_bench("nano", "nosuch")
    with pytest.raises(BadInput, match="--batch-size: got 0; a whole number above 0"):
        build_emulated_bench("nano", "resnet18-imagenet", 0)


@pytest.mark.parametrize(
    ("device", "workload", "options", "label"),
    [
        ("orin-nano", "resnet18-imagenet", {"batch_size": 64}, "estimated"),
        ("orin-nano", "resnet50", {"batch_size": 8}, "estimated"),
        ("orin-nano", "resnet50", {"batch_size": 8, "kind": "infer"}, "estimated"),
        ("agx-orin", "mobilenetv3l-gld23k", {"batch_size": 16, "kind": "infer"}, "calibrated"),
    ],
)
def test_any_network_that_the_layers_can_price_has_a_bench(device, workload, options, label):
    whole = build_emulated_bench(device, workload, **options)
    usual = build_emulated_bench(device, "resnet18-imagenet")

    assert (whole.label, whole.workload.batch_size) == (label, options["batch_size"])
    assert whole.workload.kind == options.get("kind", "train")
    assert (whole.device.surface.step_s != usual.device.surface.step_s).all()
    assert whole.knowledge.priors


def test_inference_is_shorter_than_training_of_the_same_batch():
    train, infer = (build_emulated_bench("orin-nano", "resnet50", 8, kind=kind) for kind in ("train", "infer"))

    usable = mask_above_floor(train.device.surface.modes)
    ratio = (infer.device.surface.step_s / train.device.surface.step_s)[usable]
    assert np.median(ratio) < 0.5
    assert (ratio < 1).mean() > 0.95  # each has a deviation of its own


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

    for module in (mode_measurement, worker_training):
        monkeypatch.setattr(module, "WorkerClient", lambda *_: Trainer())
    monkeypatch.setattr(mode_measurement, "open_local_board", here)

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
def board_bench(fake):
    board, _ = fake()
    board.total_power = "POM_5V_IN + EXTRA"
    work = resolve_workload("resnet18-imagenet", None)
    given = {"clock": board.clock, "seed": 3, "software": {"torch": "1.10"}}
    return board, build_real_bench(board, work, board.done.append, lambda: board.temperature_c, **given)


def test_a_campaign_runs_the_trainer_and_says_that_it_measured(board_bench, tmp_path):
    board, one = board_bench
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
