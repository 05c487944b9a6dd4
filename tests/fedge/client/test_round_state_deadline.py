"""No round that the fastest mode keeps is late, whatever is tried or done slowly in it."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from contracts.rounds import (
    ALL,
    LINK_S,
    LOW,
    MAXN,
    WITHOUT_SLACK,
    Bench,
    ExactDevice,
    Noted,
    cheapest_known,
    ended_s,
    explorations,
    goal_of,
    histories,
    kept_slowdowns,
    parts_of,
    policies,
    seen,
    steps,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.client.step_accounting import mode_switch_s, warm_up_steps
from fedge.experiment import ExplorationSpec
from fedge.protocols import Policy
from fedge.types import Decision, Measurement, RoundGoal


@given(steps, kept_slowdowns, explorations, histories, policies)
@settings(max_examples=150)
def test_with_times_known_exactly_no_round_that_the_fastest_mode_keeps_is_late(
    n: int, slowdown: float, exploration: ExplorationSpec, history: list[Measurement], policy: Policy
) -> None:
    goal, unlimited = goal_of(n, slowdown), exploration.model_copy(update={"modes": None})
    cold = [dataclasses.replace(m, warm_up_s=0.0) for m in history]

    played = Bench(exploration=unlimited, policy=Noted(policy)).play(goal, cold)

    assert goal.deadline_s is not None
    assert ended_s(played) <= goal.deadline_s * (1 + exploration.slack) * (1 + 1e-6)


def test_where_nothing_was_tried_the_slack_is_not_used() -> None:
    goal = goal_of(60, 1.5)
    played = Bench(exploration=ExplorationSpec(slack=0.1)).play(goal, ALL)

    assert played.probes == ()
    assert ended_s(played) <= (goal.deadline_s or 0.0) * (1 + 1e-6)


def test_a_known_warm_up_in_the_slower_part_does_not_make_the_round_late() -> None:
    warm, still = [seen(mode, 3.0) for mode in (MAXN, LOW)], ExplorationSpec(share=0.0, slack=0.0)
    late_s = []
    for slowdown in np.linspace(1.1, 1.9, 41):
        deadline_s = LINK_S + float(slowdown) * (10 + 3.0)
        played = Bench(ExactDevice(warm_up=3.0), exploration=still).play(RoundGoal("noted", 10, deadline_s), warm)
        late_s.append(ended_s(played) - deadline_s)

    assert max(late_s) <= 1e-6


@pytest.mark.parametrize(("warm_up", "switch_s"), [(3.0, 0.0), (0.0, 0.5)], ids=["warm-up", "changes of mode"])
def test_a_known_warm_up_and_known_changes_of_mode_are_counted_where_a_trial_is_made(
    warm_up: float, switch_s: float
) -> None:
    """The rest is done at full speed: only the trial is to blame."""
    maxn_only = Noted(lambda *_: Decision(MAXN, "The fastest."))
    late_s = []
    for slowdown in np.linspace(1.0, 1.6, 61):
        goal = RoundGoal("noted", 10, LINK_S + float(slowdown) * (10 + warm_up))
        bench = Bench(ExactDevice(warm_up, switch_s), policy=maxn_only, exploration=WITHOUT_SLACK)
        late_s.append(ended_s(bench.play(goal, [seen(MAXN, warm_up, switch_s)])) - (goal.deadline_s or 0.0))

    assert max(late_s) <= 1e-6


@given(steps, st.sampled_from([1.05, 1.3, 1.7]), explorations, policies)
def test_neither_trials_nor_a_slower_part_make_a_round_pass_one_s_own_deadline(
    n: int, slowdown: float, exploration: ExplorationSpec, policy: Policy
) -> None:
    own_s = goal_of(n, slowdown).deadline_s
    assert own_s is not None
    goal = dataclasses.replace(goal_of(n, 3.0), limits={"deadline_s": own_s})

    played = Bench(exploration=exploration, policy=Noted(policy)).play(goal, [seen(MAXN)])

    assert ended_s(played) <= own_s * (1 + 1e-6)


@given(steps, st.sampled_from([1.05, 1.3, 3.0]), histories, st.sampled_from([None, 0.5, 1.1, 9.0]))
@settings(max_examples=50)
def test_after_each_trial_fewer_steps_and_less_time_are_left(
    n: int, slowdown: float, history: list[Measurement], own: float | None
) -> None:
    """A planned deadline may be passed by the slack once something was tried, one's own may not.

    After a trial a change of mode is still to come, which takes from both.
    """
    bench, planned = Bench(policy=Noted(cheapest_known)), goal_of(n, slowdown)
    assert planned.deadline_s is not None
    own_s = math.inf if own is None else own * planned.deadline_s
    limits = {"power_w": 9.0} if own is None else {"power_w": 9.0, "deadline_s": own_s}

    played = bench.play(dataclasses.replace(planned, limits=limits), history)

    assert len(bench.policy.goals) == len(played.probes) + 1
    for i, left in enumerate(bench.policy.goals):
        spent = sum(p.steps for p in played.probes[:i])
        spent_s = sum(p.work_s for p in played.probes[:i])
        slack = bench.exploration.slack if i else 0.0
        assert left.steps == n - spent + (0.0 if i else warm_up_steps(history))
        change_s = mode_switch_s([*history, *played.probes[:i]]) if i else 0.0
        assert left.deadline_s == pytest.approx(min(own_s, planned.deadline_s * (1 + slack)) - spent_s - change_s)
        assert left.limits["power_w"] == 9.0
        assert left.limits.get("deadline_s", math.inf) == pytest.approx(own_s - spent_s - change_s)


def test_with_a_limit_on_modes_a_board_that_never_saw_the_fastest_mode_keeps_a_deadline_that_needs_it() -> None:
    """Another policy had it work in the cheapest mode."""
    exploration = ExplorationSpec(modes=4, probe_s=2.5, slack=0.0)
    history = [seen(LOW)]
    goal = goal_of(60, 1.0)
    played = Bench(exploration=exploration).play(goal, history)

    assert ended_s(played) <= (goal.deadline_s or 0.0) * (1 + 1e-6)


@pytest.mark.parametrize("off", [{"share": 0.0}, {"probes": 0}])
def test_with_trials_off_a_board_is_not_bound_to_the_modes_of_its_first_round(off: dict[str, float]) -> None:
    exploration = ExplorationSpec.model_validate(off)
    history = parts_of(Bench(exploration=exploration).play(goal_of(60, 3.0)))
    goal = goal_of(60, 1.2)
    played = Bench(exploration=exploration).play(goal, history)

    assert ended_s(played) <= 1.02 * (goal.deadline_s or 0.0)


@given(steps, kept_slowdowns, histories)
def test_what_a_deadline_allowed_per_minibatch_fills_it(n: int, slowdown: float, history: list[Measurement]) -> None:
    goal = goal_of(n, slowdown)
    allowed_s = Bench().play(goal, history).step_budget_s

    assert allowed_s is not None
    assert LINK_S + (n + warm_up_steps(history)) * allowed_s == pytest.approx(goal.deadline_s)
    assert Bench().play(goal_of(n, None), history).step_budget_s is None
