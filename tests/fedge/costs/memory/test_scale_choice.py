"""Which batch size and width fit: preference, margin, what runs taught, and the words for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.costs.memory.memory_belief import MemoryBelief
from fedge.costs.memory.scale_choice import (
    MAX_HISTORY,
    ScaleChoice,
    build_memory_belief,
    choose_scale,
    describe_scaling,
    extend_history,
    list_scales,
)
from fedge.costs.memory.step_need import StepNeed
from fedge.types import MemoryObservation, TrainingScale

WIDTHS = (1.0, 0.75, 0.5, 0.25)
ASKED = TrainingScale(16)


def need(scale: TrainingScale) -> StepNeed:
    """100 MB, and 100 MB per sample at full width."""
    return StepNeed(100.0 + 100.0 * scale.batch_size * scale.width, 1.0, 0.1, 0.1, "estimated", "made up")


def chosen(limit_mb: float, lower: str = "batch-first", min_batch: int = 1, margin: float = 0.0) -> ScaleChoice:
    found = choose_scale(list_scales(ASKED, min_batch, WIDTHS, lower), need, MemoryBelief(), limit_mb, margin)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_batch_first_keeps_the_network_as_wide_as_any_batch_allows() -> None:
    assert list_scales(ASKED, 4, (1.0, 0.5), "batch-first") == (
        TrainingScale(16), TrainingScale(8), TrainingScale(4),
        TrainingScale(16, 0.5), TrainingScale(8, 0.5), TrainingScale(4, 0.5),
    )  # fmt: skip
    assert chosen(1000.0).scale == TrainingScale(8)
    assert chosen(150.0).scale == TrainingScale(1, 0.5)


def test_width_first_keeps_the_batch_as_large_as_any_width_allows() -> None:
    assert list_scales(TrainingScale(6), 1, (1.0, 0.5), "width-first") == (
        TrainingScale(6), TrainingScale(6, 0.5), TrainingScale(3),
        TrainingScale(3, 0.5), TrainingScale(1), TrainingScale(1, 0.5),
    )  # fmt: skip
    assert chosen(1000.0, "width-first").scale == TrainingScale(16, 0.5)


def test_what_is_asked_for_comes_first_whatever_widths_are_named() -> None:
    assert list_scales(TrainingScale(4), 4, (0.5,), "batch-first") == (TrainingScale(4), TrainingScale(4, 0.5))


def test_the_margin_has_to_fit_too() -> None:
    assert chosen(1700.0).scale == ASKED
    assert chosen(1700.0, margin=0.05).scale == TrainingScale(8)


def test_where_nothing_fits_the_least_is_tried() -> None:
    found = chosen(50.0, min_batch=4)
    assert found.scale == TrainingScale(4, 0.25)
    assert not found.fits


@given(
    limit_mb=st.floats(110.0, 2000.0),
    lower=st.sampled_from(["batch-first", "width-first"]),
    min_batch=st.integers(1, 16),
    margin=st.floats(0.0, 0.5),
)
def test_what_is_chosen_fits_whenever_anything_does_and_nothing_preferred_does(
    limit_mb: float, lower: str, min_batch: int, margin: float
) -> None:
    scales = list_scales(ASKED, min_batch, WIDTHS, lower)  # type: ignore[arg-type]
    fitting = [scale for scale in scales if need(scale).memory_mb * (1 + margin) <= limit_mb]

    found = choose_scale(scales, need, MemoryBelief(), limit_mb, margin)

    assert found is not None
    assert found.fits == bool(fitting)
    assert found.scale == (fitting[0] if fitting else min(scales, key=lambda scale: need(scale).memory_mb))


def test_after_a_failure_only_smaller_ones_are_tried_until_none_is_left() -> None:
    scales, failed, tried = list_scales(ASKED, 4, (1.0, 0.5), "batch-first"), None, []
    while (found := choose_scale(scales, need, MemoryBelief(), 1e6, 0.0, failed)) is not None:
        tried.append(found.uncorrected_mb)
        failed = found
    assert tried == sorted(tried, reverse=True)
    assert tried[0] == 1700.0
    assert tried[-1] == 300.0
    assert len(set(tried)) == len(tried)


def test_where_the_model_sees_no_difference_a_smaller_scale_is_tried_nevertheless() -> None:
    def flat(_: TrainingScale) -> StepNeed:
        return StepNeed(1000.0, 1.0, 0.1, 0.1, "estimated", "made up")

    scales, failed, tried = list_scales(TrainingScale(8), 2, (1.0, 0.5), "batch-first"), None, []
    while (found := choose_scale(scales, flat, MemoryBelief(), 500.0, 0.0, failed)) is not None:
        tried.append(found.scale)
        failed = found
    assert tried[0] == TrainingScale(8)
    assert tried[-1] == TrainingScale(2, 0.5)


def test_failures_and_peaks_change_what_is_chosen() -> None:
    scales = list_scales(ASKED, 1, (1.0,), "batch-first")
    failed, fits = MemoryObservation(1700.0, 1800.0), MemoryObservation(900.0, 1800.0, 450.0)

    after_failure = choose_scale(scales, need, build_memory_belief([failed]), 1800.0, 0.0)
    after_peak = choose_scale(scales, need, build_memory_belief([fits]), 1000.0, 0.0)

    assert after_failure is not None
    assert after_failure.scale == TrainingScale(8)
    assert after_peak is not None
    assert after_peak.scale == ASKED
    assert after_peak.uncorrected_mb == 1700.0
    assert after_peak.need.memory_mb == pytest.approx(850.0, rel=0.1)


def test_only_the_last_tries_are_remembered() -> None:
    seen: tuple[MemoryObservation, ...] = ()
    for i in range(MAX_HISTORY + 5):
        seen = extend_history(seen, MemoryObservation(100.0 + i, 500.0, 100.0))
    assert len(seen) == MAX_HISTORY
    assert seen[-1].predicted_mb == 100.0 + MAX_HISTORY + 4


@pytest.mark.parametrize(
    ("used", "predicted_mb", "words"),
    [
        (TrainingScale(8), 1910.2, "batch 16 -> 8: 1,910 MB predicted, 1,500 MB allowed"),
        (TrainingScale(16, 0.5), 1910.0, "width 1 -> 0.5: 1,910 MB predicted, 1,500 MB allowed"),
        (
            TrainingScale(4, 0.5),
            1490.0,
            "batch 16 -> 4, width 1 -> 0.5: 1,490 MB predicted and 5% to spare, 1,500 MB allowed",
        ),
        (ASKED, 1000.0, ""),
    ],
)
def test_what_was_lowered_is_said_with_its_reason(used: TrainingScale, predicted_mb: float, words: str) -> None:
    assert describe_scaling(ASKED, used, predicted_mb, 1500.0, 0.05) == words
