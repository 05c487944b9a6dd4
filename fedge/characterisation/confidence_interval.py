"""A mean with its 95 % confidence interval: of independent figures, of a series that hangs together, of a ratio.

Symbols: x_1 .. x_n figures, m their mean, s their standard deviation, se the mean's standard error, t(v) the value that
Student's t with v degrees of freedom exceeds in 2.5 % of all cases. The interval is m -+ t(n - 1) se.

A series of minibatches hangs together (a slow file, a busy core), so that s / sqrt(n) is too small. Batch means
(Conway, Management Science 10(1), 1963; Schmeiser, Operations Research 30(3), 1982: 10 to 30 batches do) takes the
means of a few long stretches for independent ones. What neighbours among them still have in common, their correlation
r_1, widens the interval: se^2 (1 + r_1) / (1 - r_1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from fedge.types import Floats

CONFIDENCE = 0.95
MAX_BATCHES = 20
"""Chosen by us, out of the 10 to 30 that Schmeiser found to do."""
MIN_BATCH_SIZE = 5
"""Minibatches; chosen by us: longer than the rhythm in which up to four workers hand batches over."""
MIN_BATCHES = 5
"""Where the series is short, so many batches come before batches of ``MIN_BATCH_SIZE``; chosen by us."""
MAX_CORRELATION = 0.8
"""Of batch means next to each other; what lies above it (few batches, or a trend) counts as this; chosen by us."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and its 95 % confidence interval; ``n`` - 1 are the interval's degrees of freedom.

    With ``n`` = 1 nothing is known of the scatter: the interval is infinite.
    """

    value: float
    low: float
    high: float
    n: int

    @property
    def is_bounded(self) -> bool:
        """Whether the interval says anything."""
        return -math.inf < self.low and self.high < math.inf

    @property
    def standard_error(self) -> float:
        """The standard error that a symmetrical interval was made of."""
        return (self.high - self.low) / 2.0 / student_t(self.n - 1) if self.is_bounded else math.inf

    def scale(self, factor: float) -> Estimate:
        """The same in another unit; ``factor`` is exact and not negative."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor, self.n)


def make_estimate(value: float, se: float, n: int) -> Estimate:
    """A mean with a standard error of ``n`` - 1 degrees of freedom."""
    half = math.inf if n < 2 else student_t(n - 1) * se
    return Estimate(value, value - half, value + half, n)


def make_unbounded_estimate(value: float) -> Estimate:
    """A single figure, of whose scatter nothing is known."""
    return Estimate(value, -math.inf, math.inf, 1)


@lru_cache(maxsize=4096)
def student_t(freedom: float, confidence: float = CONFIDENCE) -> float:
    """What Student's t exceeds, on both sides together, in 1 - ``confidence`` of all cases.

    Exact for 1 and 2 degrees of freedom, between these and 3 interpolated in their inverse, from 3 on by Abramowitz and
    Stegun 26.7.5 (0.2 % off at 3, less above).
    """
    if freedom < 1:
        return math.inf
    if freedom < 3:
        lower, upper = (1, 2) if freedom < 2 else (2, 3)
        share = (1 / lower - 1 / freedom) / (1 / lower - 1 / upper)
        return (1 - share) * _student_t_from_3(lower, confidence) + share * _student_t_from_3(upper, confidence)
    return _student_t_from_3(freedom, confidence)


def _student_t_from_3(v: float, confidence: float) -> float:
    if v == 1:
        return math.tan(math.pi * confidence / 2)
    if v == 2:
        return confidence * math.sqrt(2 / (1 - confidence**2))
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / v ** (k + 1) for k, term in enumerate(terms))


def mean_estimate(values: Sequence[float] | Floats) -> Estimate:
    """Of independent figures, one at least."""
    array = np.asarray(values, dtype=np.float64)
    n = len(array)
    return (
        make_unbounded_estimate(float(array[0]))
        if n == 1
        else make_estimate(float(array.mean()), float(array.std(ddof=1)) / n**0.5, n)
    )


def batch_mean_estimate(series: Floats) -> Estimate:
    """Of figures in the order in which they came, shape (n,), one at least, by batch means (see this file's head)."""
    n = len(series)
    count = count_batches(n)
    if count < 2:
        return make_unbounded_estimate(float(series.mean()))
    means = batch_means(series)
    se = float(means.std(ddof=1)) / math.sqrt(count) * math.sqrt(variance_inflation(means))
    return make_estimate(float(series.mean()), se, count)


def batch_means(series: Floats) -> Floats:
    """The means of the batches, shape (``batches_of(n)``,); sizes differ by one figure at most."""
    n, count = len(series), count_batches(len(series))
    size, larger = divmod(n, count)
    sizes = np.full(count, size)
    sizes[:larger] += 1
    means: Floats = np.add.reduceat(series, np.cumsum(sizes) - sizes) / sizes
    return means


def count_batches(n: int) -> int:
    """Into how many batches a series of ``n`` figures is cut."""
    return min(MAX_BATCHES, max(n // MIN_BATCH_SIZE, min(n, MIN_BATCHES)))


def variance_inflation(means: Floats) -> float:
    """How much larger the variance of their mean is than that of independent ones, at least 1."""
    centred = means - means.mean()
    power = float(centred @ centred)
    together = float(centred[1:] @ centred[:-1]) / power if power > 0 else 0.0
    held = min(max(together, 0.0), MAX_CORRELATION)
    return (1.0 + held) / (1.0 - held)


def combine_errors(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Standard error and degrees of freedom of a sum of independent terms, given those of each term.

    Welch and Satterthwaite: v = (sum se^2)^2 / sum (se^4 / v).
    """
    squares = [se * se for se, _ in parts]
    total = sum(squares)
    if total <= 0.0:
        return 0.0, sum(freedom for _, freedom in parts)
    return math.sqrt(total), total**2 / sum(s * s / v for s, (_, v) in zip(squares, parts, strict=True) if s > 0)


def combine_estimates(estimates: Sequence[Estimate]) -> Estimate:
    """The mean of several estimates of one figure, such as epochs or boards, one at least.

    Where they differ by more than their own intervals explain, that counts too (``widen_by_scatter``). Where one has no
    interval, they themselves are the independent figures.
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
    """Standard error and degrees of freedom of a mean by what its parts know of themselves and how far they lie apart.

    The variance is the larger one: that within, and what the parts' own differences have beyond it. The two terms'
    degrees of freedom are taken together as in ``combine_errors``.
    """
    beyond = among[0] ** 2 - within[0] ** 2
    return within if beyond <= 0.0 else combine_errors([within, (math.sqrt(beyond), among[1])])


MAX_RELATIVE_SE = 0.2
"""Up to this relative standard error the logarithm is taken; chosen by us."""


def estimate_ratio(after: Estimate, before: Estimate) -> Estimate | None:
    """After by before; None where ``before`` is not known to be above 0."""
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
    """The geometric mean of the ratios that several boards show, one at least."""
    if len(found) == 1:
        return found[0]
    if any(one.low <= 0 or not one.is_bounded for one in found):
        mean = combine_estimates(found)
        return Estimate(mean.value, max(mean.low, 0.0), mean.high, mean.n)
    logs = [Estimate(math.log(one.value), math.log(one.low), math.log(one.high), one.n) for one in found]
    mean = combine_estimates(logs)
    return Estimate(math.exp(mean.value), math.exp(mean.low), math.exp(mean.high), mean.n)
