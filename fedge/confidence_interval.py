"""Means with 95 % confidence intervals: of independent values, an autocorrelated series, a ratio, pairs of seeds.

Symbols: x_1 .. x_n values, m their mean, s their standard deviation, se the mean's standard error, t(v) the value that
Student's t with v degrees of freedom exceeds in 2.5 % of all cases. The interval is m -+ t(n - 1) se.

The times of consecutive minibatches are correlated (a slow file, a busy core), so that s / sqrt(n) is too small. The
method of batch means takes the means of a few long stretches as independent; 10 to 30 batches suffice. Their remaining
correlation between neighbours r_1 widens the interval: se^2 (1 + r_1) / (1 - r_1).

References:
    Conway, Management Science 10(1), 1963; Schmeiser, Operations Research 30(3), 1982.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Literal

import numpy as np

from fedge.types import Floats

CONFIDENCE = 0.95
"""Conventional level."""
BISECTIONS = 60
"""More than a float has bits, so bisection ends at full precision."""
MIN_EXPANDED_FREEDOM = 200
"""Below, the expansion errs by more than 1e-9; above, the exact sum becomes long."""
MAX_BATCHES = 20
"""The middle of the 10 to 30 batches that Schmeiser found sufficient."""
MIN_BATCH_SIZE = 5
"""Minimum number of minibatches per batch; the default exceeds the period in which up to four workers deliver."""
MIN_BATCHES = 5
"""In a short series, this number of batches takes precedence over ``MIN_BATCH_SIZE``; with fewer, t grows quickly."""
MAX_CORRELATION = 0.8
"""Upper limit of the correlation between neighbouring batch means, which few batches or a trend can bring close to
1; it limits the variance to 9 times that of independent means."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and its 95 % confidence interval.

    Attributes:
        n: Number of independent values, so that the interval has n - 1 degrees of freedom. With n = 1 the scatter is
            unknown and the interval infinite; with n = 0 the interval is a model's error.
    """

    value: float
    low: float
    high: float
    n: int

    @property
    def is_bounded(self) -> bool:
        return -math.inf < self.low and self.high < math.inf

    @property
    def standard_error(self) -> float:
        """The standard error behind a symmetrical interval; infinite if the interval is."""
        return (self.high - self.low) / 2.0 / student_t(self.n - 1) if self.is_bounded else math.inf

    def scale(self, factor: float) -> Estimate:
        """Return the estimate in another unit; the factor is exact and not negative."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor, self.n)


def make_estimate(value: float, se: float, n: int) -> Estimate:
    """Return an estimate from its standard error with ``n`` - 1 degrees of freedom; infinite for ``n`` below 2."""
    half = math.inf if n < 2 else student_t(n - 1) * se
    return Estimate(value, value - half, value + half, n)


def make_unbounded_estimate(value: float) -> Estimate:
    """Return a single value of unknown scatter."""
    return Estimate(value, -math.inf, math.inf, 1)


@lru_cache(maxsize=4096)
def student_t(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Return the two-sided quantile of Student's t; infinite below 1 degree of freedom.

    Exact for whole degrees of freedom; between them its logarithm is interpolated in their inverse; from
    ``MIN_EXPANDED_FREEDOM`` on it is an asymptotic expansion (relative error below 1e-9).

    Args:
        freedom: Degrees of freedom, not necessarily whole.
        confidence: Probability of the interval, from 0 to 1.

    References:
        Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 to 26.7.5.
    """
    if freedom < 1:
        return math.inf
    if freedom >= MIN_EXPANDED_FREEDOM:
        return _expand_student_t(freedom, confidence)
    below = math.floor(freedom)
    share = (1 / below - 1 / freedom) * below * (below + 1)
    exact = _invert_student_t(below, confidence)
    return exact if share == 0 else exact ** (1 - share) * _invert_student_t(below + 1, confidence) ** share


def _invert_student_t(degrees: int, confidence: float) -> float:
    """Find the angle whose tangent, times the root of the degrees, is the quantile, by bisection."""
    low, high = 0.0, math.pi / 2
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_t_probability(middle, degrees) < confidence else (low, middle)
    return math.sqrt(degrees) * math.tan((low + high) / 2)


def _student_t_probability(angle: float, degrees: int) -> float:
    """Return the probability of |t| < sqrt(degrees) tan(angle), by Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    term, total = cosine if odd else 1.0, 0.0
    for i in range(2 + odd, degrees + 1, 2):
        total += term
        term *= cosine * cosine * (i - 1) / i
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def _expand_student_t(v: float, confidence: float) -> float:
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / v ** (k + 1) for k, term in enumerate(terms))


def mean_of_known(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that are not None; None if there is none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def mean_estimate(values: Sequence[float] | Floats) -> Estimate:
    """Estimate the mean of independent values, at least one."""
    array = np.asarray(values, dtype=np.float64)
    n = len(array)
    return (
        make_unbounded_estimate(float(array[0]))
        if n == 1
        else make_estimate(float(array.mean()), float(array.std(ddof=1)) / n**0.5, n)
    )


def batch_mean_estimate(series: Floats) -> Estimate:
    """Estimate the mean of an autocorrelated series; ``n`` is the number of batches, unbounded if there is one."""
    n = len(series)
    count = count_batches(n)
    if count < 2:
        return make_unbounded_estimate(float(series.mean()))
    means = batch_means(series)
    se = float(means.std(ddof=1)) / math.sqrt(count) * math.sqrt(variance_inflation(means))
    return make_estimate(float(series.mean()), se, count)


def batch_means(series: Floats) -> Floats:
    """Return the means of the ``count_batches(n)`` consecutive batches, whose sizes differ by one value at most."""
    n, count = len(series), count_batches(len(series))
    size, larger = divmod(n, count)
    sizes = np.full(count, size)
    sizes[:larger] += 1
    means: Floats = np.add.reduceat(series, np.cumsum(sizes) - sizes) / sizes
    return means


def count_batches(n: int) -> int:
    """Return the number of batches for a series of ``n`` values."""
    return min(MAX_BATCHES, max(n // MIN_BATCH_SIZE, min(n, MIN_BATCHES)))


def variance_inflation(values: Floats, max_correlation: float = MAX_CORRELATION) -> float:
    """Return the factor, at least 1, by which correlation between neighbours raises the variance of the mean."""
    centred = values - values.mean()
    power = float(centred @ centred)
    together = float(centred[1:] @ centred[:-1]) / power if power > 0 else 0.0
    held = min(max(together, 0.0), max_correlation)
    return (1.0 + held) / (1.0 - held)


def combine_errors(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Combine the errors of independent terms into that of their sum.

    Args:
        parts: Standard error and degrees of freedom of each term.

    Returns:
        Standard error and degrees of freedom of the sum.

    References:
        Welch and Satterthwaite: v = (sum se^2)^2 / sum (se^4 / v).
    """
    squares = [se * se for se, _ in parts]
    total = sum(squares)
    if total <= 0.0:
        return 0.0, sum(freedom for _, freedom in parts)
    return math.sqrt(total), total**2 / sum(s * s / v for s, (_, v) in zip(squares, parts, strict=True) if s > 0)


def combine_estimates(estimates: Sequence[Estimate]) -> Estimate:
    """Return the mean of at least one estimate of one quantity, such as those of epochs or boards.

    Differences beyond their own intervals widen the result (``widen_by_scatter``). If one is unbounded, their values
    are taken as independent samples.
    """
    if len(estimates) == 1:
        return estimates[0]
    count = len(estimates)
    among = mean_estimate([one.value for one in estimates])
    if not all(one.is_bounded for one in estimates):
        return among
    within = combine_errors([(one.standard_error / count, one.n - 1) for one in estimates])
    se, freedom = widen_by_scatter(within, (among.standard_error, count - 1))
    return make_estimate(among.value, se, int(freedom) + 1)


def widen_by_scatter(within: tuple[float, float], among: tuple[float, float]) -> tuple[float, float]:
    """Combine the error within the parts of a mean with the scatter among them, each with its degrees of freedom.

    The variance is the larger of the two: that within, plus whatever the parts' differences exceed it by. The degrees
    of freedom of both terms are combined as in ``combine_errors``.
    """
    beyond = among[0] ** 2 - within[0] ** 2
    return within if beyond <= 0.0 else combine_errors([within, (math.sqrt(beyond), among[1])])


MAX_RELATIVE_SE = 0.2
"""Relative standard error up to which a ratio's interval is computed on the log scale; a default up to which both
scales nearly agree."""


def estimate_ratio(after: Estimate, before: Estimate) -> Estimate | None:
    """Estimate the ratio of independent estimates; None if ``before`` is not certainly positive, ``after`` negative."""
    if before.value <= 0 or (before.is_bounded and before.low <= 0) or after.value < 0:
        return None
    value, n = after.value / before.value, min(after.n, before.n)
    if not (after.is_bounded and before.is_bounded):
        return Estimate(value, 0.0, math.inf, 1)
    below = before.standard_error / before.value
    if after.value > 0 and after.standard_error <= MAX_RELATIVE_SE * after.value:
        half = student_t(n - 1) * math.hypot(after.standard_error / after.value, below)
        return Estimate(value, value * math.exp(-half), value * math.exp(half), n)
    half = student_t(n - 1) * math.hypot(after.standard_error / before.value, value * below)
    return Estimate(value, max(value - half, 0.0), value + half, n)


def geometric_mean(found: Sequence[Estimate]) -> Estimate:
    """Return the geometric mean of ratios, such as those of several boards."""
    if len(found) == 1:
        return found[0]
    if any(one.low <= 0 or not one.is_bounded for one in found):
        mean = combine_estimates(found)
        return Estimate(mean.value, max(mean.low, 0.0), mean.high, mean.n)
    logs = [Estimate(math.log(one.value), math.log(one.low), math.log(one.high), one.n) for one in found]
    mean = combine_estimates(logs)
    return Estimate(math.exp(mean.value), math.exp(mean.low), math.exp(mean.high), mean.n)


# Over seeds -----------------------------------------------------------------------------------------------------------

Verdict = Literal["higher", "lower", "equal", "undecided", "one seed"]


@dataclass(frozen=True, slots=True)
class ConfidenceInterval:
    """A mean with its confidence interval.

    Attributes:
        half_width: Half the interval's width, in the unit of the mean; None for a single value.
    """

    mean: float
    half_width: float | None
    n: int

    @property
    def low(self) -> float:
        return self.mean - (self.half_width or 0.0)

    @property
    def high(self) -> float:
        return self.mean + (self.half_width or 0.0)

    @property
    def verdict(self) -> Verdict:
        """Interpretation of a difference: the side of zero on which the whole interval lies, if it does."""
        if self.half_width is None:
            return "one seed"
        if self.mean == self.half_width == 0:
            return "equal"
        return "higher" if self.low > 0 else "lower" if self.high < 0 else "undecided"


def mean_interval(values: Sequence[float | None]) -> ConfidenceInterval | None:
    """Return the mean and interval of the known, finite values, one per seed; None if there is none."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    n = len(known)
    if not n:
        return None
    mean = math.fsum(known) / n
    if n == 1:
        return ConfidenceInterval(mean, None, 1)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in known) / (n - 1))
    return ConfidenceInterval(mean, student_t(n - 1) * spread / math.sqrt(n), n)


def paired_interval(ours: Mapping[int, float | None], theirs: Mapping[int, float | None]) -> ConfidenceInterval | None:
    """Return the interval of the paired difference ``ours - theirs`` over the seeds known in both, or None without one.

    Runs with the same seed have the same boards, data shares and noise, so the seed's effect cancels out.
    """
    pairs = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
    return mean_interval([None if a is None or b is None else a - b for a, b in pairs])
