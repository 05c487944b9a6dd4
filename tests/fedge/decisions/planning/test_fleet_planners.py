"""Every planner against brute force: all deadlines, and all choices of a point per board."""

from __future__ import annotations

import dataclasses
import math

import pytest
from contracts.fronts import (
    a_front,
    above_j,
    certain_front,
    deadlines,
    end_s,
    fleets,
    in_reach,
    maxn_round,
    rounds,
    some_front,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedge.decisions.limits import compute_margin_z
from fedge.decisions.planning import PLANNERS, load_planner
from fedge.errors import BadInput
from fedge.types import FleetPlan, Front, RoundGoal

WEIGHTS = st.sampled_from([0.0, 0.25, 0.5, 0.8, 1.0])
SLOWDOWNS = st.sampled_from([1.0, 1.05, 1.5, 3.0])
CONFIDENCES = st.sampled_from([0.5, 0.84, 0.99])
Fleet = dict[str, Front]


def plan(policy: str, fronts: Fleet, boards: list[str] | None = None, **limits: float) -> FleetPlan:
    planner = load_planner(policy)
    return planner(fronts, list(fronts) if boards is None else boards, RoundGoal(policy, 8, None, limits))


def least_j(fronts: Fleet, deadline_s: float, z: float) -> float:
    return min((joules for joules, _ in rounds(fronts, deadline_s, z)), default=math.inf)


def least_w(fronts: Fleet, deadline_s: float, z: float) -> float:
    return min((watts for _, watts in rounds(fronts, deadline_s, z)), default=math.inf)


def earliest_s(fronts: Fleet, z: float) -> float:
    """The shortest round in which every board has something within reach."""
    return next(d for d in deadlines(fronts, z) if all(in_reach(f, d, z) for f in fronts.values()))


@given(fleets(certain_front), WEIGHTS, SLOWDOWNS)
@settings(max_examples=100, deadline=None)
def test_balanced_no_deadline_is_better(fronts, weight, slowdown):
    found = plan("balanced", fronts, time_weight=weight, max_slowdown=slowdown)
    maxn_s, maxn_j = maxn_round(fronts)

    def score(length_s: float, joules: float) -> float:
        return weight * length_s / maxn_s + (1 - weight) * joules / maxn_j

    tried = [d for d in deadlines(fronts, 0.0) if earliest_s(fronts, 0.0) <= d <= slowdown * maxn_s]
    best = min(score(d, least_j(fronts, d, 0.0)) for d in tried)
    assert found.deadline_s == found.round_s
    assert score(found.round_s, found.energy_j) == pytest.approx(best)
    assert found.deadline_s in tried
    assert found.energy_j == pytest.approx(least_j(fronts, found.deadline_s, 0.0))
    assert (found.maxn_round_s, found.maxn_energy_j) == (maxn_s, pytest.approx(maxn_j))
    assert best <= score(maxn_s, maxn_j) * (1 + 1e-9)


@given(fleets(some_front), CONFIDENCES, st.integers(2, 120), st.booleans())
@settings(max_examples=100, deadline=None)
def test_least_energy_no_round_until_the_deadline_is_cheaper(fronts, confidence, quarters, relative):
    maxn_s, maxn_j = maxn_round(fronts)
    own = {"max_slowdown": 1 + quarters / 60} if relative else {"deadline_s": quarters / 4}
    cap_s = own["max_slowdown"] * maxn_s if relative else own["deadline_s"]
    z = compute_margin_z(confidence)
    found = plan("least-energy", fronts, confidence=confidence, **own)
    earliest = earliest_s(fronts, z)
    if earliest > cap_s:
        assert not found.feasible
        assert found.deadline_s == pytest.approx(earliest)
        return
    tried = [d for d in deadlines(fronts, z) if earliest <= d <= cap_s]
    assert found.energy_j == pytest.approx(min(least_j(fronts, d, z) for d in tried))
    assert found.deadline_s <= cap_s * (1 + 1e-9)
    held = all(min(end_s(f, p, z) for p in (*f.points, f.maxn)) <= cap_s for f in fronts.values())
    assert found.feasible == (held or relative)
    maxn_held_s = max(end_s(f, f.maxn, z) for f in fronts.values())
    if maxn_held_s <= cap_s:
        until_s = sum(f.maxn_idle_w for f in fronts.values()) * (maxn_held_s - maxn_s)
        assert found.energy_j <= (maxn_j + until_s) * (1 + 1e-9)


@given(fleets(some_front, 3), CONFIDENCES, st.floats(0.3, 1.5))
@settings(max_examples=100, deadline=None)
def test_fastest_no_shorter_round_keeps_the_joules(fronts, confidence, share):
    z = compute_margin_z(confidence)
    energies = {d: least_j(fronts, d, z) for d in deadlines(fronts, z)}
    cap_j = share * maxn_round(fronts)[1]
    assume(all(abs(joules - cap_j) > 1e-6 * cap_j for joules in energies.values() if math.isfinite(joules)))
    found = plan("fastest", fronts, confidence=confidence, round_energy_j=cap_j)
    kept = [d for d, joules in energies.items() if joules <= cap_j]
    assert found.feasible == bool(kept)
    assert found.energy_j == pytest.approx(energies[min(kept)] if kept else min(energies.values()))
    if kept:
        assert found.deadline_s == pytest.approx(min(kept))


@given(fleets(some_front, 3), CONFIDENCES, st.floats(0.3, 1.5))
@settings(max_examples=100, deadline=None)
def test_fastest_no_shorter_round_keeps_the_watts_and_the_shares_are_enough(fronts, confidence, share):
    z = compute_margin_z(confidence)
    watts = {d: least_w(fronts, d, z) for d in deadlines(fronts, z)}
    cap_w = share * sum(f.maxn.work_j / f.maxn.work_s for f in fronts.values())
    assume(all(abs(w - cap_w) > 1e-6 * cap_w for w in watts.values() if math.isfinite(w)))
    found = plan("fastest", fronts, confidence=confidence, fleet_power_w=cap_w)
    kept = [d for d, w in watts.items() if w <= cap_w]
    shares = {board: goal.limits["power_w"] for board, goal in found.goals.items()}
    assert sum(shares.values()) == pytest.approx(cap_w)
    assert found.feasible == bool(kept)
    if not kept:
        return
    assert found.deadline_s == pytest.approx(min(kept))
    chosen = [work_within(front, min(kept), z, shares[board]) for board, front in fronts.items()]
    idle_j = sum(f.idle_w for f in fronts.values()) * min(kept)
    assert found.energy_j == pytest.approx(sum(chosen) + idle_j)


def work_within(front: Front, deadline_s: float, z: float, power_w: float) -> float:
    """The least joules above idling within reach and within the share; there is such a point."""
    kept = [p for p in in_reach(front, deadline_s, z) if p.work_j / p.work_s <= power_w * (1 + 1e-9)]
    return min(above_j(front, p) for p in kept)


@given(fleets(certain_front, 3), st.floats(0.5, 1.3), st.floats(0.5, 1.3))
@settings(max_examples=100, deadline=None)
def test_fastest_under_both_limits_keeps_both_and_is_no_shorter_than_possible(fronts, joules_share, watts_share):
    maxn_s, maxn_j = maxn_round(fronts)
    maxn_w = sum(f.maxn.work_j / f.maxn.work_s for f in fronts.values())
    cap_j, cap_w = joules_share * maxn_j, watts_share * maxn_w
    found = plan("fastest", fronts, round_energy_j=cap_j, fleet_power_w=cap_w)
    kept = [d for d in deadlines(fronts, 0.0) if any(j <= cap_j and w <= cap_w for j, w in rounds(fronts, d, 0.0))]
    if found.feasible:
        assert found.energy_j <= cap_j * (1 + 1e-8)
        assert found.deadline_s >= min(kept) * (1 - 1e-9)
    if joules_share >= 1 and watts_share >= 1:
        assert found.feasible
        assert found.deadline_s <= maxn_s * (1 + 1e-9)


def test_boards_trade_watts_for_joules_where_one_alone_would_break_a_limit():
    """The least energy draws 18 W, the least power takes 140 J; between them 15 W and 132 J."""
    fronts = {"a": a_front([(4.0, 10.0), (7.0, 7.0), (10.0, 6.0)], 1.0), "b": a_front([(10.0, 8.0)], 1.0)}
    found = plan("fastest", fronts, round_energy_j=135.0, fleet_power_w=15.2)
    assert (found.feasible, found.deadline_s, found.energy_j) == (True, 10.0, pytest.approx(132.0))
    assert plan("fastest", fronts, round_energy_j=135.0, fleet_power_w=14.9).feasible is False
    assert plan("fastest", fronts, round_energy_j=131.0, fleet_power_w=15.2).feasible is False


def test_a_point_that_exceeds_its_share_of_the_watts_by_rounding_alone_is_within_it():
    most_w = 4.0 * (1.0 + 1e-9)
    fronts = {"a": a_front([(0.25, most_w), (1.0, 2.0)], 0.0), "b": a_front([(1.0, 2.0)], 0.0)}
    found = plan("fastest", fronts, fleet_power_w=8.0)
    assert {board: goal.limits["power_w"] for board, goal in found.goals.items()} == {"a": 4.0, "b": 4.0}
    assert found.energy_j == pytest.approx(1.0 + 2.0)


@given(fleets(some_front), CONFIDENCES, st.sampled_from([0.0, 0.5]))
@settings(deadline=None)
def test_energy_budget_no_round_is_cheaper(fronts, confidence, weight):
    z = compute_margin_z(confidence)
    maxn_s, maxn_j = maxn_round(fronts)
    found = plan("energy-budget", fronts, confidence=confidence, budget_j=1e9, time_weight=weight)
    tried = [(d, least_j(fronts, d, z)) for d in deadlines(fronts, z)]
    best = min(weight * d / maxn_s + (1 - weight) * j / maxn_j for d, j in tried)
    assert weight * found.deadline_s / maxn_s + (1 - weight) * found.energy_j / maxn_j == pytest.approx(best)
    assert found.feasible


def test_a_budget_that_is_used_up_is_not_feasible_and_time_has_no_weight_then():
    fronts = {"a": a_front([(10.0, 20.0), (20.0, 5.0)])}
    assert plan("energy-budget", fronts, budget_j=500.0, spent_j=100.0, time_weight=1.0).deadline_s == 10.0
    assert plan("energy-budget", fronts, budget_j=500.0, spent_j=100.0).deadline_s == 20.0
    short = plan("energy-budget", fronts, budget_j=500.0, spent_j=350.0, time_weight=1.0)
    assert (short.deadline_s, short.feasible) == (20.0, True)
    assert not plan("energy-budget", fronts, budget_j=500.0, spent_j=450.0).feasible


def test_boards_at_rest_count_in_the_plan_of_a_budget_and_shorten_the_round():
    fronts = {"a": a_front([(10.0, 20.0), (20.0, 5.0)])}
    alone = plan("energy-budget", fronts, budget_j=500.0)
    beside = plan("energy-budget", fronts, budget_j=500.0, resting_w=100.0)
    assert (alone.deadline_s, beside.deadline_s) == (20.0, 10.0)
    assert alone.energy_j is not None
    assert beside.energy_j > 100.0 * 10.0
    assert not beside.feasible


LIMITS = {
    "balanced": {},
    "least-energy": {"deadline_s": 9.0},
    "fastest": {"round_energy_j": 300.0, "fleet_power_w": 12.0},
    "energy-budget": {"budget_j": 900.0, "spent_j": 100.0},
    "joint": {"round_energy_j": 300.0, "min_progress": 0.5},
}


@pytest.mark.parametrize("policy", PLANNERS)
class TestEveryPlanner:
    def test_the_order_of_the_boards_does_not_matter(self, policy):
        @given(fleets(some_front), st.randoms(use_true_random=False))
        @settings(max_examples=50, deadline=None)
        def check(fronts: Fleet, random: object) -> None:
            names = list(fronts)
            random.shuffle(names)  # type: ignore[attr-defined]
            turned = {name: fronts[name] for name in names}
            assert plan(policy, fronts, **LIMITS[policy]) == plan(policy, turned, names, **LIMITS[policy])

        check()

    @pytest.mark.parametrize("broken", [None, {"points": ()}, {"link_s": math.nan}, {"idle_w": -1.0}])
    def test_a_board_without_a_usable_front_only_loses_its_own_share(self, policy, broken):
        fronts = {"a": a_front([(4.0, 6.0), (8.0, 3.0)]), "b": a_front([(6.0, 5.0), (7.0, 4.0)])}
        limits = {k: v for k, v in LIMITS[policy].items() if k != "fleet_power_w"}
        alone = plan(policy, fronts, **limits)
        more = fronts if broken is None else {**fronts, "c": dataclasses.replace(fronts["a"], **broken)}
        found = plan(policy, more, ["a", "b", "c"], **limits)
        assert {**found.goals, "c": None} == {**alone.goals, "c": None}
        assert dataclasses.replace(found, goals=alone.goals) == alone
        assert found.goals["c"] == RoundGoal(policy, 8, None, limits)

    def test_without_any_front_every_board_gets_the_bare_goal(self, policy):
        found = plan(policy, {}, ["a", "b"], **{k: v for k, v in LIMITS[policy].items() if k != "fleet_power_w"})
        assert (found.deadline_s, found.energy_j, found.feasible) == (None, None, True)
        assert [goal.deadline_s for goal in found.goals.values()] == [None, None]

    def test_only_the_boards_asked_for_are_planned(self, policy):
        fronts = {"a": a_front([(4.0, 6.0)]), "slow": a_front([(900.0, 6.0)])}
        assert plan(policy, fronts, ["a"], **LIMITS[policy]) == plan(policy, {"a": fronts["a"]}, **LIMITS[policy])


def test_policies_without_a_planner_have_none():
    assert [load_planner(name) for name in ("maxn", "preset:MAXN", "my_module:planner")] == [None, None, None]


def test_the_watts_of_a_board_without_a_front_are_an_equal_share():
    fronts = {"a": a_front([(4.0, 8.0), (8.0, 2.0)])}
    found = plan("fastest", fronts, ["a", "new"], fleet_power_w=16.0)
    assert {b: g.limits["power_w"] for b, g in found.goals.items()} == {"a": pytest.approx(8.0), "new": 8.0}
    assert (found.deadline_s, found.feasible) == (4.0, True)
    assert not plan("fastest", fronts, ["a", "new"], fleet_power_w=3.0).feasible


def test_a_deadline_that_cannot_be_kept_gives_way_to_the_planned_one():
    fronts = {"a": a_front([(10.0, 9.0), (12.0, 4.0)])}
    goal = plan("least-energy", fronts, deadline_s=5.0, confidence=0.5).goals["a"]
    assert (goal.deadline_s, goal.limits) == (10.0, {"confidence": 0.5})
    assert plan("least-energy", fronts, deadline_s=12.0).goals["a"].limits == {"deadline_s": 12.0}


@pytest.mark.parametrize("policy", ["least-energy", "fastest", "energy-budget"])
def test_a_confidence_outside_0_and_1_is_refused(policy):
    with pytest.raises(BadInput, match=r"policy\.confidence"):
        plan(policy, {"a": a_front([(1.0, 2.0)])}, confidence=1.0)


def test_of_equally_good_deadlines_the_shorter_wins():
    assert plan("balanced", {"a": a_front([(10.0, 4.0), (20.0, 2.0)], 0.0)}, max_slowdown=9.0).deadline_s == 10.0
