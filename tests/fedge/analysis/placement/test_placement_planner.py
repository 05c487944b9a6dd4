"""The planner's answer is that of trying everything; what it leaves out is worse; what is nearest can be reached."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from contracts.placement_boards import made_up_board, made_up_network, resnet50
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.analysis.placement.accelerators import Instance, Placement, PlacementBoard, build_placement_board
from fedge.analysis.placement.placement_contention import build_contention_columns
from fedge.analysis.placement.placement_outcome import (
    USER_OBJECTIVES,
    PlacementGoal,
    PlacementOutcome,
    build_placement_space,
    evaluate_at_full_load,
    evaluate_placement,
    find_twins,
)
from fedge.analysis.placement.placement_planner import (
    compute_half_bounds,
    plan_placement,
    relax_limits,
    split_rows,
)
from fedge.costs.layers.network_cost import NetworkCost
from fedge.devices.catalogue import find
from fedge.errors import BadInput

ORIN = build_placement_board(find("agx-orin"))
SIZES = (1, 4, 32)


def every_placement(board: PlacementBoard, network: NetworkCost, most: int) -> Iterator[Placement]:
    """Written out: per accelerator nothing, or 1 to ``most`` instances alike."""
    per_place = []
    for place in board.accelerators:
        alike: list[tuple[Instance, ...]] = [()]
        kinds = {layer.kind for layer in network.layers}
        useful = place.supported is None or kinds & place.supported
        for size in SIZES if useful else ():
            for precision in place.precisions:
                alike += [(Instance(place.name, size, precision),) * count for count in range(1, most + 1)]
        per_place.append(alike)
    for chosen in itertools.product(*per_place):
        if instances := tuple(itertools.chain(*chosen)):
            yield Placement(instances)


def cost(goal: PlacementGoal, found: PlacementOutcome) -> float:
    """The objective, infinite where a limit is broken; written out."""
    if goal.rate_hz is not None and found.images_per_s < goal.rate_hz:
        return math.inf
    if goal.max_power_w is not None and found.power_w > goal.max_power_w:
        return math.inf
    if goal.max_latency_s is not None and found.latency_s > goal.max_latency_s:
        return math.inf
    return {
        "throughput": -found.images_per_s,
        "latency": found.latency_s,
        "energy": found.joules_per_image,
        "power": found.power_w,
    }[goal.objective]


def drawn(seed: int) -> tuple[PlacementBoard, NetworkCost, PlacementGoal, int]:
    """A board of at most three accelerators, and limits around what some placement of it does."""
    rng = np.random.default_rng(seed)
    board, network = made_up_board(rng), made_up_network(rng)
    while len(board.accelerators) > 3:
        board = made_up_board(rng)
    placements = list(every_placement(board, network, 1))
    some = evaluate_placement(board, network, placements[int(rng.integers(len(placements)))])
    rate = some.images_per_s * rng.uniform(0.3, 1.2) if rng.random() < 0.6 else None
    power = some.power_w * rng.uniform(0.7, 1.3) if rng.random() < 0.5 else None
    latency = some.latency_s * rng.uniform(0.5, 6) if rng.random() < 0.5 else None
    return (
        board,
        network,
        PlacementGoal(USER_OBJECTIVES[int(rng.integers(3))], rate, power, latency),
        int(rng.integers(1, 3)),
    )


@pytest.mark.slow
@given(seed=st.integers(0, 10**6))
@settings(max_examples=25)
def test_the_plan_is_that_of_trying_everything(seed):
    board, network, goal, most = drawn(seed)
    best = min(
        cost(goal, evaluate_placement(board, network, one, goal.rate_hz))
        for one in every_placement(board, network, most)
    )
    found = plan_placement(board, network, goal, SIZES, most).chosen
    if found is None:
        assert best == math.inf
    else:
        assert cost(goal, found) == pytest.approx(best, rel=1e-7)


@pytest.mark.slow
@given(seed=st.integers(0, 10**6))
@settings(max_examples=60)
def test_every_placement_lies_within_its_bounds(seed):
    rng = np.random.default_rng(seed)
    board, network = made_up_board(rng), made_up_network(rng)
    columns = build_contention_columns(board, board.accelerator_names)
    space = build_placement_space(board, network, (1, 8, 64), 2)
    one, other = split_rows(space)
    halves = [space.select_demands(rows) for rows in (one, other)]
    bounds = [compute_half_bounds(columns, halves[i], halves[1 - i]) for i in (0, 1)]
    bound = bounds[0].pair_with(bounds[1])
    picked = rng.integers(len(one), size=20), rng.integers(len(other), size=20)
    rows = one[picked[0]] + other[picked[1]]
    used = rows.any(axis=1)
    first, second, rows = picked[0][used], picked[1][used], rows[used]
    demands = space.select_demands(rows)
    found = evaluate_at_full_load(columns, demands)
    images = found.images_per_s
    joules = found.dynamic_w / images
    assert (bound.most_images[first, second] >= images * (1 - 1e-7)).all()
    assert (bound.least_images[first, second] <= images * (1 + 1e-7)).all()
    assert (bound.slowest_s[first, second] <= found.slowest_s * (1 + 1e-7)).all()
    assert (bound.dynamic_w[first, second] <= found.dynamic_w * (1 + 1e-7) + 1e-12).all()
    assert (bound.joules[first, second] <= joules * (1 + 1e-7) + 1e-12).all()


def test_two_dla_alike_are_interchangeable_and_other_accelerators_are_not():
    assert find_twins(ORIN) == ((2, 3),)
    assert find_twins(build_placement_board(find("orin-nano"))) == ()


def test_of_equals_the_one_with_fewer_instances_is_taken():
    found = plan_placement(ORIN, resnet50(), PlacementGoal("latency"), (1,), 2).chosen
    assert str(found.placement) == "cuda-cores (batch 1, fp32)"


def test_a_rate_that_is_too_high_is_answered_by_the_highest_there_is():
    goal = PlacementGoal("latency", rate_hz=5000.0)
    assert plan_placement(ORIN, resnet50(), goal).chosen is None
    (near,) = relax_limits(ORIN, resnet50(), goal)
    most = plan_placement(ORIN, resnet50(), PlacementGoal()).chosen
    assert (near.option, near.reachable) == ("--rate-hz", pytest.approx(most.images_per_s))


@pytest.mark.parametrize(
    "goal",
    [
        PlacementGoal("latency", rate_hz=300.0, max_power_w=20.0),
        PlacementGoal("energy", rate_hz=300.0, max_latency_s=0.005),
        PlacementGoal("throughput", max_power_w=12.0, max_latency_s=0.02),
    ],
)
def test_what_is_said_to_be_nearest_can_be_reached_and_less_cannot(goal):
    fields = {"--rate-hz": "rate_hz", "--max-power-w": "max_power_w", "--max-latency-s": "max_latency_s"}
    assert plan_placement(ORIN, resnet50(), goal, SIZES, 1).chosen is None
    found = relax_limits(ORIN, resnet50(), goal, SIZES, 1)
    assert found
    for near in found:
        stricter = 1.01 if near.option == "--rate-hz" else 0.99
        limits = {name: getattr(goal, name) for name in fields.values()}
        reached = limits | {fields[near.option]: near.reachable * (2 - stricter)}
        missed = limits | {fields[near.option]: near.reachable * stricter}
        assert plan_placement(ORIN, resnet50(), PlacementGoal(goal.objective, **reached), SIZES, 1).chosen is not None
        assert plan_placement(ORIN, resnet50(), PlacementGoal(goal.objective, **missed), SIZES, 1).chosen is None


@pytest.mark.parametrize("limit", [0.0, -1.0, math.inf, math.nan])
def test_a_limit_that_is_no_number_above_0_is_refused(limit):
    with pytest.raises(BadInput, match="--rate-hz"):
        PlacementGoal("latency", rate_hz=limit)


def test_too_many_placements_are_refused():
    with pytest.raises(BadInput, match="placements"):
        plan_placement(ORIN, resnet50(), PlacementGoal(), tuple(range(1, 33)), 3)
