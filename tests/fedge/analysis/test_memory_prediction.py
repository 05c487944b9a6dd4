"""``fedge memory predict`` shows a step's need with its label, the limit, and the largest batch that fits."""

import io
import json
import math
from dataclasses import replace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from experiments.cli.network_commands import memory
from experiments.report.analysis.network_terminal import print_prediction
from fedge.analysis.memory_prediction import (
    CONFIDENT_SDS,
    MemoryPrediction,
    memory_prediction_to_dict,
    predict_network_memory,
)
from fedge.client.memory_scaling import estimate_usable_mb
from fedge.costs.layers.network_cost import NetworkCost
from fedge.costs.layers.network_record import find_known_network
from fedge.costs.memory.step_need import LARGEST_BATCH
from fedge.devices.catalogue import find
from fedge.types import DeviceSpec


def network(name: str = "resnet50-imagenet") -> NetworkCost:
    found = find_known_network(name)
    assert found is not None
    return found


def predict_memory(network: NetworkCost, device: DeviceSpec, batch_size: int) -> MemoryPrediction:
    return predict_network_memory(network, device, batch_size, estimate_usable_mb(device))


def shown(found: MemoryPrediction) -> str:
    out = io.StringIO()
    print_prediction(Console(file=out, width=200), found)
    return out.getvalue()


@pytest.mark.parametrize("name", ["resnet50-imagenet", "mobilenetv3l-gld23k", "vit-b16-cifar10"])
@pytest.mark.parametrize("board", ["tx2", "nano", "agx-orin"])
def test_the_largest_batch_fits_and_one_more_sample_does_not(name, board):
    found = predict_memory(network(name), find(board), 32)
    assert found.largest_sure_batch <= found.largest_batch
    for batch, sds in ((found.largest_batch, 0.0), (found.largest_sure_batch, CONFIDENT_SDS)):
        if 0 < batch < LARGEST_BATCH:
            here, more = found.predict_need(batch), found.predict_need(batch + 1)
            assert here.memory_mb * math.exp(sds * here.memory_sd_log) <= found.limit_mb
            assert more.memory_mb * math.exp(sds * more.memory_sd_log) > found.limit_mb


def test_a_board_with_too_little_memory_fits_no_batch():
    tiny = replace(find("nano"), ram_gb=replace(find("nano").ram_gb, value=1.0))
    found = predict_memory(network(), tiny, 4)
    assert found.largest_batch == 0
    assert "does not fit" in shown(found)
    assert "batch none" in shown(found)


def test_what_is_shown_names_spread_label_limit_and_the_asked_batch():
    text = shown(predict_memory(network(), find("tx2"), 24))
    assert "a training step of 24 x 3x224x224" in text
    assert "calibrated: SGD steps" in text
    assert "5,600 MB: 8 GB less 30 %, the system's" in text
    assert "± 9 %" in text
    assert [line.split()[0] for line in text.splitlines() if line.split() and line.split()[0].isdigit()] == [
        "1", "2", "4", "8", "16", "24", "32", "64", "128", "256",
    ]  # fmt: skip
    assert "does not fit" in text


def test_json_says_the_same_as_the_table():
    found = predict_memory(network(), find("tx2"), 24)
    data = json.loads(json.dumps(memory_prediction_to_dict(found)))
    assert data["memory_mb"] == data["batches"]["24"]["memory_mb"] == found.step.memory_mb
    assert data["fits"] is (found.step.memory_mb <= found.limit_mb)
    assert (data["device"], data["batch_size"], data["label"]) == ("tx2", 24, "calibrated")
    assert set(data) >= {"limit_mb", "largest_batch", "surely_fits", "step_s", "memory_sd_log", "source"}


@pytest.mark.parametrize("batch", ["0", "-1", "nan", "1.5", "99999999999"])
def test_a_batch_that_cannot_be_is_refused(batch):
    done = CliRunner().invoke(memory, ["predict", "resnet50-imagenet", "--batch-size", batch])
    assert done.exit_code == 2
    assert "--batch-size" in done.output
