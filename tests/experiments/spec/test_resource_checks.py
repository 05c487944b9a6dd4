"""Loaders, memory and services in the YAML: what no board can have is refused, and predictions are labelled."""

import re
from pathlib import Path

import pytest

from experiments.spec import experiment_checks
from experiments.spec.experiment_checks import build_labels
from experiments.spec.experiment_loader import load_experiment
from experiments.spec.resource_checks import check_loader, check_memory, check_serving
from fedge.client.memory_scaling import build_scaling_context
from fedge.costs.layers.network_record import find_known_network
from fedge.devices.catalogue import find
from fedge.errors import BadInput
from fedge.experiment import Experiment, FleetEntry, LoaderSpec, ServingSpec

pytest.importorskip("torch", reason="checks load the data")

SERVING = ServingSpec(cost="mobilenetv3l-gld23k", rate_hz=5, latency_s=2)


def _experiment(entry: FleetEntry) -> Experiment:
    return Experiment(fleet=(FleetEntry(device="nano"), entry), backend="local")


def test_a_loader_beside_a_measured_table_is_refused():
    entry = FleetEntry(device="agx-xavier", loader=LoaderSpec(workers=1), truth="table:here.csv")

    with pytest.raises(BadInput, match=r"fleet\[1\]\.loader.*measured table"):
        check_loader(_experiment(entry))


def test_a_loader_may_stand_beside_a_service():
    entry = FleetEntry(device="agx-xavier", loader=LoaderSpec(workers=1), serving=SERVING)

    check_loader(_experiment(entry))

    assert {"loader", "serving"} <= set(build_labels(_experiment(entry))["agx-xavier"])


def test_an_unknown_storage_is_told_with_its_field():
    entry = FleetEntry(device="agx-xavier", loader=LoaderSpec(workers=1, storage="floppy"))

    with pytest.raises(BadInput, match=r"fleet\[1\]\.loader\.storage.*floppy"):
        check_loader(_experiment(entry))


def test_a_loader_is_labelled_estimated_and_boards_without_one_say_nothing():
    experiment = _experiment(FleetEntry(device="agx-xavier", loader=LoaderSpec(workers=1, cached=0.5)))

    told = build_labels(experiment)

    assert "loader" not in told["nano"]
    assert told["agx-xavier"]["loader"] == {
        "label": "estimated",
        "source": "pipeline model: 1 worker, the boards' own storage, images of 0.25 megapixel, 50% in the page cache",
    }


MEMORY_HEAD = (
    "fleet:\n  - {{device: nano{entry}}}\nworkload:\n  cost: resnet18-imagenet\n  memory: {{{memory}}}\n{more}"
)


def with_memory(tmp_path: Path, memory: str = "", entry: str = "", more: str = "") -> Experiment:
    path = tmp_path / "run.yaml"
    path.write_text(MEMORY_HEAD.format(memory=memory, entry=entry, more=more), encoding="utf-8")
    return load_experiment(path)


def refused_memory(tmp_path: Path, memory: str = "", entry: str = "", more: str = "") -> str:
    with pytest.raises(BadInput) as caught:
        check_memory(with_memory(tmp_path, memory, entry, more))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_smallest_batch_above_the_batch_is_refused(tmp_path):
    assert "min_batch: got 32; from 1 to 16" in refused_memory(tmp_path, "min_batch: 32")


def test_a_board_in_which_nothing_fits_is_refused_with_what_would(tmp_path):
    told = refused_memory(tmp_path, entry=", memory_mb: 200")
    assert told.startswith("fleet[0].memory_mb: got 200; at least ")
    assert "resnet18-imagenet is predicted to need on nano" in told


@pytest.mark.parametrize(("memory", "safety"), [("", "allows"), ("margin: 0.25", "allows, with 25 % to spare")])
def test_a_board_whose_smallest_step_is_predicted_to_fit_is_not_refused(tmp_path, memory, safety):
    told = refused_memory(tmp_path, memory, entry=", memory_mb: 200")
    enough = int(told.partition("at least ")[2].partition(":")[0])

    assert told.endswith(f"{safety}; workload.memory.guard: false tries all the same")
    assert f"got {enough - 1}; at least {enough}:" in refused_memory(
        tmp_path, memory, entry=f", memory_mb: {enough - 1}"
    )
    check_memory(with_memory(tmp_path, memory, entry=f", memory_mb: {enough}"))


def test_a_board_that_is_to_fail_may(tmp_path):
    check_memory(with_memory(tmp_path, "guard: false", ", memory_mb: 200"))


@pytest.mark.parametrize("strategy", ["Krum", "FedMedian", "FedTrimmedAvg", "QFedAvg"])
def test_widths_with_a_strategy_that_does_not_average_are_refused(tmp_path, strategy):
    told = refused_memory(tmp_path, "widths: [1.0, 0.5]", more=f"strategy: {strategy}\n")
    assert f"because {strategy} compares or clips whole updates" in told
    check_memory(with_memory(tmp_path, more=f"strategy: {strategy}\n"))


def test_widths_of_a_network_that_cannot_be_narrow_are_refused(tmp_path):
    task = tmp_path / "own.py"
    task.write_text(OWN, encoding="utf-8")
    path = tmp_path / "run.yaml"
    path.write_text("fleet: [nano]\nworkload: {task: own.py, memory: {widths: [0.5]}}\n", encoding="utf-8")
    with pytest.raises(BadInput, match=r"\[1\], because the network of .*own.py cannot be narrowed .*LayerNorm"):
        check_memory(load_experiment(path))


OWN = """
import numpy as np
from torch import nn
from fedge.worker.sources import Data


def model(shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.LayerNorm(8), nn.Linear(8, 2))


def data(source):
    x, y = np.zeros((8, 1, 8, 8), np.uint8), np.arange(8) % 2
    return Data(x, y, x, y, (0.0,), (1.0,), 2)
"""


SERVING_HEAD = "fleet:\n  - device: {device}\n    serving: {{{serving}}}\n{more}"


def with_service(tmp_path: Path, serving: str, device: str = "agx-orin-64gb", more: str = "") -> Experiment:
    path = tmp_path / "run.yaml"
    path.write_text(SERVING_HEAD.format(device=device, serving=serving, more=more), encoding="utf-8")
    return load_experiment(path)


def refused_service(tmp_path: Path, serving: str, device: str = "agx-orin-64gb", more: str = "") -> str:
    with pytest.raises(BadInput) as caught:
        check_serving(with_service(tmp_path, serving, device, more))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_three_lines_are_enough(tmp_path):
    experiment = with_service(tmp_path, "cost: resnet50-imagenet, rate_hz: 60, latency_s: 0.8")

    experiment_checks.check_experiment(experiment)

    spec = experiment.fleet[0].serving
    assert (spec.arrivals, spec.batch_sizes, spec.model) == ("poisson", (1, 4, 16, 32, 64), None)


def test_a_latency_that_no_mode_holds_is_told_with_the_least_that_one_does(tmp_path):
    message = refused_service(tmp_path, "cost: resnet50-imagenet, rate_hz: 60, latency_s: 0.03")

    assert message.startswith("fleet[0].serving.latency_s: got 0.03 s; at least ")
    assert "training minibatch" in message
    least = message.split("at least ")[1].split(" s")[0]
    check_serving(with_service(tmp_path, f"cost: resnet50-imagenet, rate_hz: 60, latency_s: {least}"))


def test_a_rate_that_no_board_keeps_up_with_is_told_with_the_most_that_one_does(tmp_path):
    message = refused_service(tmp_path, "cost: resnet50-imagenet, rate_hz: 900, latency_s: 60", "nano")

    assert message.startswith("fleet[0].serving.rate_hz: got 900; at most ")
    most = message.split("at most ")[1].split(":")[0]
    check_serving(
        with_service(tmp_path, f"cost: resnet50-imagenet, rate_hz: {0.99 * float(most)}, latency_s: 60", "nano")
    )


@pytest.mark.parametrize(
    ("serving", "message"),
    [
        ("cost: resnet, rate_hz: 60, latency_s: 0.8", "cost: got 'resnet'; known: .*resnet50-imagenet"),
        ("cost: resnet50-imagenet, rate_hz: 60, latency_s: 0.8, model: digits", "model: got 'digits'.*digits-cnn"),
        (
            "cost: resnet50-imagenet, rate_hz: 60, latency_s: 1001",
            "latency_s: got 1001 s; more than 0 and at most 1000 s",
        ),
        ("cost: resnet50-imagenet, rate_hz: 60, latency_s: 30, batch_sizes: [1, 1000]", "batch_sizes: got 1000; "),
    ],
)
def test_what_no_service_can_be_is_told_with_what_one_can(tmp_path, serving, message):
    assert re.match(rf"fleet\[0\]\.serving\.{message}", refused_service(tmp_path, serving))


def test_a_pinned_mode_has_to_hold_the_service(tmp_path):
    serving, preset = "cost: resnet50-imagenet, rate_hz: 60, latency_s: 0.22", "policy: preset:{}\n"

    message = refused_service(tmp_path, serving, more=preset.format("MODE_15W"))

    assert message.startswith(
        "policy.name: got preset:MODE_15W; a preset in which agx-orin-64gb holds resnet50-imagenet"
    )
    check_serving(with_service(tmp_path, serving, more=preset.format("MAXN")))


def test_a_service_may_be_any_network_that_the_layers_can_price(tmp_path):
    experiment = with_service(tmp_path, "network: squeezenet1_1, rate_hz: 30, latency_s: 0.8")
    spec = experiment.fleet[0].serving
    assert (spec.cost, spec.network.input) == ("squeezenet1_1", (3, 224, 224))
    assert spec.network.layers

    check_serving(experiment)

    label = build_labels(experiment)["agx-orin-64gb"]["serving"]
    assert label["label"] == "estimated"
    assert label["source"].startswith("squeezenet1_1: layers of squeezenet1_1")


def test_a_services_network_that_cannot_be_counted_is_told_with_its_field(tmp_path):
    with pytest.raises(BadInput, match=r"fleet\[0\]\.serving\.network\.model: got 'nosuch'"):
        with_service(tmp_path, "network: nosuch, rate_hz: 30, latency_s: 0.8")


def test_the_memory_of_a_service_is_taken_from_that_of_training(tmp_path):
    def limit_mb(serving: ServingSpec | None) -> float:
        entry = FleetEntry(device="nano", serving=serving)
        scaling = build_scaling_context(Experiment(fleet=(entry,)), entry, find("nano"), lambda: True)
        return scaling.limit_mb

    network = find_known_network("resnet50-imagenet")
    small, large = (
        ServingSpec(cost="resnet50-imagenet", rate_hz=1, latency_s=5, batch_sizes=sizes) for sizes in ((1,), (1, 16))
    )

    assert limit_mb(None) - limit_mb(small) == pytest.approx(network.inference_memory_mb(1))
    assert limit_mb(small) - limit_mb(large) == pytest.approx(
        network.inference_memory_mb(16) - network.inference_memory_mb(1)
    )
    assert network.inference_memory_mb(1) > network.weight_bytes / 1e6
