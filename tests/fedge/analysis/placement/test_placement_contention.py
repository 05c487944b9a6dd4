"""Which operators a DLA runs, what falls back to the GPU, and what that costs.

Instances beside each other: nothing is drawn twice, nobody is faster than alone, and the fixed point is one.
"""

import numpy as np
import pytest
from contracts.placement_boards import layer, made_up_board, made_up_network, resnet50
from hypothesis import given
from hypothesis import strategies as st

from fedge.analysis.placement.accelerators import (
    DLA_1,
    DLA_2,
    Accelerator,
    Instance,
    Placement,
    PlacementBoard,
    PrecisionSpeed,
    build_placement_board,
)
from fedge.analysis.placement.placement_contention import (
    STEPS,
    build_contention_columns,
    can_run,
    compute_batch_seconds,
    compute_demand,
    compute_stretch_factors,
    compute_time_shares,
    solve_batch_seconds,
    split_network,
    stack_demands,
)
from fedge.analysis.placement.placement_outcome import evaluate_placement
from fedge.costs.layers.network_cost import NetworkCost
from fedge.devices.catalogue import find
from fedge.errors import BadInput
from fedge.types import Floats

ORIN = build_placement_board(find("agx-orin"))
DLA = Instance("dla-0", 8, "fp16")


def of_kinds(*kinds: str) -> NetworkCost:
    return NetworkCost("n", (1,), tuple(layer(kind, 1e9, 1e7, 1e6) for kind in kinds), "made up")


def test_a_network_that_a_dla_runs_whole_has_nothing_left_for_the_gpu():
    parts = split_network(resnet50(), DLA_2)
    assert (parts.fallback.launches, parts.switches, parts.fallen) == (0, 0, ())
    assert compute_demand(ORIN, resnet50(), DLA).fallback_s == 0


def test_what_falls_back_is_counted_with_every_change_of_place():
    parts = split_network(of_kinds("conv", "gelu", "gelu", "conv", "layer_norm"), DLA_2)
    assert parts.fallen == ("gelu", "layer_norm")
    assert (parts.own.launches, parts.fallback.launches, parts.switches) == (2, 3, 4)
    assert (parts.own.flop, parts.fallback.flop) == (2e9, 3e9)
    assert (parts.own.weight_bytes, parts.fallback.weight_bytes) == (2e6, 3e6)


def test_softmax_runs_on_orins_dla_and_not_on_xaviers():
    assert split_network(of_kinds("conv", "softmax"), DLA_2).fallen == ()
    assert split_network(of_kinds("conv", "softmax"), DLA_1).fallen == ("softmax",)


def test_an_operator_that_falls_back_holds_up_what_runs_on_the_gpu():
    cuda = Instance("cuda-cores", 8, "fp32")
    whole, torn = of_kinds("conv", "conv"), of_kinds("conv", "gelu")
    beside = [evaluate_placement(ORIN, one, Placement((cuda, DLA))).instances[0] for one in (whole, torn)]
    stretched = [one.batch_s / one.alone_s for one in beside]
    assert stretched[1] > stretched[0] + 0.02


def test_an_accelerator_that_would_run_nothing_of_a_network_is_refused():
    with pytest.raises(BadInput, match="dla-0"):
        evaluate_placement(ORIN, of_kinds("gelu"), Placement((DLA,)))


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


def drawn(seed: int) -> tuple[PlacementBoard, NetworkCost, Placement]:
    rng = np.random.default_rng(seed)
    board, network = made_up_board(rng), made_up_network(rng)
    useful = [place for place in board.accelerators if can_run(place, network)]
    instances = []
    for _ in range(int(rng.integers(1, 6))):
        place = useful[int(rng.integers(len(useful)))]
        instances.append(Instance(place.name, int(2 ** rng.integers(0, 7)), str(rng.choice(place.precisions))))
    return board, network, Placement(tuple(instances))


def simple(*accelerators: Accelerator, overlap: float = 0.5, bandwidth: float = 1e9) -> PlacementBoard:
    return PlacementBoard("simple", accelerators, bandwidth, 3.0, overlap, 5.0, 0.0)


def network(flop: float, moved: float) -> NetworkCost:
    return NetworkCost("n", (1,), (layer("conv", flop, moved),), "made up")


def place(name: str, engine: str, **more: float) -> Accelerator:
    return Accelerator(name, engine, (PrecisionSpeed("fp32", 1e9, 1.0, 0.0),), **more)


def test_placements_looked_at_together_settle_as_they_do_alone():
    slow = simple(*(place(f"a{i}", "gpu", bandwidth_share=0.5) for i in range(4)))
    columns = build_contention_columns(slow, slow.accelerator_names)
    rows = [
        [(count, compute_demand(slow, network(1e9, moved), Instance(one.name, 4, "fp32"))) for one in slow.accelerators]
        for count, moved in ((1, 0.0), (1, 1e9), (3, 4e9))
    ]
    together = solve_batch_seconds(columns, stack_demands(rows))
    for i, row in enumerate(rows):
        np.testing.assert_array_equal(together[i], solve_batch_seconds(columns, stack_demands([row]))[0])


@given(seed=st.integers(0, 10**6))
def test_the_fixed_point_is_one(seed):
    board, net, placement = drawn(seed)
    columns = build_contention_columns(board, [one.accelerator for one in placement.instances])
    demands = stack_demands([[(1, compute_demand(board, net, one)) for one in placement.instances]])
    settled = solve_batch_seconds(columns, demands)
    # Where it stands, the stretches that follow from it give the same seconds again.
    here = _stretches_at(columns, demands, settled)
    again = compute_batch_seconds(
        columns, demands, compute_stretch_factors(columns, demands, compute_time_shares(columns, demands, here))
    )
    np.testing.assert_allclose(again, settled, rtol=1e-7)


def _stretches_at(columns: object, demands: object, settled: Floats) -> Floats:
    here = np.ones((3, *settled.shape))
    for _ in range(STEPS):
        here = 0.5 * (here + compute_stretch_factors(columns, demands, compute_time_shares(columns, demands, here)))
    return here


@given(seed=st.integers(0, 10**6))
def test_nobody_is_faster_beside_others_than_alone(seed):
    for one in evaluate_placement(*drawn(seed)).instances:
        assert one.batch_s >= one.alone_s * (1 - 1e-9)


@given(seed=st.integers(0, 10**6))
def test_no_more_bytes_are_moved_than_the_memory_gives(seed):
    board, net, placement = drawn(seed)
    found = evaluate_placement(board, net, placement)
    used = 0.0
    for one in found.instances:
        asked = compute_demand(board, net, one.instance)
        used += asked.memory_s * asked.bandwidth_share / one.batch_s
    assert used <= 1 + 1e-6


@given(seed=st.integers(0, 10**6))
def test_no_accelerator_is_held_for_more_than_all_of_the_time(seed):
    board, net, placement = drawn(seed)
    held: dict[str, float] = {}
    for one in evaluate_placement(board, net, placement).instances:
        asked, where = compute_demand(board, net, one.instance), board.accelerator(one.instance.accelerator)
        if where.hindrance == 1.0:
            held[where.name] = held.get(where.name, 0.0) + (asked.fixed_s + asked.compute_s) / one.batch_s
    assert all(share <= 1 + 1e-6 for share in held.values())


def test_alone_an_instance_takes_the_rounded_roofline():
    board = simple(place("a", "gpu"))
    found = evaluate_placement(board, network(1e9, 5e8), Placement((Instance("a", 2, "fp32"),)))
    assert found.latency_s == pytest.approx((2.0**3 + 1.0**3) ** (1 / 3))


@pytest.mark.parametrize(("overlap", "seconds"), [(0.0, 1.0), (0.5, 1.5), (1.0, 2.0)])
def test_two_kinds_of_cores_hold_each_other_up_by_the_overlap(overlap, seconds):
    board = simple(place("a", "gpu"), place("b", "gpu"), overlap=overlap)
    both = Placement((Instance("a", 1, "fp32"), Instance("b", 1, "fp32")))
    assert evaluate_placement(board, network(1e9, 0.0), both).latency_s == pytest.approx(seconds)


def test_two_engines_that_only_move_bytes_share_the_memory_evenly():
    board = simple(place("a", "gpu"), place("b", "dla"))
    both = Placement((Instance("a", 1, "fp32"), Instance("b", 1, "fp32")))
    assert evaluate_placement(board, network(0.0, 1e9), both).latency_s == pytest.approx(2.0)


def test_a_rate_below_what_can_be_done_costs_less_power_and_more_waiting():
    board = simple(place("a", "gpu", full_w=10.0))
    one = Placement((Instance("a", 4, "fp32"),))
    full, half = (
        evaluate_placement(board, network(1e9, 0.0), one),
        evaluate_placement(board, network(1e9, 0.0), one, rate_hz=0.5),
    )
    assert full.images_per_s == pytest.approx(1.0)
    assert full.power_w == pytest.approx(15.0)
    assert half.power_w == pytest.approx(10.0)
    assert half.joules_per_image == pytest.approx(20.0)
    assert half.latency_s == pytest.approx(4 / 0.5 + 4.0)
