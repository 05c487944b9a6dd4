"""Costs survive a file, a wrong field is named, and the shipped networks are what tracing them gives."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.costs.cost_scaling import load_workload_sizes
from fedge.costs.layers.network_cost import Convolution, LayerCost, NetworkCost
from fedge.costs.layers.network_record import (
    find_known_network,
    format_layers,
    list_known_workloads,
    network_from_dict,
    network_to_dict,
    parse_layers,
)
from fedge.costs.layers.network_source import load_network_cost
from fedge.errors import BadInput

amounts = st.floats(0, 1e15, allow_nan=False)
counts = st.integers(0, 10**9)
shapes = st.lists(st.integers(0, 1000), max_size=4).map(tuple)
convolutions = st.builds(
    Convolution,
    in_channels=st.integers(1, 4096),
    out_channels=st.integers(1, 4096),
    kernel=st.floats(1, 50),
    padding=st.floats(-5, 50),
    stride=st.floats(1, 50),
    groups=st.integers(1, 4096),
    input_size=st.floats(1, 1000),
)
layers = st.builds(
    LayerCost,
    name=st.text(max_size=20),
    kind=st.sampled_from(["conv", "relu"]),
    flop=amounts,
    read_bytes=amounts,
    written_bytes=amounts,
    weight_bytes=amounts,
    parameters=counts,
    activations=counts,
    inputs=st.lists(shapes, max_size=3).map(tuple),
    output=shapes,
    convolution=st.none() | convolutions,
)
networks = st.builds(
    NetworkCost,
    name=st.text(max_size=20),
    input_shape=st.lists(st.integers(1, 1000), min_size=1, max_size=4).map(tuple),
    layers=st.lists(layers, max_size=4).map(tuple),
    source=st.text(max_size=20),
    unknown=st.lists(st.text(max_size=10), max_size=3).map(tuple),
)


@given(networks)
def test_a_network_read_back_is_the_one_that_was_written(network):
    assert network_from_dict(json.loads(json.dumps(network_to_dict(network))), "file") == network


def data() -> dict[str, Any]:
    network = find_known_network("resnet18-imagenet")
    assert network is not None
    return network_to_dict(network)


def test_a_layer_without_the_key_convolution_is_none():
    without = data()
    kept = [place for place, layer in enumerate(without["layers"]) if layer["convolution"] is None]
    for place in kept:
        del without["layers"][place]["convolution"]
    assert kept
    assert network_from_dict(without, "net.json") == network_from_dict(data(), "net.json")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("format", "another", "net.json: format: got 'another'"),
        ("name", 3, "net.json: name: got 3"),
        ("layers", None, "net.json: layers: got nothing; a list"),
        ("input_shape", [3, -1], "net.json: input_shape[1]: got -1; 1 or more"),
        ("input_shape", [3, 0], "net.json: input_shape[1]: got 0; 1 or more"),
        ("input_shape", [], "net.json: input_shape: got []; at least 1 of them"),
        ("unknown", [4], "net.json: unknown[0]: got 4"),
    ],
)
def test_a_wrong_field_is_named(field, value, message):
    with pytest.raises(BadInput) as caught:
        network_from_dict({**data(), field: value}, "net.json")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("flop", float("nan")), ("flop", -1.0), ("flop", True), ("read_bytes", "1"), ("parameters", 1.5),
        ("activations", -1), ("inputs", [3]), ("output", None), ("convolution", [1, 2]),
        ("convolution", [3, 64, 7, 3, 2, 1, float("inf")]), ("convolution", [3, 6.5, 7, 3, 2, 1, 224]),
        ("convolution", [3, 64, 7, 3, 0, 1, 224]), ("flop", 10**400), ("parameters", 10**400), ("kind", "convolve"),
    ],
)  # fmt: skip
def test_a_wrong_field_of_a_layer_is_named_with_its_row(field, value):
    wrong = data()
    wrong["layers"][1][field] = value
    with pytest.raises(BadInput, match=rf"^net.json: layers\[1\]\.{field}"):
        network_from_dict(wrong, "net.json")


@pytest.mark.parametrize("value", [None, [], "text", {"layers": []}])
def test_something_else_altogether_is_refused(value):
    with pytest.raises(BadInput, match="fedge layers NETWORK --out FILE"):
        network_from_dict(value, "net.json")


TRACED = {
    "resnet18-imagenet": "resnet18-imagenet",
    "mobilenetv3l-gld23k": "mobilenetv3l-gld23k",
    "vit-b16-cifar10": "vit-b16-cifar10",
    "resnet50-tinyimagenet224": "resnet50-tinyimagenet224",
    "resnet50-imagenet": "resnet50",
}


@pytest.mark.parametrize(("workload", "model"), TRACED.items())
def test_a_known_network_is_the_traced_one(workload, model):
    assert find_known_network(workload) == replace(load_network_cost(model), name=workload)


def test_every_workload_with_costs_is_known_and_computes_what_its_costs_say():
    for name, size in load_workload_sizes().items():
        network = find_known_network(name)
        assert network.batch_work(size.batch_size, "train").flop / 1e9 == pytest.approx(
            size.gflop_per_step, rel=0.002
        ), name


def test_the_network_that_cannot_be_had_computes_the_printed_flop_with_the_published_parameters():
    network = find_known_network("yolov8n-coco")
    assert network.flop == pytest.approx(8.8399e9, rel=0.002)
    assert network.weight_bytes == pytest.approx(12.58e6, rel=0.005)
    assert network.parameters == 3_157_184


@pytest.mark.parametrize(("name", "read"), [("a b\n c", "a_b_c"), ("", "-")])
def test_a_layer_s_name_never_breaks_its_line(name, read):
    network = NetworkCost("net", (3,), (LayerCost(name, "relu", 1.0, 4.0, 4.0),), "by hand")
    assert [layer.name for layer in parse_layers(format_layers(network))] == [read]


def test_an_unknown_workload_has_no_network():
    assert find_known_network("no-such-workload") is None
    assert set(list_known_workloads()) == {*TRACED, "yolov8n-coco"}
