"""Detection of a mode's steady state from the step times and powers of its chunks, and its steady values.

Symbols: x_1 .. x_n one value per chunk (an interval of about a second), d chunks dropped, m and s mean and standard
deviation of the values kept, k their number, r their lag-1 autocorrelation. The rule, for time and power alike:

1. The first chunk is always dropped: it only shows how long a step takes (PowerTrain drops the first one too).
2. d minimises the sum of (x_i - m)^2 over i > d, divided by (n - d)^2: the marginal standard error rule (MSER). d is at
   most n / 2, and a minimum there means that the transient is not over. The larger d of time and power is used for
       both.
3. Values farther than ``OUTLIER_SDS`` from the median of the later half, in standard deviations estimated by the median
   absolute deviation, are clipped for step 2 and left out of the mean (Hampel's identifier).
4. The standard error is s / sqrt(k) * sqrt((1 + r) / (1 - r)) with r >= 0: that of a mean of correlated values.
5. Settled: enough chunks, steps and seconds, both standard errors below the target, and no difference between the two
   halves of the values kept (Welch's t-test; a difference below ``DRIFT_TOLERANCE`` is ignored).

References:
    White, Simulation 69(6), 1997: MSER. White and Spratt, WSC 2000: MSER on batch means, which chunks are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.characterisation.confidence_interval import variance_inflation
from fedge.types import Floats


@dataclass(frozen=True, slots=True)
class StabilityRule:
    """The criteria of a settled mode; ``fedge profile`` records them with its table. The values are defaults of a
    campaign.

    Attributes:
        chunk_s: Length of a chunk in seconds, at least one step; ten power samples at 10 Hz by default.
        target: Relative standard error of time and power.
        limit_s: Seconds after which a mode is left, settled or not.
    """

    chunk_s: float = 1.0
    least_chunks: int = 8
    least_steps: int = 10
    least_s: float = 5.0
    target: float = 0.0075
    limit_s: float = 180.0

    def to_dict(self) -> dict[str, float]:
        """Return the rule as a dictionary for a record."""
        return asdict(self)


OUTLIER_SDS = 5.0
MIN_CLIP_SHARE = 0.01
# Values within this relative distance of the median are never outliers, even if the others scatter less. Default.
MAX_OUTLIER_SHARE = 0.2
# If a larger share of values is far off, that is the board's normal behaviour and none are outliers. Default.
DRIFT_TOLERANCE = 0.01
# Halves that differ by less (relative) have not drifted. Default: about the variation between runs.
DRIFT_STANDARD_ERRORS = 3.0
# Halves have drifted if they differ by more than this many standard errors. Default: 3 makes false alarms rare.
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
    """Return MSER's truncation point for values of shape (n,).

    Returns:
        How many values to drop at the start, from 0 to n // 2; the smallest of equally good ones.
    """
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
    return _SteadyFigure(mean, _standard_error(usual) / mean, _has_drifted(usual, mean), outliers)


def _standard_error(values: Floats) -> float:
    """Return the standard error of the mean of autocorrelated values; infinite for a single value."""
    if len(values) < 2:
        return math.inf
    return math.sqrt(float(values.var(ddof=1)) / len(values) * variance_inflation(values, MAX_CORRELATION))


def _has_drifted(values: Floats, mean: float) -> bool:
    half = len(values) // 2
    if half < 2:
        return False
    first, second = values[:half], values[half:]
    apart = abs(float(first.mean() - second.mean()))
    spread = math.sqrt(float(first.var(ddof=1)) / len(first) + float(second.var(ddof=1)) / len(second))
    return apart > DRIFT_STANDARD_ERRORS * spread and apart > DRIFT_TOLERANCE * mean
