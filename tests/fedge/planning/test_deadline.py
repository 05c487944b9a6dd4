"""The planned deadline against brute force over every deadline that can matter."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.planning.deadline import DeadlinePlan, least_energy_at, maxn_energy_j, plan_deadline, round_energy_j
from fedge.types import Front, FrontPoint, PowerMode

MODE = PowerMode(4, 1000.0, 500.0, 1600.0)


def a_front(rows: list[tuple[float, float]], idle_w: float, link_s: float) -> Front:
    """Any points, not only Pareto-minimal ones; MAXN is the fastest."""
    points = tuple(FrontPoint(MODE, t, w * t) for t, w in sorted(rows))
    return Front(points, points[0], idle_w, link_s, 1.25 * idle_w)


quarters = st.integers(1, 40).map(lambda k: k / 4)
some_front = st.builds(
    a_front,
    st.lists(st.tuples(quarters, quarters), min_size=1, max_size=5),
    st.integers(0, 8).map(lambda k: k / 4),
    st.integers(0, 12).map(lambda k: k / 4),
)
some_fleet = st.lists(some_front, min_size=1, max_size=4).map(
    lambda fronts: {f"board-{i}": front for i, front in enumerate(fronts)}
)
weights = st.sampled_from([0.0, 0.25, 0.5, 0.8, 1.0])
slowdowns = st.sampled_from([None, 1.0, 1.05, 1.5, 3.0])


def literal_round(fronts: Mapping[str, Front], deadline_s: float) -> tuple[float, float]:
    """Length and joules of a round: who cannot meet the deadline runs flat out and the round lasts until it is done."""
    chosen = {}
    for board, front in fronts.items():
        in_time = [p for p in front.points if front.link_s + p.work_s <= deadline_s]
        fastest = min(front.points, key=lambda p: p.work_s)
        chosen[board] = min(in_time, key=lambda p: p.work_j - front.idle_w * p.work_s) if in_time else fastest
    length_s = max(deadline_s, *(fronts[b].link_s + p.work_s for b, p in chosen.items()))
    joules = sum(p.work_j + fronts[b].idle_w * (length_s - p.work_s) for b, p in chosen.items())
    return length_s, joules


def literal_best(fronts: Mapping[str, Front], weight: float, max_slowdown: float | None) -> float:
    """The least score over every board's every end, with a fine grid beside them."""
    maxn_s = max(f.link_s + f.maxn.work_s for f in fronts.values())
    maxn_j = sum(f.maxn.work_j + f.maxn_idle_w * (maxn_s - f.maxn.work_s) for f in fronts.values())
    ends = {f.link_s + p.work_s for f in fronts.values() for p in f.points}
    tried = [d for d in {*ends, *np.linspace(0.1, 15.0, 40)} if max_slowdown is None or d <= max_slowdown * maxn_s]
    rounds = [literal_round(fronts, d) for d in tried]
    return min((weight * s / maxn_s + (1 - weight) * j / maxn_j for s, j in rounds), default=np.inf)


@given(some_fleet, weights, slowdowns)
@settings(max_examples=200, deadline=None)
def test_no_deadline_beats_the_planned_one(fronts: dict[str, Front], weight: float, slowdown: float | None) -> None:
    plan = plan_deadline(fronts, weight, slowdown)
    score = weight * plan.round_s_rel + (1 - weight) * plan.energy_rel
    assert score <= literal_best(fronts, weight, slowdown) * (1 + 1e-9)


@given(some_fleet, weights, slowdowns)
@settings(deadline=None)
def test_the_plan_s_figures_are_those_of_its_deadline(
    fronts: dict[str, Front], weight: float, slowdown: float | None
) -> None:
    plan = plan_deadline(fronts, weight, slowdown)
    maxn_s = max(f.link_s + f.maxn.work_s for f in fronts.values())
    maxn_j = sum(f.maxn.work_j + f.maxn_idle_w * (maxn_s - f.maxn.work_s) for f in fronts.values())
    length_s, joules = literal_round(fronts, plan.deadline_s)
    assert length_s == plan.deadline_s
    assert plan.round_s_rel == pytest.approx(length_s / maxn_s)
    assert plan.energy_rel == pytest.approx(joules / maxn_j)


@given(some_fleet, weights, st.sampled_from([1.0, 1.05, 1.5]))
@settings(deadline=None)
def test_a_round_is_never_planned_longer_than_allowed_nor_shorter_than_the_straggler(
    fronts: dict[str, Front], weight: float, slowdown: float
) -> None:
    plan = plan_deadline(fronts, weight, slowdown)
    fastest_s = {b: f.link_s + f.points[0].work_s for b, f in fronts.items()}
    assert fastest_s[plan.straggler] == max(fastest_s.values())
    assert max(fastest_s.values()) <= plan.deadline_s <= slowdown * max(fastest_s.values())


@given(some_fleet, weights, slowdowns)
@settings(deadline=None)
def test_the_order_of_the_boards_does_not_matter(
    fronts: dict[str, Front], weight: float, slowdown: float | None
) -> None:
    turned = dict(reversed(fronts.items()))
    assert plan_deadline(fronts, weight, slowdown) == plan_deadline(turned, weight, slowdown)


@given(some_front, quarters)
def test_least_energy_at_a_deadline_is_what_brute_force_finds(front: Front, deadline_s: float) -> None:
    point = least_energy_at(front, deadline_s)
    in_time = [p for p in front.points if front.link_s + p.work_s <= deadline_s]
    if in_time:
        assert point in in_time
        assert round_energy_j(front, point, deadline_s) == pytest.approx(
            min(round_energy_j(front, p, deadline_s) for p in in_time)
        )
    else:
        assert point.work_s == min(p.work_s for p in front.points)


def test_a_fast_board_may_slow_down_for_free_while_a_slow_one_works() -> None:
    slow = a_front([(100.0, 5.0)], 2.0, 0.0)
    fast = a_front([(10.0, 40.0), (90.0, 8.0)], 6.0, 1.0)
    plan = plan_deadline({"fast": fast, "slow": slow}, 0.5, 1.05)
    assert plan == DeadlinePlan(100.0, 1.0, pytest.approx((500 + 720 + 60) / (500 + 400 + 1.25 * 540)), "slow")
    assert least_energy_at(fast, plan.deadline_s).work_s == 90.0


def test_weight_on_time_alone_plans_the_shortest_round_and_on_energy_alone_the_cheapest() -> None:
    front = a_front([(10.0, 20.0), (12.0, 10.0), (20.0, 4.0)], 1.0, 0.0)
    assert plan_deadline({"a": front}, 1.0, None).deadline_s == 10.0
    assert plan_deadline({"a": front}, 0.0, None).deadline_s == 20.0
    assert plan_deadline({"a": front}, 0.0, 1.3).deadline_s == 12.0


def test_of_equally_good_deadlines_the_shorter_wins() -> None:
    front = a_front([(10.0, 4.0), (20.0, 2.0)], 0.0, 0.0)
    assert plan_deadline({"a": front}, 0.0, None).deadline_s == 10.0


def test_a_deadline_that_rounding_alone_would_miss_is_met() -> None:
    front = a_front([(0.2, 20.0), (0.3, 10.0)], 0.0, 0.1 + 0.2)
    assert 0.1 + 0.2 + 0.3 > 0.6
    assert least_energy_at(front, 0.6).work_s == 0.3


def test_a_front_without_points_is_its_maxn() -> None:
    front = dataclasses.replace(a_front([(10.0, 4.0)], 1.0, 2.0), points=())
    assert least_energy_at(front, 99.0) == front.maxn
    assert plan_deadline({"a": front}, 0.5, None).deadline_s == 12.0


def test_a_board_done_after_the_round_is_counted_until_it_is_done() -> None:
    front = a_front([(10.0, 4.0)], 1.0, 2.0)
    assert round_energy_j(front, front.maxn, 5.0) == 40.0 + 2.0
    assert round_energy_j(front, front.maxn, 20.0) == 40.0 + 10.0


def test_a_board_at_maxn_works_and_waits_at_maxn() -> None:
    front = dataclasses.replace(a_front([(10.0, 4.0), (20.0, 1.0)], 1.0, 2.0), maxn_idle_w=3.0)
    assert maxn_energy_j(front, 30.0) == 10.0 * 4.0 + 20.0 * 3.0
    assert maxn_energy_j(front, 5.0) == 10.0 * 4.0 + 2.0 * 3.0  # until its own end, the link included


@given(some_front, quarters)
def test_maxn_that_waits_in_the_mode_of_all_others_is_one_of_the_points(front: Front, round_s: float) -> None:
    alike = dataclasses.replace(front, maxn_idle_w=front.idle_w)
    assert maxn_energy_j(alike, round_s) == pytest.approx(round_energy_j(alike, alike.maxn, round_s))


def test_waiting_dearly_at_maxn_makes_the_plan_s_share_smaller_not_its_deadline_longer() -> None:
    front = a_front([(10.0, 20.0), (12.0, 10.0)], 1.0, 0.0)
    slow = a_front([(12.0, 5.0)], 1.0, 0.0)
    plain, dear = (
        plan_deadline({"a": dataclasses.replace(front, maxn_idle_w=w), "b": slow}, 0.5, 1.05) for w in (1.0, 9.0)
    )
    assert dear.deadline_s == plain.deadline_s == 12.0
    assert dear.energy_rel < plain.energy_rel


def test_no_front_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one board"):
        plan_deadline({}, 0.5, 1.05)


@pytest.mark.parametrize(("boards", "points"), list(product([1, 1000], [1, 64])))
def test_a_fleet_of_any_size_gets_a_plan(boards: int, points: int) -> None:
    rng = np.random.default_rng(boards + points)
    fleet = {
        f"b{i}": a_front(list(zip(rng.uniform(1, 9, points), rng.uniform(5, 9, points), strict=True)), 2.0, 0.5)
        for i in range(boards)
    }
    assert 1.0 <= plan_deadline(fleet, 0.5, 1.05).round_s_rel <= 1.05
