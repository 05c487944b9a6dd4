"""Has a mode settled? Decided from the step times and powers of its chunks so far, and what its steady values are.

Symbols: x_1 .. x_n one figure per chunk (a stretch of about a second), d chunks dropped, m and s mean and standard
deviation of what is kept, k its length, r its lag-1 autocorrelation. The rule, for time and power alike:

1. The first chunk is never kept: it is a look at how long a minibatch takes (PowerTrain drops the first one too).
2. d minimises the sum of (x_i - m)^2 over i > d, divided by (n - d)^2: the marginal standard error rule (MSER: White,
   Simulation 69(6), 1997; White and Spratt, WSC 2000, apply it to batch means, which chunks are). d is at most n / 2
   and a minimum there means that the start is not over. The larger d of time and power counts for both.
3. Values farther than ``OUTLIER_SDS`` from the median of the later half, in deviations estimated by the median absolute
   deviation, are clipped for step 2 and left out of the mean (Hampel's identifier).
4. The standard error is s / sqrt(k) * sqrt((1 + r) / (1 - r)), r no less than 0: that of a mean of correlated values.
5. Settled: enough chunks, minibatches and seconds, both standard errors below the target, and the two halves of what is
   kept do not differ (Welch's t-test; a difference below ``DRIFT_TOLERANCE`` does not matter).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.types import Floats


@dataclass(frozen=True, slots=True)
class StabilityRule:
    """When a mode has settled. All values are chosen by us; ``fedge profile`` records them beside its table."""

    chunk_s: float = 1.0
    """A chunk is as many minibatches as fill so many seconds, one at least: ten power samples at 10 Hz."""
    least_chunks: int = 8
    least_steps: int = 10
    least_s: float = 5.0
    """Kept are at least so many chunks, minibatches and seconds."""
    target: float = 0.0075
    """Relative standard error of time and of power: a little less than what differs from run to run anyway (0.8 to
    1.2 % in published tables), which no longer stay in a mode removes."""
    limit_s: float = 180.0
    """After so many seconds a mode is left, settled or not."""

    def to_dict(self) -> dict[str, float]:
        """The rule for a record."""
        return asdict(self)


OUTLIER_SDS = 5.0
MIN_CLIP_SHARE = 0.01
"""Values within so much of the median (relative) are never outliers, however alike the others are; chosen by us."""
MAX_OUTLIER_SHARE = 0.2
"""Where a larger share lies so far off, that is how the board works, and none are outliers; chosen by us."""
DRIFT_TOLERANCE = 0.01
"""Halves that differ by less (relative) have not drifted; chosen by us."""
DRIFT_STANDARD_ERRORS = 3.0
"""Halves have drifted when they differ by more than so many standard errors of their difference; chosen by us."""
SD_OF_MAD = 1.4826
MAX_CORRELATION = 0.9
"""A lag-1 autocorrelation above it (few values, or a trend) counts as this; chosen by us."""


@dataclass(frozen=True, slots=True)
class MeasuredChunk:
    """A stretch of work in one mode: ``steps`` minibatches, seconds per step, mean watts, seconds in all."""

    steps: int
    step_s: float
    power_w: float
    work_s: float


@dataclass(frozen=True, slots=True)
class StabilityVerdict:
    """The steady values so far, and whether they may be believed. Standard errors are relative (log units)."""

    settled: bool
    step_s: float
    power_w: float
    time_se_log: float
    power_se_log: float
    steps: int
    """Minibatches kept."""
    dropped: int
    """Chunks dropped at the start."""
    outliers: int
    """Chunks kept out of the mean of time or of power."""
    why: str
    """What is missing; empty when settled."""


@dataclass(frozen=True, slots=True)
class _SteadyFigure:
    """What one figure's kept values say."""

    mean: float
    se_log: float
    drifted: bool
    outliers: NDArray[np.bool_]


def judge_stability(chunks: Sequence[MeasuredChunk], rule: StabilityRule) -> StabilityVerdict:
    """What the chunks so far say; at least one chunk is needed. Pure: the same chunks, the same verdict."""
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
    """Why what is kept is not enough; empty when it is."""
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
    """How many chunks belong to the start, and whether it is over."""
    if len(times) == 1:
        return 0, False
    found = [1 + compute_mser_truncation(_clip_outliers(values[1:])) for values in (times, powers)]
    most = 1 + (len(times) - 1) // 2
    return max(found), max(found) < most


def compute_mser_truncation(values: Floats) -> int:
    """MSER's d for values of shape (n,): how many to drop at the start, from 0 to n // 2.

    Of equal ones the least.
    """
    n = len(values)
    centred = values - values[-1]  # so that sums of squares stay exact
    sums, squares = np.cumsum(centred[::-1])[::-1], np.cumsum(np.square(centred)[::-1])[::-1]
    left = n - np.arange(n)
    marginal = np.maximum(squares - np.square(sums) / left, 0.0) / np.square(left)
    return int(np.argmin(marginal[: n // 2 + 1]))


def _clip_outliers(values: Floats) -> Floats:
    centre, width = _outlier_band(values[len(values) // 2 :])
    clipped: Floats = np.clip(values, centre - width, centre + width)
    return clipped


def _outlier_band(values: Floats) -> tuple[float, float]:
    """The median, and how far from it a value is no outlier yet."""
    centre = float(np.median(values))
    deviation = SD_OF_MAD * float(np.median(np.abs(values - centre)))
    return centre, max(OUTLIER_SDS * deviation, MIN_CLIP_SHARE * centre)


def _summarize_steady(values: Floats) -> _SteadyFigure:
    centre, width = _outlier_band(values)
    outliers = np.abs(values - centre) > width
    if outliers.mean() > MAX_OUTLIER_SHARE:
        outliers = np.zeros(len(values), dtype=np.bool_)
    usual = values[~outliers]
    mean = float(usual.mean())
    return _SteadyFigure(mean, _standard_error(usual) / mean, _has_drifted(usual, mean), outliers)


def _standard_error(values: Floats) -> float:
    """Standard error of the mean; infinite for a single value."""
    if len(values) < 2:
        return math.inf
    centred = values - values.mean()
    power = float(centred @ centred)
    correlation = float(centred[1:] @ centred[:-1]) / power if power > 0 else 0.0
    inflated = min(max(correlation, 0.0), MAX_CORRELATION)
    return math.sqrt(power / (len(values) - 1) / len(values) * (1.0 + inflated) / (1.0 - inflated))


def _has_drifted(values: Floats, mean: float) -> bool:
    half = len(values) // 2
    if half < 2:
        return False
    first, second = values[:half], values[half:]
    apart = abs(float(first.mean() - second.mean()))
    spread = math.sqrt(float(first.var(ddof=1)) / len(first) + float(second.var(ddof=1)) / len(second))
    return apart > DRIFT_STANDARD_ERRORS * spread and apart > DRIFT_TOLERANCE * mean
