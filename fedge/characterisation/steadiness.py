"""Steadiness of a series of minibatch times: its warm-up, its outliers, and whether the rest is steady.

A series is one epoch's seconds per minibatch x_1 .. x_n, in execution order.

1. Warm-up: outliers (see 2) at the very beginning, such as waiting for loader workers to start, then MSER-5: of the
   means of 5 consecutive times, the number of dropped ones minimises the standard error of the mean of the rest. Since
   the rule also drops some of pure noise, these count only if their mean differs from that of the rest by more than
   ``MIN_DRIFT`` and significantly (t-test by the rest's batch means, 99.9 %). Warm-up is at most half of the series.
2. Outliers: farther from the median than 5 standard deviations, estimated by the median absolute deviation (Hampel's
   identifier), and than ``MIN_OUTLIER_DISTANCE`` of it. If more than ``MAX_OUTLIER_SHARE`` are that far off, it is the
   normal behaviour of the board, and none counts as an outlier. Outliers are counted and shown, but stay in all sums,
   since training waited for them.
3. Steady: after warm-up, the means of both halves do not differ (Welch's t-test over batch means, 99 %) and there is no
   trend (least squares over batch means, 99 %); changes below ``MIN_DRIFT`` are ignored. Outliers are clipped for both
   tests: one long minibatch is no drift.

References:
    White, Simulation 69(6), 1997, and White, Cobb and Spratt, WSC 2000 (MSER-5).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.characterisation.confidence_interval import batch_means, combine_errors, student_t, variance_inflation
from fedge.characterisation.stability import clip_outliers, compute_mser_truncation, outlier_band
from fedge.types import Floats

MSER_BATCH = 5
MIN_OUTLIER_DISTANCE = 0.1
"""Relative distance from the median below which a time is never an outlier. A default that keeps timer noise of
very regular series from being marked."""
MAX_OUTLIER_SHARE = 0.05
"""Largest share of a series that may be outliers. A default: rare events below it, a second mode of operation above."""
MIN_DRIFT = 0.02
"""Relative difference below which parts of a series are alike; a default equal to the smallest change that findings
report."""
START_CONFIDENCE = 0.999
DRIFT_CONFIDENCE = 0.99
MIN_STEPS = 10
"""Number of minibatches after warm-up below which steadiness is not assessed; the default leaves each half the
minimum number of batch means (``MIN_BATCHES``)."""


@dataclass(frozen=True, slots=True)
class Steadiness:
    """Assessment of a series.

    Attributes:
        outliers: Boolean mask of shape (n,) over the whole series.
        why: Why it is not steady; empty if it is.
    """

    warm_up: int
    outliers: NDArray[np.bool_]
    settled: bool
    why: str


def assess_steadiness(series: Floats) -> Steadiness:
    """Assess a series of minibatch times; deterministic.

    Args:
        series: Seconds per minibatch in execution order, shape (n,), n >= 1.
    """
    start = count_warm_up(series)
    far = np.zeros(len(series), dtype=np.bool_)
    far[start:] = find_outliers(series[start:])
    why = describe_drift(series[start:])
    return Steadiness(start, far, not why, why)


def find_outliers(series: Floats) -> NDArray[np.bool_]:
    """Return a boolean mask of the outliers, which are at most ``MAX_OUTLIER_SHARE`` of the series."""
    centre, width = outlier_band(series, MIN_OUTLIER_DISTANCE)
    far: NDArray[np.bool_] = np.abs(series - centre) > width
    return far if far.mean() <= MAX_OUTLIER_SHARE else np.zeros(len(series), dtype=np.bool_)


def count_warm_up(series: Floats) -> int:
    """Return the number of warm-up minibatches, at most half of the series.

    Args:
        series: Seconds per minibatch in execution order, shape (n,), n >= 1.
    """
    n = len(series)
    centre, width = outlier_band(series[n // 2 :], MIN_OUTLIER_DISTANCE)
    usual = np.abs(series - centre) <= width
    far = min(int(np.argmax(usual)), n // 2)  # the median is within the band, so that argmax finds one
    found = _count_mser_start(np.clip(series[far:], centre - width, centre + width))
    return min(far + found, n // 2)


def _count_mser_start(clipped: Floats) -> int:
    """Return the number of warm-up minibatches by MSER-5."""
    whole = len(clipped) - len(clipped) % MSER_BATCH
    if whole < 4 * MSER_BATCH:
        return 0
    found = MSER_BATCH * compute_mser_truncation(clipped[:whole].reshape(-1, MSER_BATCH).mean(axis=1))
    return found if found and _start_differs(clipped[:found], clipped[found:]) else 0


def _start_differs(start: Floats, rest: Floats) -> bool:
    """Return whether the mean of the start differs from that of equally long stretches of the rest."""
    apart = abs(float(start.mean() - rest.mean()))
    if apart <= MIN_DRIFT * abs(float(rest.mean())) or len(rest) < 2:
        return False
    means = batch_means(rest)
    long_run = float(means.var(ddof=1)) * len(rest) / len(means) * variance_inflation(means)
    variance = max(long_run, float(rest.var(ddof=1))) * (1.0 / len(start) + 1.0 / len(rest))
    return apart > student_t(len(means) - 1, START_CONFIDENCE) * math.sqrt(variance)


def describe_drift(series: Floats) -> str:
    """Describe why a series without its warm-up is not steady; empty if it is.

    Args:
        series: Seconds per minibatch after warm-up, shape (n,).
    """
    n = len(series)
    if n < MIN_STEPS:
        return f"only {n} minibatches after the start"
    clipped = clip_outliers(series, MIN_OUTLIER_DISTANCE)
    half = n // 2
    if _have_different_means(clipped[:half], clipped[half:], DRIFT_CONFIDENCE):
        change = float(clipped[half:].mean() / clipped[:half].mean()) - 1.0
        return f"the second half's minibatches take {_format_change(change)} time than the first half's"
    change = _relative_trend(clipped)
    return f"the last minibatches take {_format_change(change)} time than the first" if change else ""


def _format_change(change: float) -> str:
    return f"{100 * abs(change):.1f} % {'more' if change > 0 else 'less'}"


def _have_different_means(first: Floats, second: Floats, sure: float) -> bool:
    """Return whether two stretches have different means: beyond ``MIN_DRIFT``, and beyond chance."""
    one, two = batch_means(first), batch_means(second)
    apart = abs(float(first.mean() - second.mean()))
    if apart <= MIN_DRIFT * abs(float(second.mean())) or min(len(one), len(two)) < 2:
        return False
    variances = [float(means.var(ddof=1)) / len(means) * variance_inflation(means) for means in (one, two)]
    se, freedom = combine_errors([(math.sqrt(v), len(m) - 1) for v, m in zip(variances, (one, two), strict=True)])
    return apart > student_t(freedom, sure) * se


def _relative_trend(series: Floats) -> float:
    """Return the relative change from the first to the last batch by a straight line; 0 if it is not significant."""
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
