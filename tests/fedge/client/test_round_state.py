"""A round's work is done part by part, ends where the board must stop, and leaves the mode it found."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from contracts.rounds import (
    ALL,
    LINK,
    LINK_S,
    LOW,
    MAXN,
    SOME,
    TRUTH,
    WITHOUT_SLACK,
    Bench,
    Counted,
    ExactDevice,
    Truth,
    ended_s,
    explorations,
    goal_of,
    histories,
    parts_of,
    seen,
    slowdowns,
    steps,
)
from hypothesis import given
from hypothesis import strategies as st

from fedge.client.prediction_requests import run_alone
from fedge.client.round import begin_round, finish_round, run_round
from fedge.experiment import ExplorationSpec
from fedge.types import Measurement, TrainingScale, Workload


def test_more_of_the_slower_mode_follows_at_once_where_it_took_less_than_expected() -> None:
    """Both parts are one part of the round."""
    quicker = Truth(np.array([1.0, 1.1, 1.3, 1.8]), TRUTH.power_w)
    bench, goal = Bench(ExactDevice(truth=quicker), exploration=WITHOUT_SLACK), goal_of(60, 1.5)
    played = bench.play(goal, ALL)

    modes = [part.mode for part in bench.device.measured]
    slow = [part.steps for part in bench.device.measured if part.mode == LOW]
    assert modes[:2] == [LOW, LOW]
    assert modes == sorted(modes, key=modes.index), "the mode is changed once"
    assert played.mixed is not None
    assert played.mixed.steps == sum(slow) > slow[0]
    assert ended_s(played) <= (goal.deadline_s or 0.0) * (1 + 1e-6)


@given(steps, slowdowns, explorations, histories, st.floats(0.0, 90.0), st.sampled_from([0.0, 1.5]), st.booleans())
def test_a_board_that_must_stop_begins_no_second_minibatch_past_it_in_any_part_and_does_at_least_one(
    n: int,
    slowdown: float | None,
    exploration: ExplorationSpec,
    history: list[Measurement],
    stop_s: float,
    warm_up: float,
    slow_switch: bool,
) -> None:
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


def test_no_part_begins_after_the_stop() -> None:
    bench = Bench(exploration=ExplorationSpec(share=0.9, probe_s=0.0))

    bench.play(dataclasses.replace(goal_of(60, 3.0), stop_s=LINK_S + 0.5))

    assert [part.steps for part in bench.device.measured] == [1]


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
def test_the_mode_found_is_restored_when_training_fails(fails_at: int) -> None:
    bench = Bench(training=Counted(fails_at))

    with pytest.raises(RuntimeError, match="no more samples"):
        bench.play(goal_of(40, 3.0), [seen(MAXN)])

    assert bench.device.mode == MAXN
    assert sum(bench.training.parts) < fails_at


@pytest.mark.parametrize("fails_at", [1, 2])
@pytest.mark.parametrize("history", [ALL, [seen(MAXN)]], ids=["mixing", "trying"])
def test_the_mode_found_is_restored_when_metering_fails(fails_at: int, history: list[Measurement]) -> None:
    device = BrokenDevice(fails_at)
    device.mode = SOME

    with pytest.raises(OSError, match="the sensor is gone"):
        Bench(device=device).play(goal_of(60, 1.5), history)

    assert device.mode == SOME
    assert len(device.measured) == fails_at - 1


def test_a_round_that_fails_keeps_the_parts_that_were_measured() -> None:
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


def test_a_board_works_no_longer_than_its_reply_counts() -> None:
    bench = Bench()
    player = dataclasses.replace(bench.player, time_left_s=lambda: 2.5)

    played = run_round(player, goal=goal_of(8, None), measurements=ALL, link=LINK, training=bench.training)

    assert sum(part.steps for part in parts_of(played)) == 2


def test_measurements_carry_their_scale_and_the_time_lost_before_them() -> None:
    bench, scale = Bench(), TrainingScale(4)
    player = dataclasses.replace(bench.player, scale=scale, lost_s=3.0)

    parts = parts_of(run_round(player, goal=goal_of(60, 1.5), measurements=ALL, link=LINK, training=bench.training))

    assert {part.scale for part in parts} == {scale}
    assert [part.lost_s for part in parts] == [3.0, *[0.0] * (len(parts) - 1)]
