"""Instances beside each other: nothing is drawn twice, nobody is faster than alone, and the fixed point is one."""

from __future__ import annotations

import numpy as np
import pytest
from contracts.placement_boards import made_up_board, made_up_network
from hypothesis import given
from hypothesis import strategies as st

from fedge.analysis.placement.accelerators import Accelerator, Instance, Placement, PlacementBoard, PrecisionSpeed
from fedge.analysis.placement.batch_demand import can_run, compute_demand
from fedge.analysis.placement.placement_contention import (
    STEPS,
    build_contention_columns,
    compute_batch_seconds,
    compute_stretch_factors,
    compute_time_shares,
    solve_batch_seconds,
    stack_demands,
)
from fedge.analysis.placement.placement_contention import StretchFactors as Stretched
from fedge.analysis.placement.placement_outcome import evaluate_placement
from fedge.costs.layers.network_cost import NetworkCost
from fedge.types import Floats


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
    from contracts.placement_boards import layer

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


def _stretches_at(columns: object, demands: object, settled: Floats) -> Stretched:
    one = np.ones_like(settled)
    here = Stretched(one, one, one)
    for _ in range(STEPS):
        there = compute_stretch_factors(columns, demands, compute_time_shares(columns, demands, here))
        here = Stretched(*(0.5 * (getattr(here, n) + getattr(there, n)) for n in ("engine", "memory", "fallback")))
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


@given(seed=st.integers(0, 10**6))
def test_instances_alike_do_alike(seed):
    board, net, placement = drawn(seed)
    twice = Placement((placement.instances[0], *placement.instances))
    found = evaluate_placement(board, net, twice).instances
    assert found[0].batch_s == pytest.approx(found[1].batch_s, rel=1e-9)


def test_alone_an_instance_takes_the_rounded_roofline():
    board = simple(place("a", "gpu"))
    found = evaluate_placement(board, network(1e9, 5e8), Placement((Instance("a", 2, "fp32"),)))
    assert found.latency_s == pytest.approx((2.0**3 + 1.0**3) ** (1 / 3))


def test_two_that_only_compute_share_their_engine_evenly():
    board = simple(place("a", "gpu"))
    found = evaluate_placement(board, network(1e9, 0.0), Placement((Instance("a", 1, "fp32"),) * 2))
    assert [one.batch_s for one in found.instances] == pytest.approx([2.0, 2.0])


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
