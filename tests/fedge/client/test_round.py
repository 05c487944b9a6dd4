"""One client's round: trials, a part in a slower mode and the rest share its steps, training and deadline."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from contracts.rounds import (
    ALL,
    IDLE_W,
    LINK_S,
    LOW,
    MAXN,
    MODES,
    SOME,
    WITHOUT_SLACK,
    Bench,
    Doubtful,
    ExactDevice,
    Noted,
    Truth,
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
from hypothesis import given
from hypothesis import strategies as st

from fedge.experiment import ExplorationSpec
from fedge.protocols import Policy
from fedge.types import Measurement, ModeMix, PowerMode


@given(steps, slowdowns, explorations, histories, st.sampled_from([0.0, 0.05, 0.3]), policies)
def test_trials_the_slower_part_and_the_rest_add_up_to_the_round_and_are_what_was_trained(
    n: int,
    slowdown: float | None,
    exploration: ExplorationSpec,
    history: list[Measurement],
    time_sd: float,
    policy: Policy,
) -> None:
    bench = Bench(predictor=Doubtful(time_sd), exploration=exploration, policy=Noted(policy))

    played = bench.play(goal_of(n, slowdown), history)

    parts = parts_of(played)
    done = bench.device.measured
    assert sum(part.steps for part in parts) == n == sum(bench.training.parts)
    assert min(part.steps for part in parts) >= 1
    assert bench.training.parts == [part.steps for part in done]
    assert played.trained.arrays["w"] == n
    assert _modes_in_turn(parts) == _modes_in_turn(done)
    assert sum(part.work_s for part in parts) == pytest.approx(sum(part.work_s for part in done))
    assert sum(part.work_j for part in parts) == pytest.approx(sum(part.work_j for part in done))


def _modes_in_turn(parts: Sequence[Measurement]) -> list[PowerMode]:
    return [part.mode for i, part in enumerate(parts) if i == 0 or part.mode != parts[i - 1].mode]


@given(steps, st.floats(1.0, 2.5), st.data())
def test_with_everything_known_a_round_takes_no_more_energy_than_in_the_fastest_mode(
    n: int, slowdown: float, data: st.DataObject
) -> None:
    """Joules above idling; the margins of measured modes make up to 2 %."""
    slower = st.lists(st.floats(1.0, 3.0), min_size=3, max_size=3)
    draw = st.lists(st.floats(6.0, 30.0), min_size=4, max_size=4)
    truth = Truth(np.array([1.0, *data.draw(slower)]), np.array(data.draw(draw)))
    bench = Bench(ExactDevice(truth=truth), Doubtful(truth=truth))

    played = bench.play(goal_of(n, slowdown, truth), [truth.seen(mode) for mode in MODES])

    above_j = sum(part.work_j - IDLE_W[LOW] * part.work_s for part in parts_of(played))
    assert above_j <= 1.02 * n * (float(truth.power_w[0]) - IDLE_W[LOW])
    assert played.probes == ()


def test_a_deadline_between_two_known_modes_is_met_by_a_part_in_each_the_slower_first() -> None:
    bench = Bench(exploration=WITHOUT_SLACK)
    played = bench.play(goal_of(60, 1.5), ALL)

    assert played.mixed is not None
    assert (played.mixed.mode, played.measured.mode) == (LOW, SOME)
    assert played.mixed.steps + played.measured.steps == 60
    assert played.decision.mix == ModeMix(LOW, played.mixed.steps)
    assert played.decision.mode == SOME
    assert bench.device.measured[0].mode == LOW
    ended = ended_s(played)
    assert 1.45 * (60 + LINK_S) <= ended <= 1.5 * (60 + LINK_S) * (1 + 1e-9), "little of the time is left over"


@given(steps, kept_slowdowns, st.sampled_from([None, *MODES]))
def test_with_two_modes_a_round_takes_no_more_energy_than_in_the_best_single_one(
    n: int, slowdown: float, only: PowerMode | None
) -> None:
    """One of them at full margin; ``only`` bounds what the board knows to two modes, and with None to all."""
    history = ALL if only is None else [seen(MAXN), seen(only)]
    known = {m.mode for m in history}
    goal = goal_of(n, slowdown)
    assert goal.deadline_s is not None

    played = Bench(exploration=ExplorationSpec(modes=len(known))).play(goal, history)

    safe_s = (goal.deadline_s - LINK_S) / n / 1.02
    singles = [m for m in history if m.step_s <= safe_s] or [seen(MAXN)]
    best_j = min(n * m.step_s * (m.power_w - IDLE_W[LOW]) for m in singles)
    assert {part.mode for part in parts_of(played)} <= known
    assert sum(part.work_j - IDLE_W[LOW] * part.work_s for part in parts_of(played)) <= best_j * (1 + 1e-6) + 2.0


@given(st.floats(1.0, 60.0))
def test_a_board_that_must_stop_reports_the_mode_it_stopped_in(stop_s: float) -> None:
    played = Bench().play(dataclasses.replace(goal_of(60, 1.5), stop_s=stop_s), ALL)

    assert played.decision.mode == played.measured.mode
    if played.measured.mode == LOW:
        assert not played.decision.feasible
        assert played.decision.mix is None


def test_a_board_with_time_enough_works_as_if_it_never_had_to_stop() -> None:
    goal = goal_of(60, 1.5)
    stopping, free = (Bench().play(dataclasses.replace(goal, stop_s=stop_s), [seen(MAXN)]) for stop_s in (1e6, None))
    assert parts_of(stopping) == parts_of(free)
    assert stopping.decision == free.decision
