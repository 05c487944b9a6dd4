"""Which batch size and width fit, and what a board's runs teach."""

import math
from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.costs.memory.scale_choice import (
    MAX_HISTORY,
    MemoryBelief,
    ScaleChoice,
    choose_scale,
    correct_need,
    describe_scaling,
    extend_history,
    list_scales,
    update_with_failure,
    update_with_peak,
)
from fedge.costs.memory.step_need import StepNeed
from fedge.types import MemoryObservation, TrainingScale

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


@given(EVENTS, MB, SD, st.floats(1.0, 4.0))
def test_a_larger_prediction_stays_the_larger_one(events, memory_mb, sd_log, times):
    belief = after(events)
    low, high = (correct_need(belief, step(mb, sd_log)) for mb in (memory_mb, times * memory_mb))
    assert low.memory_mb <= high.memory_mb * (1 + 1e-12)
    assert low.step_s == 1.5


@given(EVENTS, MB, MB, SD, st.floats(1.0, 3.0))
def test_a_step_that_failed_is_predicted_above_the_limit_and_so_is_any_larger_one(
    events, predicted_mb, limit_mb, sd_log, times
):
    belief = update_with_failure(after(events), predicted_mb, limit_mb)
    assert correct_need(belief, step(times * predicted_mb, sd_log)).memory_mb > limit_mb


@settings(max_examples=30)
@given(EVENTS, MB, st.floats(0.5, 2.0), st.floats(0.02, 0.3))
def test_many_peaks_win_over_the_model_and_over_everything_before(events, predicted_mb, factor, sd_log):
    belief = after(events)
    for _ in range(3000):
        belief = update_with_peak(belief, predicted_mb, factor * predicted_mb)
    if belief.failed_mb is not None:  # a smaller step than any that failed says nothing of those
        assert predicted_mb < belief.failed_mb
    assert correct_need(belief, step(predicted_mb, sd_log)).memory_mb == pytest.approx(factor * predicted_mb, rel=0.05)


@given(EVENTS, MB, MB, SD)
def test_a_peak_moves_the_prediction_towards_itself(events, predicted_mb, peak_mb, sd_log):
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
def test_a_failure_never_makes_a_step_look_smaller(events, predicted_mb, limit_mb):
    belief = after(events)
    worse = update_with_failure(belief, predicted_mb, limit_mb)
    assert worse.log_factor >= belief.log_factor - 1e-12
    asked = step(predicted_mb)
    assert correct_need(worse, asked).memory_mb >= min(correct_need(belief, asked).memory_mb, limit_mb)


def test_the_same_step_fitting_takes_its_failure_back():
    belief = update_with_failure(MemoryBelief(), 3000.0, 2500.0)
    assert correct_need(belief, step(3000.0)).memory_mb > 2500.0
    assert update_with_peak(belief, 2000.0, 2000.0).failed_mb == 3000.0
    assert update_with_peak(belief, 3000.0, 2400.0).failed_mb is None


@pytest.mark.parametrize("pair", [(0.0, 1.0), (1.0, -1.0), (float("nan"), 1.0), (1.0, float("inf"))])
def test_figures_that_cannot_be_are_refused(pair):
    for learn in (update_with_peak, update_with_failure):
        with pytest.raises(ValueError, match="two finite figures above 0"):
            learn(MemoryBelief(), *pair)


WIDTHS = (1.0, 0.75, 0.5, 0.25)
ASKED = TrainingScale(16)


def need(scale: TrainingScale) -> StepNeed:
    """100 MB, and 100 MB per sample at full width."""
    return StepNeed(100.0 + 100.0 * scale.batch_size * scale.width, 1.0, 0.1, 0.1, "estimated", "made up")


def chosen(limit_mb: float, lower: str = "batch-first", min_batch: int = 1, margin: float = 0.0) -> ScaleChoice:
    found = choose_scale(list_scales(ASKED, min_batch, WIDTHS, lower), need, MemoryBelief(), limit_mb, margin)
    assert found is not None
    return found


def test_without_a_margin_the_bound_of_the_need_decides_until_peaks_are_known():
    asked, limit_mb = TrainingScale(16), 1.2 * need(TrainingScale(16)).memory_mb

    def choose(belief: MemoryBelief) -> ScaleChoice | None:
        return choose_scale((asked, TrainingScale(8)), need, belief, limit_mb, None)

    first, later = choose(MemoryBelief()), choose(update_with_peak(MemoryBelief(), 900.0, 900.0))

    assert first.scale == TrainingScale(8)
    assert first.need.upper_mb <= limit_mb < need(asked).upper_mb
    assert later.scale == asked


def test_batch_first_keeps_the_network_as_wide_as_any_batch_allows():
    assert list_scales(ASKED, 4, (1.0, 0.5), "batch-first") == (
        TrainingScale(16), TrainingScale(8), TrainingScale(4),
        TrainingScale(16, 0.5), TrainingScale(8, 0.5), TrainingScale(4, 0.5),
    )  # fmt: skip
    assert chosen(1000.0).scale == TrainingScale(8)
    assert chosen(150.0).scale == TrainingScale(1, 0.5)


def test_width_first_keeps_the_batch_as_large_as_any_width_allows():
    assert list_scales(TrainingScale(6), 1, (1.0, 0.5), "width-first") == (
        TrainingScale(6), TrainingScale(6, 0.5), TrainingScale(3),
        TrainingScale(3, 0.5), TrainingScale(1), TrainingScale(1, 0.5),
    )  # fmt: skip
    assert chosen(1000.0, "width-first").scale == TrainingScale(16, 0.5)


@given(
    limit_mb=st.floats(110.0, 2000.0),
    lower=st.sampled_from(["batch-first", "width-first"]),
    min_batch=st.integers(1, 16),
    margin=st.floats(0.0, 0.5),
)
def test_what_is_chosen_fits_whenever_anything_does_and_nothing_preferred_does(limit_mb, lower, min_batch, margin):
    scales = list_scales(ASKED, min_batch, WIDTHS, lower)
    fitting = [scale for scale in scales if need(scale).memory_mb * (1 + margin) <= limit_mb]

    found = choose_scale(scales, need, MemoryBelief(), limit_mb, margin)

    assert found.fits == bool(fitting)
    assert found.scale == (fitting[0] if fitting else min(scales, key=lambda scale: need(scale).memory_mb))


def test_after_a_failure_only_smaller_ones_are_tried_until_none_is_left():
    scales, failed, tried = list_scales(ASKED, 4, (1.0, 0.5), "batch-first"), None, []
    while (found := choose_scale(scales, need, MemoryBelief(), 1e6, 0.0, failed)) is not None:
        tried.append(found.uncorrected_mb)
        failed = found
    assert tried == sorted(tried, reverse=True)
    assert tried[0] == 1700.0
    assert tried[-1] == 300.0
    assert len(set(tried)) == len(tried)


def test_where_the_model_sees_no_difference_a_smaller_scale_is_tried_nevertheless():
    def flat(_: TrainingScale) -> StepNeed:
        return StepNeed(1000.0, 1.0, 0.1, 0.1, "estimated", "made up")

    scales, failed, tried = list_scales(TrainingScale(8), 2, (1.0, 0.5), "batch-first"), None, []
    while (found := choose_scale(scales, flat, MemoryBelief(), 500.0, 0.0, failed)) is not None:
        tried.append(found.scale)
        failed = found
    assert tried[0] == TrainingScale(8)
    assert tried[-1] == TrainingScale(2, 0.5)


def test_only_the_last_tries_are_remembered():
    seen: tuple[MemoryObservation, ...] = ()
    for i in range(MAX_HISTORY + 5):
        seen = extend_history(seen, MemoryObservation(100.0 + i, 500.0, 100.0))
    assert len(seen) == MAX_HISTORY
    assert seen[-1].predicted_mb == 100.0 + MAX_HISTORY + 4


UPPER_MB = step(1490.0).upper_mb


@pytest.mark.parametrize(
    ("used", "predicted_mb", "margin", "words"),
    [
        (TrainingScale(8), 1910.2, 0.05, "batch 16 -> 8: 1,910 MB predicted, 1,500 MB allowed"),
        (TrainingScale(16, 0.5), 1910.0, None, "width 1 -> 0.5: 1,910 MB predicted, 1,500 MB allowed"),
        (
            TrainingScale(4, 0.5),
            1490.0,
            0.1,
            "batch 16 -> 4, width 1 -> 0.5: 1,490 MB predicted, 1,639 MB with 10 % to spare, 1,500 MB allowed",
        ),
        (
            TrainingScale(4),
            1490.0,
            None,
            f"batch 16 -> 4: 1,490 MB predicted, {UPPER_MB:,.0f} MB with 99 % confidence, 1,500 MB allowed",
        ),
        (ASKED, 1000.0, 0.05, ""),
    ],
)
def test_what_was_lowered_is_said_with_its_reason(used, predicted_mb, margin, words):
    assert describe_scaling(ASKED, used, step(predicted_mb), 1500.0, margin) == words
