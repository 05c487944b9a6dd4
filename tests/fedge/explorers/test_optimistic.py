"""What is proposed for trying is new, worthwhile and safe; held against brute force over small random tables."""

from __future__ import annotations

import copy
import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.explorers.optimistic import KNOWN_SD_LOG, MARGIN, WORTHWHILE, Room, probe_steps, propose
from fedge.types import Modes, PowerMode, Predictions

GRID = np.array([[c, f, g, 1600.0] for c in (1, 2) for f in (400.0, 800.0) for g in (300.0, 600.0)])
IDLE_W = 2.0
NEAR = 1e-9
"""Share by which rounding may move a comparison."""


def table(step_s: list[float], power_w: list[float], time_sd: list[float], power_sd: list[float]) -> Predictions:
    n = len(step_s)
    return Predictions(
        Modes(GRID[:n]), np.array(step_s), np.array(power_w), np.array(time_sd, float), np.array(power_sd, float)
    )


@dataclasses.dataclass(frozen=True)
class Case:
    """One question to the explorer."""

    predictions: Predictions
    present: PowerMode
    tried: frozenset[PowerMode]
    room: Room

    @property
    def proposed(self) -> PowerMode | None:
        return propose(self.predictions, IDLE_W, self.present, self.tried, self.room)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    n = draw(st.integers(1, len(GRID)))

    def column(low: int, high: int, unit: float) -> list[float]:
        return [v * unit for v in draw(st.lists(st.integers(low, high), min_size=n, max_size=n))]

    predictions = table(column(1, 8, 0.25), column(9, 40, 0.5), column(0, 6, 0.05), column(0, 6, 0.05))
    rows = st.integers(0, n - 1)
    tried = frozenset(predictions.modes[i] for i in draw(st.sets(rows, max_size=n)))
    room = Room(draw(st.integers(1, 20)), draw(st.integers(0, 120)) / 4, draw(st.sampled_from([0.0, 0.5, 2.0])))
    return Case(predictions, predictions.modes[draw(rows)], tried, room)


def at_best_j(predictions: Predictions, row: int) -> float:
    """Literal: joules above idling of one step, time and power one spread below what is expected."""
    t, p = predictions.step_s[row], predictions.power_w[row]
    low_s = t * math.exp(-predictions.step_s_sd_log[row])
    return low_s * (p * math.exp(-predictions.power_w_sd_log[row]) - IDLE_W)


def ends_s(predictions: Predictions, row: int, room: Room, margin: float) -> float:
    """Literal: the probe in ``row``, then all other steps at full speed; infinite when the round has too few steps."""
    late_s = [t * math.exp(margin * sd) for t, sd in zip(predictions.step_s, predictions.step_s_sd_log, strict=True)]
    steps = max(1, math.ceil(room.probe_s / predictions.step_s[row]))
    return steps * late_s[row] + (room.steps - steps) * min(late_s) if steps <= room.steps else math.inf


def is_worthwhile(case: Case, row: int, slack: float) -> bool:
    """``slack`` above 1 judges generously, below 1 strictly."""
    predictions = case.predictions
    now = list(predictions.modes).index(case.present)
    present_j = predictions.step_s[now] * (predictions.power_w[now] - IDLE_W)
    low_s = predictions.step_s[row] * math.exp(-predictions.step_s_sd_log[row])
    saves = at_best_j(predictions, row) < (1 - WORTHWHILE) * present_j + (slack - 1) * abs(present_j)
    return saves and case.room.steps * low_s <= case.room.left_s * slack


def is_safe(case: Case, row: int, slack: float) -> bool:
    known = case.predictions.step_s_sd_log[row] <= KNOWN_SD_LOG
    margins = (MARGIN, 0.0) if known else (MARGIN,)
    return any(ends_s(case.predictions, row, case.room, m) <= case.room.left_s * slack for m in margins)


def new_rows(case: Case) -> list[int]:
    return [i for i, mode in enumerate(case.predictions.modes) if mode not in case.tried]


@given(cases())
def test_a_mode_that_was_tried_is_never_proposed(case: Case) -> None:
    assert case.proposed not in case.tried


@given(cases())
def test_a_probe_leaves_time_for_the_rest_at_full_speed(case: Case) -> None:
    if (mode := case.proposed) is not None:
        assert is_safe(case, list(case.predictions.modes).index(mode), 1 + NEAR)


@given(cases())
def test_a_probe_could_save_clearly_more_than_the_present_choice(case: Case) -> None:
    if (mode := case.proposed) is not None:
        assert is_worthwhile(case, list(case.predictions.modes).index(mode), 1 + NEAR)


@given(cases())
def test_a_new_worthwhile_and_safe_mode_is_never_overlooked(case: Case) -> None:
    strictly = [i for i in new_rows(case) if is_worthwhile(case, i, 1 - NEAR) and is_safe(case, i, 1 - NEAR)]
    assert case.proposed is not None or not strictly


@given(cases())
def test_of_the_modes_that_keep_the_margin_the_most_promising_is_proposed(case: Case) -> None:
    promising = [
        at_best_j(case.predictions, i)
        for i in new_rows(case)
        if is_worthwhile(case, i, 1 - NEAR)
        and ends_s(case.predictions, i, case.room, MARGIN) <= case.room.left_s * (1 - NEAR)
    ]
    if promising:
        assert case.proposed is not None
        row = list(case.predictions.modes).index(case.proposed)
        assert at_best_j(case.predictions, row) <= min(promising) + NEAR * abs(min(promising))


@given(cases())
@settings(max_examples=50)
def test_the_same_question_gets_the_same_answer_and_changes_nothing(case: Case) -> None:
    before = copy.deepcopy(case.predictions)
    assert case.proposed == case.proposed
    for column in ("step_s", "power_w", "step_s_sd_log", "power_w_sd_log"):
        assert np.array_equal(getattr(case.predictions, column), getattr(before, column))
    assert np.array_equal(case.predictions.modes.knobs, before.modes.knobs)


@given(cases())
@settings(max_examples=50)
def test_the_order_in_which_modes_were_tried_does_not_matter(case: Case) -> None:
    tried = sorted(case.tried)
    both = {propose(case.predictions, IDLE_W, case.present, order, case.room) for order in (tried, tried[::-1])}
    assert len(both) == 1


@given(cases())
def test_a_longer_deadline_never_makes_it_give_up(case: Case) -> None:
    longer = dataclasses.replace(case, room=dataclasses.replace(case.room, left_s=2 * case.room.left_s))
    assert case.proposed is None or longer.proposed is not None


def test_a_mode_that_might_save_two_percent_is_tried_and_one_that_cannot_is_not() -> None:
    room, present_j = Room(10, 99.0, 0.5), 1.0 * (10.0 - IDLE_W)
    for share, worthwhile in ((1 - 1.5 * WORTHWHILE, True), (1 - 0.5 * WORTHWHILE, False), (1.0, False), (1.2, False)):
        predictions = table([1.0, 1.0], [10.0, IDLE_W + share * present_j], [0.0, 0.0], [0.0, 0.0])
        proposed = propose(predictions, IDLE_W, predictions.modes[0], [predictions.modes[0]], room)
        assert (proposed == predictions.modes[1]) == worthwhile
        assert worthwhile or proposed is None


def test_hope_grows_with_doubt() -> None:
    """Expected 5 % dearer than the present choice: not tried when that is sure, tried when it is a guess."""
    dearer_w = IDLE_W + 1.05 * (10.0 - IDLE_W)
    sure, doubtful = (table([1.0, 1.0], [10.0, dearer_w], [0.0, 0.0], [0.0, sd]) for sd in (0.0, 0.2))
    room, present = Room(10, 99.0, 0.5), sure.modes[0]
    assert propose(sure, IDLE_W, present, [present], room) is None
    assert propose(doubtful, IDLE_W, present, [present], room) == doubtful.modes[1]


def test_a_round_without_slack_tries_only_modes_as_fast_as_the_fastest() -> None:
    predictions = table([1.0, 1.0, 1.01], [20.0, 10.0, 5.0], [0.0, 0.0, 0.0], [0.3, 0.3, 0.3])
    room, present = Room(10, 10.0, 0.5), predictions.modes[0]
    assert propose(predictions, IDLE_W, present, [present], room) == predictions.modes[1]
    assert propose(predictions, IDLE_W, present, list(predictions.modes)[:2], room) is None


def test_a_known_time_goes_without_margin_and_an_unknown_one_does_not() -> None:
    def proposed(time_sd: float) -> PowerMode | None:
        predictions = table([1.0, 1.0], [20.0, 10.0], [0.0, time_sd], [0.0, 0.0])
        return propose(predictions, IDLE_W, predictions.modes[0], [predictions.modes[0]], Room(10, 10.0, 0.5))

    assert proposed(KNOWN_SD_LOG) is not None
    assert proposed(1.01 * KNOWN_SD_LOG) is None


def test_a_probe_longer_than_the_round_is_not_proposed() -> None:
    predictions = table([0.1, 0.1], [20.0, 10.0], [0.0, 0.0], [0.0, 0.0])
    proposed = [
        propose(predictions, IDLE_W, predictions.modes[0], [predictions.modes[0]], Room(steps, 99.0, 0.5))
        for steps in (4, 5)
    ]
    assert proposed == [None, predictions.modes[1]]


@given(st.lists(st.integers(1, 400), min_size=1, max_size=6), st.sampled_from([0.0, 0.3, 0.5, 2.0]))
def test_a_probe_is_the_fewest_steps_that_last_long_enough(hundredths: list[int], probe_s: float) -> None:
    step_s = np.array(hundredths) / 100
    for t, steps in zip(step_s, probe_steps(step_s, Room(9, 9.0, probe_s)), strict=True):
        assert steps == round(steps) >= 1
        assert steps * t >= probe_s * (1 - NEAR)
        assert steps == 1 or (steps - 1) * t < probe_s


@pytest.mark.parametrize("present", [PowerMode(8, 1.0, 1.0, 1.0)])
def test_a_present_choice_that_is_no_candidate_makes_every_safe_mode_worthwhile(present: PowerMode) -> None:
    predictions = table([1.0], [10.0], [0.0], [0.0])
    assert propose(predictions, IDLE_W, present, [], Room(10, 99.0, 0.5)) == predictions.modes[0]
