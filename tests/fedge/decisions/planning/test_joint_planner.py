"""The plan of the policy joint: who works how much, and what the clients are asked for."""

from __future__ import annotations

from contracts.fronts import MODE, some_front
from hypothesis import given
from hypothesis import strategies as st

from fedge.decisions.planning.joint_planner import JointContext, UpdateEncoding, plan_joint
from fedge.types import Compression, Front, FrontPoint, RoundGoal

GOAL = RoundGoal("joint", 0)
ENCODINGS = (UpdateEncoding(), UpdateEncoding(Compression("int8"), 0.25), UpdateEncoding(Compression("topk"), 0.1))


def a_front(work_s: float, up_s: float = 0.0, up_share: float = 1.0) -> Front:
    """Two modes, the slower one cheaper; 2 s of download."""
    points = (FrontPoint(MODE, work_s, 20.0 * work_s), FrontPoint(MODE, 1.5 * work_s, 18.0 * work_s))
    return Front(points, points[0], 2.0, 2.0 + up_s, 4.0, up_s=up_s, up_share=up_share)


def test_a_slow_client_gets_fewer_steps_than_fast_ones() -> None:
    fronts = {"slow": a_front(60.0), **{f"fast-{i}": a_front(5.0) for i in range(5)}}
    context = JointContext(weights={"slow": 3.0, **{f"fast-{i}": 1.0 for i in range(5)}})
    plan = plan_joint(fronts, list(fronts), GOAL, context)
    assert plan.goals["slow"].share < min(plan.goals[name].share for name in fronts if name != "slow")
    assert plan.deadline_s is not None
    assert plan.deadline_s < 40.0


def test_on_a_slow_link_updates_are_encoded_and_on_none_they_are_not() -> None:
    context = JointContext(encodings=ENCODINGS)
    slow = plan_joint({"a": a_front(5.0, up_s=60.0), "b": a_front(5.0, up_s=60.0)}, ["a", "b"], GOAL, context)
    assert {goal.compression.kind for goal in slow.goals.values()} <= {"int8", "topk"}
    none = plan_joint({"a": a_front(5.0), "b": a_front(5.0)}, ["a", "b"], GOAL, context)
    assert {goal.compression.kind for goal in none.goals.values()} <= {"none", "int8"}


def test_a_front_that_was_offered_with_an_encoded_update_gives_the_same_plan() -> None:
    context = JointContext(encodings=ENCODINGS)
    whole = plan_joint({"a": a_front(5.0, up_s=40.0)}, ["a"], GOAL, context)
    encoded = plan_joint({"a": a_front(5.0, up_s=10.0, up_share=0.25)}, ["a"], GOAL, context)
    assert whole.deadline_s == encoded.deadline_s
    assert whole.goals == encoded.goals


def test_a_client_that_is_worth_little_for_its_time_rests_and_its_idle_energy_counts() -> None:
    fronts = {"far": a_front(5.0, up_s=500.0), **{f"near-{i}": a_front(5.0) for i in range(4)}}
    goal = RoundGoal("joint", 0, limits={"min_progress": 0.5})
    plan = plan_joint(fronts, list(fronts), goal)
    assert set(plan.goals) == {f"near-{i}" for i in range(4)}
    assert plan.energy_j is not None
    assert plan.round_s is not None
    assert plan.energy_j > 5 * 2.0 * plan.round_s


def test_a_client_that_waited_long_is_worth_its_time() -> None:
    fronts = {"far": a_front(5.0, up_s=30.0), **{f"near-{i}": a_front(5.0) for i in range(4)}}
    goal = RoundGoal("joint", 0, limits={"min_progress": 0.5})
    context = JointContext(weights={"far": 20.0, **{f"near-{i}": 1.0 for i in range(4)}})
    assert "far" not in plan_joint(fronts, list(fronts), goal).goals
    assert "far" in plan_joint(fronts, list(fronts), goal, context).goals


def test_clients_without_a_front_take_part_with_their_whole_share() -> None:
    plan = plan_joint({"known": a_front(5.0)}, ["known", "new"], GOAL)
    assert plan.goals["new"] == GOAL
    assert plan_joint({}, ["new"], GOAL).goals == {"new": GOAL}


def test_limits_are_kept_or_the_plan_says_that_they_cannot_be() -> None:
    fronts = {"a": a_front(20.0), "b": a_front(10.0)}
    within = plan_joint(fronts, ["a", "b"], RoundGoal("joint", 0, limits={"deadline_s": 9.0, "min_progress": 0.2}))
    assert within.feasible
    assert within.deadline_s is not None
    assert within.deadline_s <= 9.0
    beyond = plan_joint(fronts, ["a", "b"], RoundGoal("joint", 0, limits={"deadline_s": 1.0}))
    assert not beyond.feasible
    assert beyond.why.endswith("Not within the limits.")


def test_under_a_limit_on_watts_every_client_gets_its_own_and_they_add_up() -> None:
    fronts = {"a": a_front(20.0), "b": a_front(10.0)}
    limits = {"fleet_power_w": 36.0, "min_progress": 0.2}
    plan = plan_joint(fronts, ["a", "b"], RoundGoal("joint", 0, limits=limits))
    assert plan.feasible
    assert sum(goal.limits["power_w"] for goal in plan.goals.values()) <= 36.0 + 1e-6


@given(st.lists(some_front, min_size=1, max_size=4), st.floats(0.0, 1.0))
def test_the_order_of_the_boards_makes_no_difference(fronts: list[Front], time_weight: float) -> None:
    named = {f"b{i}": front for i, front in enumerate(fronts)}
    goal = RoundGoal("joint", 0, limits={"time_weight": time_weight})
    turned = plan_joint(dict(reversed(named.items())), list(reversed(named)), goal)
    assert turned.goals == plan_joint(named, list(named), goal).goals


def test_the_reason_names_the_gap_to_the_bound() -> None:
    assert "of the least cost" in plan_joint({"a": a_front(5.0)}, ["a"], GOAL).why
