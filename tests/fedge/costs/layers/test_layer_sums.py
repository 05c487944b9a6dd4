"""Layers added up by what bounds them, and a network's layers as text and back."""

from __future__ import annotations

import pytest

from fedge.costs.layers.known_networks import find_known_network, format_layers, list_known_workloads, parse_layers
from fedge.costs.layers.layer_sums import sum_layers
from fedge.costs.layers.network_cost import Convolution, LayerCost, NetworkCost


def _layer(kind: str, flop: float = 0.0, moved: float = 0.0, kernel: float = 0, groups: int = 1) -> LayerCost:
    convolution = Convolution(8, 8, kernel, 0, 1, groups, 16) if kernel else None
    return LayerCost("a", kind, flop, moved / 2, moved / 2, convolution=convolution)


def test_layers_are_sorted_by_what_bounds_them() -> None:
    network = NetworkCost(
        "net",
        (8, 16, 16),
        (
            _layer("conv", 100.0, 10.0, kernel=3),
            _layer("conv", 20.0, 4.0, kernel=1),
            _layer("conv", 7.0, 3.0, kernel=3, groups=8),
            _layer("conv", 5.0, 2.0, kernel=3, groups=2),
            _layer("linear", 30.0, 6.0),
            _layer("relu", 1.0, 8.0),
            _layer("view"),
        ),
        "made up",
    )
    found = sum_layers(network)
    assert (found.dense_flop, found.pointwise_flop) == (105.0, 50.0)
    assert (found.moved_bytes, found.depthwise_bytes) == (30.0, 3.0)
    assert found.operators == 6


def test_a_folded_normalisation_counts_with_what_it_moves_in_training() -> None:
    folded = LayerCost("bn", "batch_norm", 0.0, 0.0, 0.0, inputs=((1, 8, 4, 4),), output=(1, 8, 4, 4))
    assert sum_layers(NetworkCost("net", (8, 4, 4), (folded,), "")).moved_bytes == 4 * 2 * 128


@pytest.mark.parametrize("workload", list_known_workloads())
def test_layers_as_text_are_the_same_layers(workload: str) -> None:
    network = find_known_network(workload)
    assert network is not None
    assert parse_layers(format_layers(network)) == network.layers


def test_text_that_is_no_layer_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        parse_layers("nonsense")
