"""What the server asks of every client."""

from __future__ import annotations

import pytest
from contracts.reports import front

from fedge.experiment import PolicySpec
from server.plan import plan_round

FRONTS = {"a": front(), "b": front(2.0)}


def test_a_balanced_round_is_never_planned_longer_than_the_slowdown_allows() -> None:
    plan = plan_round(PolicySpec(name="balanced", max_slowdown=1.2, time_weight=0.0), FRONTS, ["a", "b"])

    assert plan.deadline_s is not None
    assert 22.0 <= plan.deadline_s <= 1.2 * 22.0


def test_only_selected_boards_count() -> None:
    plan = plan_round(PolicySpec(name="balanced"), FRONTS, ["a"])

    assert plan.deadline_s == pytest.approx(12.0, rel=0.06)
    assert list(plan.goals) == ["a"]


def test_a_board_without_a_front_takes_part_without_being_planned_for() -> None:
    plan = plan_round(PolicySpec(name="balanced"), FRONTS, ["a", "new"])

    assert plan.goals["new"].deadline_s == plan.deadline_s


def test_without_any_front_there_is_no_plan() -> None:
    assert plan_round(PolicySpec(name="balanced"), {}, ["a"]).deadline_s is None


def test_the_users_own_deadline_and_limits_reach_the_boards() -> None:
    plan = plan_round(PolicySpec(name="least-energy-within-deadline", deadline_s=33.0), FRONTS, ["a", "b"])

    assert plan.deadline_s == 33.0
    assert plan.goals["b"].limits == {"deadline_s": 33.0}
