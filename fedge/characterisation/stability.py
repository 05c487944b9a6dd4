"""Detection of a steady state: of a power mode by its chunks, and of an epoch by its minibatches.

Symbols: x_1 .. x_n one value per chunk (an interval of about a second), d chunks dropped, m and s mean and standard
deviation of the values kept, k their number, r their lag-1 autocorrelation. The rule for a mode, for time
and power alike:

1. The first chunk is always dropped: it only shows how long a step takes (PowerTrain drops the first one too).
2. d minimises the sum of (x_i - m)^2 over i > d, divided by (n - d)^2: the marginal standard error rule (MSER). d is at
   most n / 2, and a minimum there means that the transient is not over. The larger d of time and power is used for
       both.
3. Values farther than ``OUTLIER_SDS`` from the median of the later half, in standard deviations estimated by the median
   absolute deviation, are clipped for step 2 and left out of the mean (Hampel's identifier).
4. The standard error is s / sqrt(k) * sqrt((1 + r) / (1 - r)) with r >= 0: that of a mean of correlated values.
5. Settled: enough chunks, steps and seconds, both standard errors below the target, and no difference between the two
   halves of the values kept (Welch's t-test over batch means, 99 %; below ``DRIFT_TOLERANCE`` it is ignored).

The rule for an epoch, a series of seconds per minibatch x_1 .. x_n in execution order:

1. Warm-up: outliers (see 2) at the very beginning, such as waiting for loader workers to start, then MSER-5: of the
   means of 5 consecutive times, the number of dropped ones minimises the standard error of the mean of the rest. Since
   the rule also drops some of pure noise, these count only if their mean differs from that of the rest by more than
   ``MIN_DRIFT`` and significantly (t-test by the rest's batch means, 99.9 %). Warm-up is at most half of the series.
2. Outliers: farther from the median than 5 standard deviations, estimated by the median absolute deviation (Hampel's
   identifier), and than ``MIN_OUTLIER_DISTANCE`` of it. If more than ``MAX_MINIBATCH_OUTLIER_SHARE`` are that far off,
   it is the normal behaviour of the board, and none counts as an outlier. Outliers are counted and shown, but stay in
   all sums, since training waited for them.
3. Steady: after warm-up, the means of both halves do not differ (Welch's t-test over batch means, 99 %) and there is no
   trend (least squares over batch means, 99 %); changes below ``MIN_DRIFT`` are ignored. Outliers are clipped for both
   tests: one long minibatch is no drift.

References:
    White, Simulation 69(6), 1997: MSER. White, Cobb and Spratt, WSC 2000: MSER on batch means, of chunks or of
    5 minibatches (MSER-5).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.confidence_interval import batch_means, combine_errors, student_t, variance_inflation
from fedge.types import Floats


@dataclass(frozen=True, slots=True)
class StabilityRule:
    """The criteria of a settled mode, defaults of a campaign; ``fedge profile`` records them with its table.

    Attributes:
        chunk_s: Length of a chunk, at least one step; ten power samples at 10 Hz by default.
        target: Relative standard error of time and power; published tables vary by 0.8 to 1.2 % between runs.
        limit_s: Seconds after which a mode is left, settled or not.
    """

    chunk_s: float = 1.0
    least_chunks: int = 8
    least_steps: int = 10
    least_s: float = 5.0
    target: float = 0.0075
    limit_s: float = 180.0


OUTLIER_SDS = 5.0
MIN_CLIP_SHARE = 0.01
# Values within this relative distance of the median are never outliers, even if the others scatter less. Default.
MAX_OUTLIER_SHARE = 0.2
# If a larger share of values is far off, that is the board's normal behaviour and none are outliers. Default.
DRIFT_TOLERANCE = 0.01
# Halves that differ by less (relative) have not drifted. Default: about the variation between runs.
SD_OF_MAD = 1.4826
# Standard deviation of a normal distribution divided by its median absolute deviation.
MAX_CORRELATION = 0.9
# Upper bound on the lag-1 autocorrelation, which few values or a trend push towards 1. Default: inflates the standard
# error by at most 4.4.


@dataclass(frozen=True, slots=True)
class MeasuredChunk:
    """An interval of work in one mode."""

    steps: int
    step_s: float
    power_w: float
    work_s: float


@dataclass(frozen=True, slots=True)
class StabilityVerdict:
    """The steady values so far and whether they are reliable.

    Attributes:
        time_se_log: Relative standard error of ``step_s`` (log units).
        power_se_log: Relative standard error of ``power_w`` (log units).
        dropped: Chunks dropped at the start.
        outliers: Chunks left out of the mean of time or power.
        why: Criterion that is not met; empty if settled.
    """

    settled: bool
    step_s: float
    power_w: float
    time_se_log: float
    power_se_log: float
    steps: int
    dropped: int
    outliers: int
    why: str


@dataclass(frozen=True, slots=True)
class _SteadyFigure:
    """The steady mean of one quantity and its quality."""

    mean: float
    se_log: float
    drifted: bool
    outliers: NDArray[np.bool_]


def judge_stability(chunks: Sequence[MeasuredChunk], rule: StabilityRule) -> StabilityVerdict:
    """Judge whether a mode has settled; a pure function."""
    times = np.array([chunk.step_s for chunk in chunks])
    powers = np.array([chunk.power_w for chunk in chunks])
    dropped, started = _find_start(times, powers)
    kept = chunks[dropped:]
    time, power = _summarize_steady(times[dropped:]), _summarize_steady(powers[dropped:])
    missing = _describe_missing(kept, time, power, rule) or ("" if started else "its start is not over")
    return StabilityVerdict(
        settled=not missing,
        step_s=time.mean,
        power_w=power.mean,
        time_se_log=time.se_log,
        power_se_log=power.se_log,
        steps=sum(chunk.steps for chunk in kept),
        dropped=dropped,
        outliers=int((time.outliers | power.outliers).sum()),
        why=missing,
    )


def _describe_missing(
    kept: Sequence[MeasuredChunk], time: _SteadyFigure, power: _SteadyFigure, rule: StabilityRule
) -> str:
    """Return which criterion is not met, or an empty string."""
    too_few = (
        len(kept) < rule.least_chunks
        or sum(chunk.steps for chunk in kept) < rule.least_steps
        or sum(chunk.work_s for chunk in kept) < rule.least_s
    )
    if too_few:
        return "too little was measured"
    for name, figure in (("time", time), ("power", power)):
        if figure.se_log > rule.target:
            return f"{name} scatters: its standard error is {figure.se_log:.2%}"
        if figure.drifted:
            return f"{name} drifts"
    return ""


def _find_start(times: Floats, powers: Floats) -> tuple[int, bool]:
    """Return the number of chunks in the initial transient and whether it is over."""
    if len(times) == 1:
        return 0, False
    found = [1 + compute_mser_truncation(clip_outliers(values[1:])) for values in (times, powers)]
    most = 1 + (len(times) - 1) // 2
    return max(found), max(found) < most


def compute_mser_truncation(values: Floats) -> int:
    """Return how many values MSER drops at the start, from 0 to n // 2; the smallest of equally good ones."""
    n = len(values)
    centred = values - values[-1]  # avoids cancellation in the sums of squares
    sums, squares = np.cumsum(centred[::-1])[::-1], np.cumsum(np.square(centred)[::-1])[::-1]
    left = n - np.arange(n)
    marginal = np.maximum(squares - np.square(sums) / left, 0.0) / np.square(left)
    return int(np.argmin(marginal[: n // 2 + 1]))


def clip_outliers(values: Floats, min_share: float = MIN_CLIP_SHARE) -> Floats:
    """Clip values to the ``outlier_band`` of the later half, which a transient at the start does not widen."""
    centre, width = outlier_band(values[len(values) // 2 :], min_share)
    clipped: Floats = np.clip(values, centre - width, centre + width)
    return clipped


def outlier_band(values: Floats, min_share: float = MIN_CLIP_SHARE) -> tuple[float, float]:
    """Return the median and the distance from it, at least ``min_share`` of it, beyond which a value is an outlier."""
    centre = float(np.median(values))
    deviation = SD_OF_MAD * float(np.median(np.abs(values - centre)))
    return centre, max(OUTLIER_SDS * deviation, min_share * abs(centre))


def _summarize_steady(values: Floats) -> _SteadyFigure:
    centre, width = outlier_band(values)
    outliers = np.abs(values - centre) > width
    if outliers.mean() > MAX_OUTLIER_SHARE:
        outliers = np.zeros(len(values), dtype=np.bool_)
    usual = values[~outliers]
    mean = float(usual.mean())
    return _SteadyFigure(mean, _standard_error(usual) / mean, _halves_differ(usual, DRIFT_TOLERANCE), outliers)


def _standard_error(values: Floats) -> float:
    """Return the standard error of the mean of autocorrelated values; infinite for a single value."""
    if len(values) < 2:
        return math.inf
    return math.sqrt(float(values.var(ddof=1)) / len(values) * variance_inflation(values, MAX_CORRELATION))


MSER_BATCH = 5
MIN_OUTLIER_DISTANCE = 0.1
"""Relative distance from the median below which a time is never an outlier. A default that keeps timer noise of
very regular series from being marked."""
MAX_MINIBATCH_OUTLIER_SHARE = 0.05
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
    """Assessment of a series, with a mask of outliers over all of it; ``why`` it is not steady is empty if it is."""

    warm_up: int
    outliers: NDArray[np.bool_]
    settled: bool
    why: str


def assess_steadiness(series: Floats) -> Steadiness:
    """Assess a series of at least one minibatch time in execution order."""
    start = count_warm_up(series)
    far = np.zeros(len(series), dtype=np.bool_)
    far[start:] = find_outliers(series[start:])
    why = describe_drift(series[start:])
    return Steadiness(start, far, not why, why)


def find_outliers(series: Floats) -> NDArray[np.bool_]:
    centre, width = outlier_band(series, MIN_OUTLIER_DISTANCE)
    far: NDArray[np.bool_] = np.abs(series - centre) > width
    return far if far.mean() <= MAX_MINIBATCH_OUTLIER_SHARE else np.zeros(len(series), dtype=np.bool_)


def count_warm_up(series: Floats) -> int:
    """Return the number of warm-up minibatches of a series."""
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
    """Describe why a series without its warm-up is not steady; empty if it is."""
    n = len(series)
    if n < MIN_STEPS:
        return f"only {n} minibatches after the start"
    clipped = clip_outliers(series, MIN_OUTLIER_DISTANCE)
    half = n // 2
    if _halves_differ(clipped, MIN_DRIFT):
        change = float(clipped[half:].mean() / clipped[:half].mean()) - 1.0
        return f"the second half's minibatches take {_format_change(change)} time than the first half's"
    change = _relative_trend(clipped)
    return f"the last minibatches take {_format_change(change)} time than the first" if change else ""


def _format_change(change: float) -> str:
    return f"{100 * abs(change):.1f} % {'more' if change > 0 else 'less'}"


def _halves_differ(series: Floats, tolerance: float) -> bool:
    """Return whether the halves of a series have different means: relatively beyond ``tolerance``, and beyond chance.

    Chance by Welch's t-test over batch means, ``DRIFT_CONFIDENCE``.
    """
    half = len(series) // 2
    if half < 2:
        return False
    first, second = series[:half], series[half:]
    apart = abs(float(first.mean() - second.mean()))
    if apart <= tolerance * abs(float(second.mean())):
        return False
    one, two = batch_means(first), batch_means(second)
    variances = [float(means.var(ddof=1)) / len(means) * variance_inflation(means) for means in (one, two)]
    se, freedom = combine_errors([(math.sqrt(v), len(m) - 1) for v, m in zip(variances, (one, two), strict=True)])
    return apart > student_t(freedom, DRIFT_CONFIDENCE) * se


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
