"""What the server asks of every client."""

from __future__ import annotations

import dataclasses

import pytest
from contracts.reports import front

from fedge.decisions.planning.round_plan import plan_round
from fedge.experiment import PolicySpec

FRONTS = {"a": front(), "b": front(2.0)}


def test_the_users_own_deadline_and_limits_reach_the_boards():
    plan = plan_round(PolicySpec(name="least-energy-within-deadline", deadline_s=33.0), FRONTS, ["a", "b"])

    assert plan.deadline_s == 33.0
    assert plan.goals["b"].limits == {"deadline_s": 33.0}


def test_the_selector_s_deadline_wins_over_the_planner_s_but_the_shares_of_the_watts_stay():
    policy = PolicySpec(name="fastest", fleet_power_w=12.0)
    planned, given = (plan_round(policy, FRONTS, ["a", "b"], deadline_s=d) for d in (None, 50.0))

    assert planned.deadline_s == 42.0
    assert (given.deadline_s, given.round_s, given.energy_j) == (50.0, None, None)
    assert {goal.deadline_s for goal in given.goals.values()} == {50.0}
    assert [g.limits["power_w"] for g in given.goals.values()] == [g.limits["power_w"] for g in planned.goals.values()]


def test_the_joint_plan_is_made_within_the_selector_s_deadline_and_the_user_s():
    free = plan_round(PolicySpec(name="joint", min_progress=0.1), FRONTS, ["a", "b"])
    for own_s, given_s in ((None, 6.0), (6.0, 50.0), (50.0, 6.0)):
        policy = PolicySpec(name="joint", min_progress=0.1, deadline_s=own_s)
        plan = plan_round(policy, FRONTS, ["a", "b"], deadline_s=given_s)
        assert plan.feasible
        assert plan.deadline_s <= 6.0 < free.deadline_s
        assert {goal.deadline_s for goal in plan.goals.values()} == {plan.deadline_s}
        assert plan.energy_j is not None

    unknown = plan_round(PolicySpec(name="joint"), {}, ["a"], deadline_s=9.0)
    assert unknown.deadline_s == unknown.goals["a"].deadline_s == 9.0


def test_the_selector_s_deadline_reaches_boards_whose_policy_has_no_planner():
    assert plan_round(PolicySpec(name="maxn"), FRONTS, ["a"], deadline_s=50.0).goals["a"].deadline_s == 50.0
    assert plan_round(PolicySpec(name="maxn"), FRONTS, ["a"]).deadline_s is None


def test_a_plan_carries_what_is_expected_of_the_round_and_of_maxn():
    plan = plan_round(PolicySpec(name="least-energy", deadline_s=60.0), FRONTS, ["a", "b"])

    assert (plan.deadline_s, plan.feasible) == (22.0, True)
    assert plan.energy_j == (80.0 - 2.0 * 20.0) + (180.0 - 2.0 * 20.0) + 2 * 2.0 * 22.0
    assert (plan.maxn_round_s, plan.maxn_energy_j) == (22.0, 90.0 + 3.0 * 12.0 + 180.0 + 3.0 * 2.0)


def test_the_radio_counts_against_a_budget():
    work_j = plan_round(PolicySpec(name="energy-budget", budget_j=1e6), {"a": FRONTS["a"]}, ["a"]).energy_j
    fronts = {"a": dataclasses.replace(FRONTS["a"], radio_j=50.0)}

    for left_j, feasible in ((work_j + 49.0, False), (work_j + 51.0, True)):
        plan = plan_round(PolicySpec(name="energy-budget", budget_j=left_j), fronts, ["a"])
        assert plan.energy_j == pytest.approx(work_j + 50.0)
        assert plan.feasible == feasible


def test_what_is_spent_travels_with_a_budget_only():
    budgeted = plan_round(PolicySpec(name="energy-budget", budget_j=900.0), FRONTS, ["a"], spent_j=100.0)

    assert budgeted.goals["a"].limits == {"budget_j": 900.0, "spent_j": 100.0, "resting_w": FRONTS["b"].idle_w}
    assert plan_round(PolicySpec(name="balanced"), FRONTS, ["a"], spent_j=100.0).goals["a"].limits == {}


def test_the_selector_s_shares_of_the_steps_reach_the_boards_of_a_round_without_a_planner():
    maxn, planned = (
        plan_round(PolicySpec(name=name), FRONTS, ["a", "b"], shares={"a": 3.0}) for name in ("maxn", "balanced")
    )

    assert {board: goal.share for board, goal in maxn.goals.items()} == {"a": 3.0, "b": 1.0}
    assert {goal.share for goal in planned.goals.values()} == {1.0}
