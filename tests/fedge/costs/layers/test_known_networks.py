"""What is shipped of the known networks is what tracing them gives, and reading it needs no torch."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fedge.costs.layers.known_networks import find_known_network, format_layers, list_known_workloads, parse_layers
from fedge.costs.layers.network_cost import LayerCost, NetworkCost
from fedge.costs.layers.network_source import load_network_cost
from fedge.costs.workload_sizes import load_workload_sizes

TRACED = {
    "resnet18-imagenet": "resnet18-imagenet",
    "mobilenetv3l-gld23k": "mobilenetv3l-gld23k",
    "vit-b16-cifar10": "vit-b16-cifar10",
    "resnet50-tinyimagenet224": "resnet50-tinyimagenet224",
    "resnet50-imagenet": "resnet50",
}


@pytest.mark.parametrize(("workload", "model"), TRACED.items())
def test_a_known_network_is_the_traced_one(workload: str, model: str) -> None:
    assert find_known_network(workload) == replace(load_network_cost(model), name=workload)


def test_every_workload_with_costs_is_known_and_computes_what_its_costs_say() -> None:
    for name, size in load_workload_sizes().items():
        network = find_known_network(name)
        assert network is not None
        assert network.batch_work(size.batch_size, "train").flop / 1e9 == pytest.approx(
            size.gflop_per_step, rel=0.002
        ), name


@pytest.mark.parametrize("name", sorted({*TRACED} - {"resnet50-imagenet"}))
def test_a_workload_whose_code_is_here_moves_what_its_costs_say(name: str) -> None:
    network, size = find_known_network(name), load_workload_sizes()[name]
    assert network is not None
    assert network.batch_work(size.batch_size, "train").bytes / 1e9 == pytest.approx(size.gbyte_per_step, rel=0.002)


def test_the_network_that_cannot_be_had_computes_the_printed_flop_with_the_published_parameters() -> None:
    network = find_known_network("yolov8n-coco")
    assert network is not None
    assert network.flop == pytest.approx(8.8399e9, rel=0.002)
    assert network.weight_bytes == pytest.approx(12.58e6, rel=0.005)
    assert network.parameters == 3_157_184


@pytest.mark.parametrize(("name", "read"), [("a b\n c", "a_b_c"), ("", "-")])
def test_a_layer_s_name_never_breaks_its_line(name: str, read: str) -> None:
    network = NetworkCost("net", (3,), (LayerCost(name, "relu", 1.0, 4.0, 4.0),), "by hand")
    assert [layer.name for layer in parse_layers(format_layers(network))] == [read]


def test_an_unknown_workload_has_no_network() -> None:
    assert find_known_network("no-such-workload") is None
    assert set(list_known_workloads()) == {*TRACED, "yolov8n-coco"}


def test_known_networks_are_read_without_torch(project_root: Path) -> None:
    program = (
        "import sys; from fedge.costs.layers.known_networks import find_known_network; import "
        "fedge.costs.layers.network_source; "
        "print(find_known_network('resnet50-imagenet').parameters, 'torch' in sys.modules, 'onnx' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=project_root, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["25557032", "False", "False"], done.stderr
