"""What a board's runs teach: peaks win over the model in the end, and a step that failed is not tried again."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.costs.memory.memory_belief import (
    MemoryBelief,
    belief_from_dict,
    belief_to_dict,
    correct_need,
    update_with_failure,
    update_with_peak,
)
from fedge.costs.memory.step_need import StepNeed
from fedge.errors import BadInput

MB = st.floats(200.0, 30_000.0)
SD = st.floats(0.01, 0.5)
EVENTS = st.lists(st.tuples(st.booleans(), MB, MB), max_size=12)


def step(memory_mb: float, sd_log: float = 0.1) -> StepNeed:
    return StepNeed(memory_mb, 1.5, sd_log, 0.2, "calibrated", "made up")


def after(events: list[tuple[bool, float, float]]) -> MemoryBelief:
    def learn(belief: MemoryBelief, event: tuple[bool, float, float]) -> MemoryBelief:
        fits, predicted_mb, seen_mb = event
        return (
            update_with_peak(belief, predicted_mb, seen_mb)
            if fits
            else update_with_failure(belief, predicted_mb, seen_mb)
        )

    return reduce(learn, events, MemoryBelief())


def test_without_history_nothing_is_corrected() -> None:
    assert correct_need(MemoryBelief(), step(3000.0)) == step(3000.0)


@given(EVENTS, MB, SD, st.floats(1.0, 4.0))
def test_a_larger_prediction_stays_the_larger_one(
    events: list[tuple[bool, float, float]], memory_mb: float, sd_log: float, times: float
) -> None:
    belief = after(events)
    low, high = (correct_need(belief, step(mb, sd_log)) for mb in (memory_mb, times * memory_mb))
    assert low.memory_mb <= high.memory_mb * (1 + 1e-12)
    assert low.step_s == 1.5


@given(EVENTS, MB, MB, SD, st.floats(1.0, 3.0))
def test_a_step_that_failed_is_predicted_above_the_limit_and_so_is_any_larger_one(
    events: list[tuple[bool, float, float]], predicted_mb: float, limit_mb: float, sd_log: float, times: float
) -> None:
    belief = update_with_failure(after(events), predicted_mb, limit_mb)
    assert correct_need(belief, step(times * predicted_mb, sd_log)).memory_mb > limit_mb


@settings(max_examples=30)
@given(EVENTS, MB, st.floats(0.5, 2.0), st.floats(0.02, 0.3))
def test_many_peaks_win_over_the_model_and_over_everything_before(
    events: list[tuple[bool, float, float]], predicted_mb: float, factor: float, sd_log: float
) -> None:
    belief = after(events)
    for _ in range(3000):
        belief = update_with_peak(belief, predicted_mb, factor * predicted_mb)
    if belief.failed_mb is not None:  # a smaller step than any that failed says nothing of those
        assert predicted_mb < belief.failed_mb
    assert correct_need(belief, step(predicted_mb, sd_log)).memory_mb == pytest.approx(factor * predicted_mb, rel=0.05)


@given(EVENTS, MB, MB, SD)
def test_a_peak_moves_the_prediction_towards_itself(
    events: list[tuple[bool, float, float]], predicted_mb: float, peak_mb: float, sd_log: float
) -> None:
    belief = replace(after(events), failed_mb=None, limit_mb=None)
    before, now = (
        correct_need(b, step(predicted_mb, sd_log)) for b in (belief, update_with_peak(belief, predicted_mb, peak_mb))
    )
    # What was learnt counts more as a whole, so the comparison is with the belief itself, not with the model's share.
    believed_mb = predicted_mb * math.exp(belief.log_factor)
    if peak_mb >= believed_mb >= predicted_mb:
        assert now.memory_mb >= before.memory_mb * (1 - 1e-9)
    if peak_mb <= believed_mb <= predicted_mb:
        assert now.memory_mb <= before.memory_mb * (1 + 1e-9)


@given(EVENTS, MB, MB)
def test_a_failure_never_makes_a_step_look_smaller(
    events: list[tuple[bool, float, float]], predicted_mb: float, limit_mb: float
) -> None:
    belief = after(events)
    worse = update_with_failure(belief, predicted_mb, limit_mb)
    assert worse.log_factor >= belief.log_factor - 1e-12
    asked = step(predicted_mb)
    assert correct_need(worse, asked).memory_mb >= min(correct_need(belief, asked).memory_mb, limit_mb)


def test_the_same_step_fitting_takes_its_failure_back() -> None:
    belief = update_with_failure(MemoryBelief(), 3000.0, 2500.0)
    assert correct_need(belief, step(3000.0)).memory_mb > 2500.0
    assert update_with_peak(belief, 2000.0, 2000.0).failed_mb == 3000.0
    assert update_with_peak(belief, 3000.0, 2400.0).failed_mb is None


def test_history_makes_the_prediction_surer_and_says_so() -> None:
    belief = update_with_peak(update_with_peak(MemoryBelief(), 3000.0, 3300.0), 2000.0, 2250.0)
    found = correct_need(belief, step(3000.0, 0.2))
    assert found.memory_sd_log < 0.1
    assert "corrected by 2 peaks and 0 failures" in found.source
    assert found.memory_mb == pytest.approx(3330.0, rel=0.02)


@given(EVENTS)
def test_a_belief_survives_its_file(events: list[tuple[bool, float, float]]) -> None:
    belief = after(events)
    assert belief_from_dict(json.loads(json.dumps(belief_to_dict(belief))), "belief.json") == belief


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("peaks", -1),
        ("failures", 1.5),
        ("precision", -2.0),
        ("log_factor", "a"),
        ("log_factor", float("nan")),
        ("failed_mb", 100.0),
        ("peaks", True),
    ],
)
def test_a_belief_that_was_tampered_with_is_named(field: str, value: object) -> None:
    with pytest.raises(BadInput, match=rf"belief\.json: {field}"):
        belief_from_dict({**belief_to_dict(MemoryBelief()), field: value}, "belief.json")


def test_something_else_is_no_belief() -> None:
    for data in ([], {"peaks": 1}):
        with pytest.raises(BadInput, match=r"belief\.json"):
            belief_from_dict(data, "belief.json")


@pytest.mark.parametrize("pair", [(0.0, 1.0), (1.0, -1.0), (float("nan"), 1.0), (1.0, float("inf"))])
def test_figures_that_cannot_be_are_refused(pair: tuple[float, float]) -> None:
    for learn in (update_with_peak, update_with_failure):
        with pytest.raises(ValueError, match="two finite figures above 0"):
            learn(MemoryBelief(), *pair)
