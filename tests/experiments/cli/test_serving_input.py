"""A standing service in the YAML: three lines, and one clear message for what no board can hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="checks load the data")

from experiments.spec import experiment_checks
from experiments.spec.experiment_checks import build_labels
from experiments.spec.experiment_loader import load_experiment
from experiments.spec.resource_checks import check_serving
from fedge.client.memory_scaling import build_scaling_context
from fedge.costs.layers.network_record import find_known_network
from fedge.devices.catalogue import find
from fedge.errors import BadInput
from fedge.experiment import Experiment, FleetEntry, ServingSpec

HEAD = "fleet:\n  - device: {device}\n    serving: {{{serving}}}\n{more}"


def written(tmp_path: Path, serving: str, device: str = "agx-orin-64gb", more: str = "") -> Experiment:
    path = tmp_path / "run.yaml"
    path.write_text(HEAD.format(device=device, serving=serving, more=more), encoding="utf-8")
    return load_experiment(path)


def refusal(tmp_path: Path, serving: str, device: str = "agx-orin-64gb", more: str = "") -> str:
    with pytest.raises(BadInput) as caught:
        check_serving(written(tmp_path, serving, device, more))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_three_lines_are_enough(tmp_path: Path) -> None:
    experiment = written(tmp_path, "cost: resnet50-imagenet, rate_hz: 60, latency_s: 0.8")

    experiment_checks.check_experiment(experiment)

    spec = experiment.fleet[0].serving
    assert spec is not None
    assert (spec.arrivals, spec.batch_sizes, spec.model) == ("poisson", (1, 4, 16, 32, 64), None)


def test_the_example_is_right(project_root: Path) -> None:
    experiment = load_experiment(project_root / "experiments/configs/serving.yaml")

    experiment_checks.check_experiment(experiment)

    assert [entry.serving is not None for entry in experiment.fleet] == [True, False, True]


def test_a_latency_that_no_mode_holds_is_told_with_the_least_that_one_does(tmp_path: Path) -> None:
    message = refusal(tmp_path, "cost: resnet50-imagenet, rate_hz: 60, latency_s: 0.03")

    assert message.startswith("fleet[0].serving.latency_s: got 0.03 s; at least ")
    assert "training minibatch" in message
    least = message.split("at least ")[1].split(" s")[0]
    check_serving(written(tmp_path, f"cost: resnet50-imagenet, rate_hz: 60, latency_s: {least}"))


def test_a_rate_that_no_board_keeps_up_with_is_told_with_the_most_that_one_does(tmp_path: Path) -> None:
    message = refusal(tmp_path, "cost: resnet50-imagenet, rate_hz: 900, latency_s: 60", "nano")

    assert message.startswith("fleet[0].serving.rate_hz: got 900; at most ")
    most = message.split("at most ")[1].split(":")[0]
    check_serving(written(tmp_path, f"cost: resnet50-imagenet, rate_hz: {0.99 * float(most)}, latency_s: 60", "nano"))


@pytest.mark.parametrize(
    ("serving", "message"),
    [
        ("cost: resnet, rate_hz: 60, latency_s: 0.8", "cost: got 'resnet'; known: .*resnet50-imagenet"),
        ("cost: resnet50-imagenet, rate_hz: 60, latency_s: 0.8, model: digits", "model: got 'digits'.*digits-cnn"),
        ("cost: resnet50-imagenet, rate_hz: 60, latency_s: 1001", "latency_s: got 1001 s; at most 1000 s"),
        ("cost: resnet50-imagenet, rate_hz: 60, latency_s: 30, batch_sizes: [1, 1000]", "batch_sizes: got 1000; "),
    ],
)
def test_what_no_service_can_be_is_told_with_what_one_can(tmp_path: Path, serving: str, message: str) -> None:
    assert re.match(rf"fleet\[0\]\.serving\.{message}", refusal(tmp_path, serving))


def test_a_pinned_mode_has_to_hold_the_service(tmp_path: Path) -> None:
    serving, preset = "cost: resnet50-imagenet, rate_hz: 60, latency_s: 0.22", "policy: preset:{}\n"

    message = refusal(tmp_path, serving, more=preset.format("MODE_15W"))

    assert message.startswith(
        "policy.name: got preset:MODE_15W; a preset in which agx-orin-64gb holds resnet50-imagenet"
    )
    check_serving(written(tmp_path, serving, more=preset.format("MAXN")))


@pytest.mark.parametrize(
    ("serving", "told"),
    [
        ("cost: resnet50-imagenet, rate_hz: 60", "fleet[0].serving.latency_s: got nothing"),
        ("cost: resnet50-imagenet, rate_hz: 0, latency_s: 1", "fleet[0].serving.rate_hz: got 0; a number above 0"),
        ("cost: resnet50-imagenet, rate_hz: 6, latency_s: 1, batch_sizes: []", "serving.batch_sizes: got []"),
        ("cost: resnet50-imagenet, rate_hz: 6, latency_s: 1, arrivals: often", "serving.arrivals: got 'often'"),
        ("cost: resnet50-imagenet, rate_hz: 6, latency: 1, latency_s: 1", "serving.latency: got an unknown key"),
    ],
)
def test_a_wrong_key_or_value_is_told_by_its_name(tmp_path: Path, serving: str, told: str) -> None:
    with pytest.raises(BadInput) as caught:
        written(tmp_path, serving)
    assert told in str(caught.value)


def test_a_service_may_be_any_network_that_the_layers_can_price(tmp_path: Path) -> None:
    experiment = written(tmp_path, "network: squeezenet1_1, rate_hz: 30, latency_s: 0.8")
    spec = experiment.fleet[0].serving
    assert spec is not None
    assert (spec.cost, spec.network.input) == ("squeezenet1_1", (3, 224, 224))  # type: ignore[union-attr]
    assert spec.network.layers  # type: ignore[union-attr]

    check_serving(experiment)

    label = build_labels(experiment)["agx-orin-64gb"]["serving"]
    assert label["label"] == "estimated"
    assert label["source"].startswith("squeezenet1_1: layers of squeezenet1_1")


def test_a_known_network_is_served_without_a_profile_of_inference(tmp_path: Path) -> None:
    check_serving(written(tmp_path, "cost: vit-b16-cifar10, rate_hz: 5, latency_s: 2"))


def test_a_services_network_that_cannot_be_counted_is_told_with_its_field(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"fleet\[0\]\.serving\.network\.model: got 'nosuch'"):
        written(tmp_path, "network: nosuch, rate_hz: 30, latency_s: 0.8")


def test_the_memory_of_a_service_is_taken_from_that_of_training(tmp_path: Path) -> None:
    def limit_mb(serving: ServingSpec | None) -> float:
        entry = FleetEntry(device="nano", serving=serving)
        scaling = build_scaling_context(Experiment(fleet=(entry,)), entry, find("nano"), lambda: True)
        assert scaling is not None
        return scaling.limit_mb

    network = find_known_network("resnet50-imagenet")
    assert network is not None
    small, large = (
        ServingSpec(cost="resnet50-imagenet", rate_hz=1, latency_s=5, batch_sizes=sizes) for sizes in ((1,), (1, 16))
    )

    assert limit_mb(None) - limit_mb(small) == pytest.approx(network.inference_memory_mb(1))
    assert limit_mb(small) - limit_mb(large) == pytest.approx(
        network.inference_memory_mb(16) - network.inference_memory_mb(1)
    )
    assert network.inference_memory_mb(1) > network.weight_bytes / 1e6
