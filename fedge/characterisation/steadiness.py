"""Where a series of minibatch times is over its start, which of them are outliers, and whether the rest is steady.

A series is one epoch's seconds per minibatch x_1 .. x_n, in the order in which they were done.

1. Start: outliers (see 2) at the very beginning, such as waiting for loader workers that start. After them MSER-5
   (White, Simulation 69(6), 1997; White, Cobb and Spratt, WSC 2000): of the means of 5 in a row so many are dropped,
   that the standard error of the rest's mean is least. The rule drops some of a series that is noise too; so they
   count only where their mean differs from the rest's by more than ``MIN_DRIFT`` and more than that of as many in a
   row of the rest would (t-test by the rest's batch means, 99.9 %). The start is half of the series at most.
2. Outliers: farther than 5 standard deviations, estimated by the median absolute deviation, from the median (Hampel's
   identifier), and no less than ``MIN_OUTLIER_DISTANCE`` of it. Where more than ``MAX_OUTLIER_SHARE`` are so far off,
   that is how the
   board works, and none is. Outliers are counted and shown; they stay in all sums, since somebody waited for them.
3. Steady: after the start the two halves' means do not differ (Welch's t-test over batch means, 99 %) and there is no
   trend (least squares over batch means, 99 %); what amounts to less than ``MIN_DRIFT`` does not matter. Outliers are
   clipped for both tests: one long minibatch is no drift.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.characterisation.confidence_interval import batch_means, student_t, variance_inflation
from fedge.characterisation.profiling.stability import OUTLIER_SDS, SD_OF_MAD, compute_mser_truncation
from fedge.types import Floats

MSER_BATCH = 5
MIN_OUTLIER_DISTANCE = 0.1
"""Times within so much of the median (relative) are never outliers; chosen by us."""
MAX_OUTLIER_SHARE = 0.05
"""Of a series; chosen by us."""
MIN_DRIFT = 0.02
"""Parts of a series that differ by less (relative) are alike; chosen by us."""
START_CONFIDENCE = 0.999
DRIFT_CONFIDENCE = 0.99
MIN_STEPS = 10
"""Fewer minibatches than this after the start say nothing about steadiness; chosen by us."""


@dataclass(frozen=True, slots=True)
class Steadiness:
    """What a series is like. ``find_outliers`` is bool of shape (n,), of the whole series."""

    warm_up: int
    """Minibatches of the start."""
    outliers: NDArray[np.bool_]
    settled: bool
    why: str
    """What is missing; empty when settled."""


def assess_steadiness(series: Floats) -> Steadiness:
    """Judge a series of shape (n,), one time at least. Pure: the same series, the same judgement."""
    start = count_warm_up(series)
    far = np.zeros(len(series), dtype=np.bool_)
    far[start:] = find_outliers(series[start:])
    why = describe_drift(series[start:])
    return Steadiness(start, far, not why, why)


def find_outliers(series: Floats) -> NDArray[np.bool_]:
    """Which times are outliers; never more than ``MAX_OUTLIER_SHARE`` of them."""
    centre, width = _outlier_band(series)
    far: NDArray[np.bool_] = np.abs(series - centre) > width
    return far if far.mean() <= MAX_OUTLIER_SHARE else np.zeros(len(series), dtype=np.bool_)


def count_warm_up(series: Floats) -> int:
    """How many minibatches belong to the start, half of them at most."""
    n = len(series)
    centre, width = _outlier_band(series[n // 2 :])
    usual = np.abs(series - centre) <= width
    far = min(int(np.argmax(usual)), n // 2)  # the half's median is usual, so that argmax finds one
    found = _count_mser_start(np.clip(series[far:], centre - width, centre + width))
    return min(far + found, n // 2)


def _count_mser_start(clipped: Floats) -> int:
    """By MSER-5."""
    whole = len(clipped) - len(clipped) % MSER_BATCH
    if whole < 4 * MSER_BATCH:
        return 0
    found = MSER_BATCH * compute_mser_truncation(clipped[:whole].reshape(-1, MSER_BATCH).mean(axis=1))
    return found if found and _start_differs(clipped[:found], clipped[found:]) else 0


def _start_differs(start: Floats, rest: Floats) -> bool:
    """Whether the start's mean is none that as many in a row of the rest would have."""
    apart = abs(float(start.mean() - rest.mean()))
    if apart <= MIN_DRIFT * abs(float(rest.mean())) or len(rest) < 2:
        return False
    means = batch_means(rest)
    long_run = float(means.var(ddof=1)) * len(rest) / len(means) * variance_inflation(means)
    variance = max(long_run, float(rest.var(ddof=1))) * (1.0 / len(start) + 1.0 / len(rest))
    return apart > student_t(len(means) - 1, START_CONFIDENCE) * math.sqrt(variance)


def describe_drift(series: Floats) -> str:
    """Why a series without its start is not steady, in words; empty where it is."""
    n = len(series)
    if n < MIN_STEPS:
        return f"only {n} minibatches after the start"
    clipped = _clip_outliers(series)
    half = n // 2
    if _have_different_means(clipped[:half], clipped[half:], DRIFT_CONFIDENCE):
        change = float(clipped[half:].mean() / clipped[:half].mean()) - 1.0
        return f"the second half's minibatches take {_format_change(change)} time than the first half's"
    change = _relative_trend(clipped)
    return f"the last minibatches take {_format_change(change)} time than the first" if change else ""


def _format_change(change: float) -> str:
    return f"{100 * abs(change):.1f} % {'more' if change > 0 else 'less'}"


def _outlier_band(series: Floats) -> tuple[float, float]:
    centre = float(np.median(series))
    deviation = SD_OF_MAD * float(np.median(np.abs(series - centre)))
    return centre, max(OUTLIER_SDS * deviation, MIN_OUTLIER_DISTANCE * abs(centre))


def _clip_outliers(series: Floats) -> Floats:
    """Outliers moved to the edge of the band of the later half, which the start does not widen."""
    centre, width = _outlier_band(series[len(series) // 2 :])
    clipped: Floats = np.clip(series, centre - width, centre + width)
    return clipped


def _have_different_means(first: Floats, second: Floats, sure: float) -> bool:
    """Whether two stretches have different means: beyond ``MIN_DRIFT``, and beyond what chance explains."""
    one, two = batch_means(first), batch_means(second)
    apart = abs(float(first.mean() - second.mean()))
    if apart <= MIN_DRIFT * abs(float(second.mean())) or min(len(one), len(two)) < 2:
        return False
    parts = [float(means.var(ddof=1)) / len(means) * variance_inflation(means) for means in (one, two)]
    total = sum(parts)
    if total <= 0.0:
        return True
    freedom = total**2 / sum(part**2 / (len(means) - 1) for part, means in zip(parts, (one, two), strict=True))
    return apart > student_t(freedom, sure) * math.sqrt(total)


def _relative_trend(series: Floats) -> float:
    """The relative change from the first to the last batch by a straight line; 0 where chance explains it."""
    means = batch_means(series)
    n = len(means)
    if n < 4:
        return 0.0
    at = np.arange(n) - (n - 1) / 2.0
    slope = float(at @ means) / float(at @ at)
    rest = means - means.mean() - slope * at
    se = math.sqrt(float(rest @ rest) / (n - 2) / float(at @ at) * variance_inflation(rest))
    change = slope * (n - 1) / abs(float(means.mean()))
    return change if abs(change) > MIN_DRIFT and abs(slope) > student_t(n - 2, DRIFT_CONFIDENCE) * se else 0.0
