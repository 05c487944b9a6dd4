"""Which operators a DLA runs, what falls back to the GPU, and what that costs."""

from __future__ import annotations

import pytest
from contracts.placement_boards import layer, resnet50

from fedge.analysis.placement.accelerators import Instance, Placement
from fedge.analysis.placement.batch_demand import DLA_1, DLA_2, compute_demand, split_network
from fedge.analysis.placement.catalogue_accelerators import build_placement_board
from fedge.analysis.placement.placement_outcome import evaluate_placement
from fedge.costs.layers.network_cost import NetworkCost
from fedge.costs.layers.network_record import find_known_network
from fedge.devices.catalogue import find
from fedge.errors import BadInput

ORIN = build_placement_board(find("agx-orin"))
DLA = Instance("dla-0", 8, "fp16")


def network(*kinds: str) -> NetworkCost:
    return NetworkCost("n", (1,), tuple(layer(kind, 1e9, 1e7, 1e6) for kind in kinds), "made up")


def test_a_network_that_a_dla_runs_whole_has_nothing_left_for_the_gpu():
    parts = split_network(resnet50(), DLA_2)
    assert (parts.fallback_launches, parts.switches, parts.fallen) == (0, 0, ())
    assert compute_demand(ORIN, resnet50(), DLA).fallback_s == 0


def test_the_counted_resnet50_runs_on_a_dla_whole():
    counted = find_known_network("resnet50-imagenet")
    assert counted is not None
    assert split_network(counted, DLA_2).fallen == ()


def test_what_falls_back_is_counted_with_every_change_of_place():
    parts = split_network(network("conv", "gelu", "gelu", "conv", "layer_norm"), DLA_2)
    assert parts.fallen == ("gelu", "layer_norm")
    assert (parts.launches, parts.fallback_launches, parts.switches) == (2, 3, 4)
    assert (parts.flop, parts.fallback_flop) == (2e9, 3e9)
    assert (parts.weight_bytes, parts.fallback_weight_bytes) == (2e6, 3e6)


def test_views_run_nowhere():
    assert split_network(network("conv", "view"), None).launches == 1


def test_softmax_runs_on_orins_dla_and_not_on_xaviers():
    assert split_network(network("conv", "softmax"), DLA_2).fallen == ()
    assert split_network(network("conv", "softmax"), DLA_1).fallen == ("softmax",)


def test_an_operator_that_falls_back_holds_up_what_runs_on_the_gpu():
    cuda = Instance("cuda-cores", 8, "fp32")
    whole, torn = network("conv", "conv"), network("conv", "gelu")
    beside = [evaluate_placement(ORIN, one, Placement((cuda, DLA))).instances[0] for one in (whole, torn)]
    stretched = [one.batch_s / one.alone_s for one in beside]
    assert stretched[1] > stretched[0] + 0.02


def test_an_accelerator_that_would_run_nothing_of_a_network_is_refused():
    with pytest.raises(BadInput, match="dla-0"):
        evaluate_placement(ORIN, network("gelu"), Placement((DLA,)))


@pytest.mark.parametrize(
    ("instance", "told"),
    [
        (Instance("dla-0", 1, "fp16"), "cuda-cores"),
        (Instance("cuda-cores", 1, "int8"), "fp32"),
        (Instance("cuda-cores", 0, "fp32"), "1 or more"),
    ],
)
def test_what_a_board_does_not_have_is_refused_with_what_it_has(instance, told):
    with pytest.raises(BadInput, match=told):
        evaluate_placement(build_placement_board(find("nano")), resnet50(), Placement((instance,)))


def test_a_placement_without_instances_is_refused():
    with pytest.raises(BadInput, match="no instance"):
        evaluate_placement(build_placement_board(find("nano")), resnet50(), Placement(()))
