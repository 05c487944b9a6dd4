"""An app's own network prices its steps; without one the log says which network is assumed."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="the apps of these tests train with torch")

import torch
from contracts.small_training import make_app, make_context, make_message
from flwr.app import Context, Message

from fedge.costs.layered_work import find_named_workload
from fedge.devices.board_kinds import build_surface, build_workload_kind
from fedge.errors import BadInput
from fedge.experiment import FleetBoard, FleetEntry
from fedge.flower import power_mode
from fedge.flower.node_memory import RECORD
from fedge.flower.power_mod import ANSWER
from fedge.types import RoundReport
from fedge.wire import ReplyMessage, from_json

DEVICE = "emulated:agx-orin-64gb"
STEPS = 50


def build_small() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 30 * 30, 10))


def build_wide() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Conv2d(3, 512, 7), torch.nn.Conv2d(512, 512, 7), torch.nn.Flatten())


def name_network(build: object) -> dict[str, Any]:
    return {"network": f"{__name__}:{getattr(build, '__name__', '')}", "input_shape": (3, 32, 32)}


def run_round(context: Context, **options: Any) -> RoundReport:
    reply = power_mode("maxn", device=DEVICE, **options)(make_message(), context, make_app(STEPS))
    report = from_json(ReplyMessage, str(reply.content.config_records[RECORD][ANSWER])).report
    assert report is not None
    return report


@pytest.mark.parametrize("build", [build_small, build_wide])
def test_the_apps_own_network_prices_its_steps_by_its_layers(build: object) -> None:
    work, _ = find_named_workload(name_network(build)["network"], input_shape="3x32x32")
    device = DEVICE.partition(":")[2]
    board = FleetBoard(name=f"{device}-1", index=0, entry=FleetEntry(device=device))
    truth = build_surface(board, build_workload_kind(device, work), seed=1)
    report = run_round(make_context(), **name_network(build))

    top = truth.find_row(report.decision.mode)
    assert report.measured.step_s == pytest.approx(float(truth.step_s[top]), rel=0.1)
    assert report.measured.power_w == pytest.approx(float(truth.power_w[top]), rel=0.1)


def test_pricing_does_not_touch_the_apps_random_numbers_and_is_done_once() -> None:
    def draw(message: Message, context: Context) -> Message:
        drawn.append(float(torch.rand(1)))
        return make_app(STEPS)(message, context)

    drawn = list[float]()
    context = make_context()
    mod = power_mode(device=DEVICE, **name_network(build_small))
    torch.manual_seed(5)
    mod(make_message(), context, draw)
    torch.manual_seed(5)
    assert drawn == [float(torch.rand(1))]

    layers = dict(context.state.config_records["fedge-network"])
    mod(make_message(), context, draw)
    assert dict(context.state.config_records["fedge-network"]) == layers


def test_an_assumed_network_is_named_once_with_the_way_to_name_ones_own(caplog: pytest.LogCaptureFixture) -> None:
    context = make_context()
    for _ in range(2):
        run_round(context)
    lines = [record.message for record in caplog.records if "resnet18-imagenet" in record.message]
    assert len(lines) == 1
    assert "network=" in lines[0]
    assert "input_shape=" in lines[0]

    caplog.clear()
    run_round(make_context(), cost="resnet18-imagenet")
    run_round(make_context(), **name_network(build_small))
    assert not caplog.records


def test_a_measured_workload_is_a_network_too() -> None:
    assert run_round(make_context(), network="resnet18-imagenet") == run_round(make_context(), cost="resnet18-imagenet")


def test_a_network_that_cannot_be_counted_is_one_line() -> None:
    with pytest.raises(BadInput, match="no_such_module"):
        run_round(make_context(), network="no_such_module:build", input_shape=(1, 2))
    with pytest.raises(BadInput, match="input-shape"):
        run_round(make_context(), network=f"{__name__}:build_small")
    with pytest.raises(BadInput, match="one of them"):
        power_mode(cost="resnet18-imagenet", network="resnet50")
