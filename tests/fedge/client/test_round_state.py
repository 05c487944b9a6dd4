"""A round's work is done part by part, ends where the board must stop, and leaves the mode it found."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
from contracts.rounds import (
    ALL,
    LINK,
    LINK_S,
    LOW,
    MAXN,
    MID,
    SOME,
    TRUTH,
    WITHOUT_SLACK,
    Bench,
    Counted,
    ExactDevice,
    Noted,
    Truth,
    cheapest_known,
    ended_s,
    explorations,
    goal_of,
    histories,
    kept_slowdowns,
    parts_of,
    policies,
    seen,
    slowdowns,
    steps,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.client.prediction_requests import run_alone
from fedge.client.round import begin_round, finish_round, run_round
from fedge.client.round_state import (
    DEFAULT_MODE_SWITCH_S,
    count_steps,
    merge_consecutive,
    mode_switch_s,
    warm_up_steps,
)
from fedge.types import Decision, Measurement, RoundGoal, TrainingScale, Workload


def test_more_of_the_slower_mode_follows_at_once_where_it_took_less_than_expected():
    """Both parts are one part of the round."""
    quicker = Truth(np.array([1.0, 1.1, 1.3, 1.8]), TRUTH.power_w)
    bench, goal = Bench(ExactDevice(truth=quicker), exploration=WITHOUT_SLACK), goal_of(60, 1.5)
    played = bench.play(goal, ALL)

    modes = [part.mode for part in bench.device.measured]
    slow = [part.steps for part in bench.device.measured if part.mode == LOW]
    assert modes[:2] == [LOW, LOW]
    assert modes == sorted(modes, key=modes.index), "the mode is changed once"
    assert played.mixed.steps == sum(slow) > slow[0]
    assert ended_s(played) <= (goal.deadline_s or 0.0) * (1 + 1e-6)


@given(steps, slowdowns, explorations, histories, st.floats(0.0, 90.0), st.sampled_from([0.0, 1.5]), st.booleans())
def test_a_board_that_must_stop_begins_no_second_minibatch_past_it_in_any_part_and_does_at_least_one(
    n, slowdown, exploration, history, stop_s, warm_up, slow_switch
):
    bench = Bench(ExactDevice(warm_up, 0.4 * slow_switch), exploration=exploration)

    played = bench.play(dataclasses.replace(goal_of(n, slowdown), stop_s=stop_s), history)

    last, done = bench.device.measured[-1], sum(part.steps for part in parts_of(played))
    assert 1 <= done <= n
    assert sum(bench.training.parts) == done
    assert played.trained.arrays["w"] == done
    end_s = LINK_S
    for part in bench.device.measured:
        end_s += part.work_s
        assert end_s <= stop_s * (1 + 1e-9) or part.steps == 1
    assert done == n or ended_s(played) + last.step_s > stop_s * (1 - 1e-9), "time for another minibatch was left"


class BrokenDevice(ExactDevice):
    """Fails when it is to meter for the ``fails_at``-th time."""

    def __init__(self, fails_at: int) -> None:
        super().__init__()
        self._fails_at = fails_at

    def measure(
        self, workload: Workload, steps: int, work: Callable[[int], object], limit_s: float | None = None
    ) -> Measurement:
        if len(self.measured) + 1 == self._fails_at:
            raise OSError("the sensor is gone")
        return super().measure(workload, steps, work, limit_s)


@pytest.mark.parametrize("fails_at", [1, 2, 30])
def test_the_mode_found_is_restored_when_training_fails(fails_at):
    bench = Bench(training=Counted(fails_at))

    with pytest.raises(RuntimeError, match="no more samples"):
        bench.play(goal_of(40, 3.0), [seen(MAXN)])

    assert bench.device.mode == MAXN
    assert sum(bench.training.parts) < fails_at


@pytest.mark.parametrize("fails_at", [1, 2])
@pytest.mark.parametrize("history", [ALL, [seen(MAXN)]], ids=["mixing", "trying"])
def test_the_mode_found_is_restored_when_metering_fails(fails_at, history):
    device = BrokenDevice(fails_at)
    device.mode = SOME

    with pytest.raises(OSError, match="the sensor is gone"):
        Bench(device=device).play(goal_of(60, 1.5), history)

    assert device.mode == SOME
    assert len(device.measured) == fails_at - 1


def test_a_round_that_fails_keeps_the_parts_that_were_measured():
    bench = Bench(training=Counted(fails_at=30), exploration=WITHOUT_SLACK)
    state = run_alone(
        begin_round(
            bench.player,
            goal=goal_of(60, 1.5),
            measurements=ALL,
            link=LINK,
            training=bench.training,
            peer_measurements=(),
        )
    )

    with pytest.raises(RuntimeError):
        run_alone(finish_round(state))

    assert state.parts == bench.device.measured
    assert sum(part.steps for part in state.parts) == sum(bench.training.parts) < 30


def test_a_board_works_no_longer_than_its_reply_counts():
    bench = Bench()
    player = dataclasses.replace(bench.player, time_left_s=lambda: 2.5)

    played = run_round(player, goal=goal_of(8, None), measurements=ALL, link=LINK, training=bench.training)

    assert sum(part.steps for part in parts_of(played)) == 2


def test_measurements_carry_their_scale_and_the_time_lost_before_them():
    bench, scale = Bench(), TrainingScale(4)
    player = dataclasses.replace(bench.player, scale=scale, lost_s=3.0)

    parts = parts_of(run_round(player, goal=goal_of(60, 1.5), measurements=ALL, link=LINK, training=bench.training))

    assert {part.scale for part in parts} == {scale}
    assert [part.lost_s for part in parts] == [3.0, *[0.0] * (len(parts) - 1)]


@given(steps, kept_slowdowns, explorations, histories, policies)
@settings(max_examples=150)
def test_with_times_known_exactly_no_round_that_the_fastest_mode_keeps_is_late(
    n, slowdown, exploration, history, policy
):
    goal, unlimited = goal_of(n, slowdown), exploration.model_copy(update={"modes": None})
    cold = [dataclasses.replace(m, warm_up_s=0.0) for m in history]

    played = Bench(exploration=unlimited, policy=Noted(policy)).play(goal, cold)

    assert ended_s(played) <= goal.deadline_s * (1 + exploration.slack) * (1 + 1e-6)


@pytest.mark.parametrize(("warm_up", "switch_s"), [(3.0, 0.0), (0.0, 0.5)], ids=["warm-up", "changes of mode"])
def test_a_known_warm_up_and_known_changes_of_mode_are_counted_where_a_trial_is_made(warm_up, switch_s):
    """The rest is done at full speed: only the trial is to blame."""
    maxn_only = Noted(lambda *_: Decision(MAXN, "The fastest."))
    late_s = []
    for slowdown in np.linspace(1.0, 1.6, 61):
        goal = RoundGoal("noted", 10, LINK_S + float(slowdown) * (10 + warm_up))
        bench = Bench(ExactDevice(warm_up, switch_s), policy=maxn_only, exploration=WITHOUT_SLACK)
        late_s.append(ended_s(bench.play(goal, [seen(MAXN, warm_up, switch_s)])) - (goal.deadline_s or 0.0))

    assert max(late_s) <= 1e-6


@given(steps, st.sampled_from([1.05, 1.3, 1.7]), explorations, policies)
def test_neither_trials_nor_a_slower_part_make_a_round_pass_one_s_own_deadline(n, slowdown, exploration, policy):
    own_s = goal_of(n, slowdown).deadline_s
    goal = dataclasses.replace(goal_of(n, 3.0), limits={"deadline_s": own_s})

    played = Bench(exploration=exploration, policy=Noted(policy)).play(goal, [seen(MAXN)])

    assert ended_s(played) <= own_s * (1 + 1e-6)


@given(steps, st.sampled_from([1.05, 1.3, 3.0]), histories, st.sampled_from([None, 0.5, 1.1, 9.0]))
@settings(max_examples=50)
def test_after_each_trial_fewer_steps_and_less_time_are_left(n, slowdown, history, own):
    """A planned deadline may be passed by the slack once something was tried, one's own may not.

    After a trial a change of mode is still to come, which takes from both.
    """
    bench, planned = Bench(policy=Noted(cheapest_known)), goal_of(n, slowdown)
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


@given(steps, kept_slowdowns, histories)
def test_what_a_deadline_allowed_per_minibatch_fills_it(n, slowdown, history):
    goal = goal_of(n, slowdown)
    allowed_s = Bench().play(goal, history).step_budget_s

    assert LINK_S + (n + warm_up_steps(history)) * allowed_s == pytest.approx(goal.deadline_s)
    assert Bench().play(goal_of(n, None), history).step_budget_s is None


@given(
    st.lists(st.tuples(st.integers(1, 50), st.floats(0.1, 3.0), st.floats(2.0, 30.0), st.floats(0.0, 4.0)),
             min_size=2, max_size=2)
)  # fmt: skip
def test_two_parts_together_take_what_they_took_one_by_one(figures):
    """The mode changes before the first of them only."""
    (n, t, w, extra_s), (m, u, v, _) = figures
    first, more = Measurement(MID, n, t, w, warm_up_s=extra_s, switch_s=extra_s / 2), Measurement(MID, m, u, v)
    hot = dataclasses.replace(first, throttled=True)

    whole = merge_consecutive(first, more)

    assert whole.steps == first.steps + more.steps
    assert whole.work_s == pytest.approx(first.work_s + more.work_s)
    assert whole.work_j == pytest.approx(first.work_j + more.work_j)
    assert (merge_consecutive(hot, more).throttled, merge_consecutive(more, hot).throttled, whole.throttled) == (
        True,
        True,
        False,
    )


def test_a_change_of_mode_takes_the_median_of_those_seen_and_a_guess_before():
    assert mode_switch_s([]) == mode_switch_s([seen(LOW)]) == DEFAULT_MODE_SWITCH_S
    assert mode_switch_s([seen(LOW, 0.0, 0.3), seen(MAXN), seen(LOW, 0.0, 0.0), seen(MID, 0.0, 9.0)]) == pytest.approx(
        0.3
    )


@given(st.integers(1, 500), st.integers(1, 64), st.sampled_from([0.01, 0.5, 1.0, 2.0, 3.7]))
def test_a_share_s_minibatches_cover_it_once_per_epoch(samples, batch_size, epochs):
    count = count_steps(samples, batch_size, epochs)
    assert count >= 1
    assert abs(count - math.ceil(samples / batch_size) * epochs) <= 0.5 or count == 1
