"""The mod chooses a mode for an app's training, measures it, remembers it, and changes nothing else."""

import json
import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

pytest.importorskip("torch", reason="the apps of these tests train with torch")

import torch
from contracts.desk import Desk, desk
from contracts.fake_nvml import FakeCard, FakeNvml, install
from contracts.reports import MAXN, answer
from contracts.small_training import make_app, make_context, make_message, train_network
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict

from fedge.devices.sensing.energy_counters import PackageEnergyCounter
from fedge.errors import BadInput, BoardError, UnknownName
from fedge.flower import power_mod, power_mode
from fedge.flower.node_memory import RECORD
from fedge.flower.power_mod import ANSWER, JOULES, SECONDS
from fedge.flower.step_gate import StepGate
from fedge.types import Measurement, RoundGoal, RoundReport
from fedge.wire import ReplyMessage, from_json, to_json

STEPS = 20
LONG_STEPS = 200
"""About eleven seconds of the emulated board: in one second there is no time for probes."""


def read_answer(reply: Message) -> ReplyMessage:
    return from_json(ReplyMessage, str(reply.content.config_records[RECORD][ANSWER]))


def read_metrics(reply: Message) -> tuple[float, float]:
    metrics = reply.content.metric_records["metrics"]
    return float(metrics[SECONDS]), float(metrics[JOULES])


def test_an_emulated_board_learns_over_rounds_to_save_energy():
    mod = power_mode(device="emulated:agx-orin-64gb", max_slowdown=1.5, policy="least-energy")
    context = make_context(partition_id=0)

    replies = [mod(make_message(), context, make_app(LONG_STEPS)) for _ in range(4)]

    reports = [answer.report for answer in map(read_answer, replies)]
    assert all(report is not None and report.steps == LONG_STEPS for report in reports)
    first_s, first_j = read_metrics(replies[0])
    last_s, last_j = read_metrics(replies[-1])
    assert last_j < 0.95 * first_j
    assert last_s < 1.6 * first_s


def test_it_leaves_the_apps_own_reply_as_it_is():
    reply = power_mode(device="emulated:nano")(make_message(), make_context(), make_app(STEPS))

    for name, values in reply.content.array_records["arrays"].to_torch_state_dict().items():
        assert torch.equal(values, train_network(STEPS)[name])
    assert reply.content.metric_records["metrics"]["train_loss"] == 1.0


def test_nodes_take_the_devices_in_turn_and_their_own_configuration_first():
    mod = power_mode(device=["emulated:nano", "emulated:tx2"])

    boards = [
        read_answer(mod(make_message(), context, make_app(2))).board
        for context in (
            make_context(partition_id=2),
            make_context(partition_id=3),
            make_context(partition_id=3, fedge_device="emulated:orin-nano"),
        )
    ]

    assert boards == ["nano-3", "tx2-4", "orin-nano-4"]


def test_a_goal_of_the_server_decides():
    mod, context = power_mode(device="emulated:nano"), make_context()
    mod(make_message(), context, make_app(STEPS))

    fast = mod(make_message(goal=to_json(RoundGoal("maxn", STEPS))), context, make_app(STEPS))
    report = read_answer(fast).report

    assert report.decision.mode == report.front.maxn.mode


def test_evaluation_passes_untouched():
    context = make_context()

    reply = power_mode(device="emulated:nano")(make_message("evaluate"), context, make_app(1))

    assert RECORD not in reply.content
    assert RECORD not in context.state


def make_own_context(tmp_path: Path) -> Context:
    """Return the context of a node without a power daemon."""
    settings = tmp_path / "node.yaml"
    text = f"board: here\npower_socket: {tmp_path}/none.sock\nstate_dir: {tmp_path}/state\nsample_hz: 20\n"
    settings.write_text(text, encoding="utf-8")
    return make_context(settings=str(settings))


def test_without_a_board_it_only_measures_and_says_once_what(tmp_path, caplog, monkeypatch):
    install(monkeypatch, FakeNvml([FakeCard()], root=False))
    context = make_own_context(tmp_path)

    replies = [power_mode()(make_message(), context, make_app(STEPS)) for _ in range(2)]

    assert all(0 < read_metrics(reply)[0] < 60 and read_metrics(reply)[1] > 0 for reply in replies)
    assert RECORD not in context.state
    said = [record.message for record in caplog.records if "needs root" in record.message]
    assert len(said) == 1
    assert "GPUs (NVML)" in said[0]


def test_a_processor_alone_is_measured_as_far_as_it_counts(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    reply = power_mode()(make_message(), make_own_context(tmp_path), make_app(STEPS))

    joules = read_metrics(reply)[1]
    assert math.isnan(joules) or joules > 0  # not every machine counts its energy
    with pytest.raises(BoardError, match="extra gpu"):
        power_mode(device="gpu")(make_message(), make_own_context(tmp_path), make_app(STEPS))


def test_the_processors_counters_are_followed_while_the_app_trains(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    for name in ("energy_uj", "max_energy_range_uj"):
        (tmp_path / name).write_text("1000000")
    monkeypatch.setattr(PackageEnergyCounter, "try_open", lambda: PackageEnergyCounter([tmp_path]))
    running: list[str] = []

    def app(message: Message, context: Context) -> Message:
        running.extend(thread.name for thread in threading.enumerate())
        return make_app(1)(message, context)

    power_mode()(make_message(), make_own_context(tmp_path), app)

    assert "fedge-rapl" in running


@pytest.mark.slow
def test_on_a_gpu_workstation_power_limits_are_probed_and_restored(tmp_path, monkeypatch):
    card = FakeCard()
    nvml = install(monkeypatch, FakeNvml([card]))
    mod, context = power_mode("least-energy", max_slowdown=2.0), make_own_context(tmp_path)

    def train(message: Message, _context: Context) -> Message:
        weights = train_network(300, lambda _: nvml.work(card, 0.006))
        metrics = MetricRecord({"num-examples": 8})
        return Message(RecordDict({"arrays": ArrayRecord(weights), "metrics": metrics}), reply_to=message)

    reports = list[RoundReport]()
    # When another limit is worth a try depends on times, and these on what else the machine does.
    while len({part.mode for report in reports for part in report.parts}) < 2:
        assert len(reports) < 12
        report = read_answer(mod(make_message(), context, train)).report
        assert report is not None
        reports.append(report)
    assert reports[0].device == "gpu-workstation"
    assert reports[0].decision.mode.gpu_mhz == 2100
    assert card.limit_mw == 300_000
    with pytest.raises(RuntimeError, match="boom"):
        mod(make_message(), context, raise_boom)
    assert card.limit_mw == 300_000


def raise_boom(_message: Message, _context: Context) -> Message:
    raise RuntimeError("boom")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"policy": "balance"}, "power_mode: policy: got 'balance'; did you mean balanced"),
        ({"policy": "joint"}, "power_mode: policy: got 'joint'; a policy that sets power modes"),
        (
            {"policy": "preset:15w", "device": "emulated:nano"},
            "power_mode: policy: preset of emulated:nano: .*5W",
        ),
        ({"policy": "fastest-within-power"}, "power_mode: power_w: got nothing; .*for example power_w=20"),
        ({"policy": "maxn", "deadline_s": 9.0}, "power_mode: deadline_s: got 9; maxn takes no options"),
        ({"policy": "no_such_module:choose"}, "power_mode: policy: .*No module named 'no_such_module'"),
        ({"policy": "contracts.desk:choose", "least": "much"}, r"power_mode: options\.least: got 'much'; a number"),
        ({"dedline_s": 60.0}, "power_mode: keyword: got 'dedline_s'; .*did you mean deadline_s?"),
        ({"input_shap": (3, 8, 8)}, "power_mode: keyword: .*did you mean input_shape?"),
        ({"deadline_s": -1.0}, "power_mode: deadline_s: got -1.0; more than 0"),
        ({"device": "emulated:nanoo"}, "power_mode: device: got 'nanoo'; .*did you mean nano"),
        ({"device": "nano"}, "power_mode: device: got 'nano'; .*did you mean emulated:nano?"),
        ({"device": "jetsn"}, "power_mode: device: got 'jetsn'; .*did you mean jetson?"),
        ({"device": []}, "power_mode: device: .*at least 1"),
        ({"cost": "resnet18"}, "power_mode: cost: got 'resnet18'; .*did you mean resnet18-imagenet"),
        ({"cost": "resnet18-imagenet", "network": "resnet50"}, "power_mode: cost: .*one of them"),
        ({"network": "resnet5"}, "power_mode: network: got 'resnet5'; did you mean .*resnet50"),
        ({"network": "no_such_module:build", "input_shape": (1, 2)}, "power_mode: network: .*No module named"),
        ({"network": "contracts.desk:Desk"}, r"power_mode: input_shape: got nothing; .*input_shape=\(3, 224, 224\)"),
        ({"network": "none.onnx"}, "power_mode: network: got none.onnx, which is no file here"),
        ({"input_shape": (3, 8, 8)}, "power_mode: input_shape: .*without a network"),
        ({"network": "resnet50", "input_shape": (3, 0, 8)}, r"power_mode: input_shape\[1\]: got 0; 1 or more"),
        ({"batch_size": 0}, "power_mode: batch_size: got 0; 1 or more"),
        ({"batch_size": "16"}, "power_mode: batch_size: got '16'; a whole number"),
        ({"policy": "fastest-within-power", "power_w": "9"}, "power_mode: power_w: got '9'; a number"),
        ({"knowledge": 5}, "power_mode: knowledge: got 5; 'auto', the path of a folder, or None"),
        ({"seed": -1}, "power_mode: seed: got -1; 0 or more"),
        ({"predictor": "fegde"}, "power_mode: predictor: got 'fegde'; .*did you mean fedge?"),
    ],
)
def test_a_wrong_argument_is_refused_at_once_in_its_own_words(options, complaint):
    with pytest.raises(BadInput, match=f"^{complaint}"):
        power_mode(**options)


def test_a_wrong_board_of_the_nodes_configuration_is_named_by_its_key():
    mod = power_mode(device="emulated:nano")

    with pytest.raises(UnknownName, match="the node's fedge-device: got 'nosuch'"):
        mod(make_message(), make_context(fedge_device="emulated:nosuch"), make_app(1))


class StoppedClock:
    """A board on which whatever is measured takes eight seconds."""

    board = property(lambda self: self)
    use_mode = staticmethod(nullcontext)

    def measure(self, _workload: object, steps: int, work: Callable[[int], object]) -> Measurement:
        work(steps)
        return Measurement(MAXN, steps, 8.0, 10.0)


@pytest.mark.parametrize(("more", "rest_s"), [(1, 0.0), (5, 8.0)])
def test_what_an_app_trains_beyond_the_plan_is_booked_whole(more, rest_s, monkeypatch):
    gate = StepGate(lambda: train_network(STEPS + more))
    planned = answer("nano-1", 5.0)

    def run_round(*_: object, training: StepGate[object], **__: object) -> tuple[ReplyMessage, None]:
        training.advance(STEPS)
        return planned, None

    monkeypatch.setattr(power_mod, "_run_round", run_round)
    given: Any = {"options": None, "setup": SimpleNamespace(workload=None), "memory": None, "goal": None}
    booked = power_mod._run_gated_round(**given, here=cast("Any", StoppedClock()), gate=gate).report

    before = planned.report.measured
    assert booked.measured.steps == before.steps + more
    assert booked.work_s == pytest.approx(planned.report.work_s + before.step_s + rest_s)
    assert booked.work_j == pytest.approx(planned.report.work_j + before.step_s * before.power_w + 10.0 * rest_s)


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with desk("orin-nano-jp6", tmp_path_factory.mktemp("desk"), worker=False) as found:
        yield found


@pytest.mark.slow
@pytest.mark.xdist_group("desk")
def test_on_a_board_the_power_daemon_sets_the_modes_and_restores_them(board, tmp_path):
    settings = tmp_path / "node.yaml"
    settings.write_text(yaml.safe_dump(json.loads(board.settings.model_dump_json())), encoding="utf-8")
    mod = power_mode("least-energy", max_slowdown=3.0)
    context = make_context(settings=str(settings))
    before = board.files

    replies = [mod(make_message(), context, make_app(steps)) for steps in (400, 400, 450, 300)]
    *reports, last = [read_answer(reply).report for reply in replies]

    assert [report.steps for report in reports if report is not None] == [400, 400, 450]
    assert all(read_metrics(reply)[0] > 0 < read_metrics(reply)[1] for reply in replies[:3])
    assert last is None  # it ended before the steps that were expected of it
    assert "after 300 of" in str(read_answer(replies[3]).error)
    assert math.isnan(read_metrics(replies[3])[0])
    assert board.files == before
