"""95 % confidence intervals of means over few seeds by Student's t, also of paired differences.

| symbol | meaning |
| --- | --- |
| n | number of seeds |
| m, s | mean and standard deviation (n - 1) of the n values |
| t | quantile (1 + CONFIDENCE_LEVEL) / 2 of Student's distribution with n - 1 degrees of freedom |
| h | half width of the interval: t s / sqrt(n) |

One seed says nothing about others: for n = 1 there is no interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

CONFIDENCE_LEVEL = 0.95
"""Conventional level."""
BISECTIONS = 100
"""More than a float has bits, so bisection ends at full precision."""
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
    return ConfidenceInterval(mean, student_t((1 + CONFIDENCE_LEVEL) / 2, n - 1) * spread / math.sqrt(n), n)


def paired_interval(ours: Mapping[int, float | None], theirs: Mapping[int, float | None]) -> ConfidenceInterval | None:
    """Return the interval of the paired difference ``ours - theirs`` over the seeds known in both, or None without one.

    Runs with the same seed have the same boards, data shares and noise, so the seed's effect cancels out.
    """
    pairs = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
    return mean_interval([None if a is None or b is None else a - b for a, b in pairs])


@cache
def student_t(p: float, degrees: int) -> float:
    """Return the quantile ``p`` of Student's t distribution.

    Args:
        p: Probability, 0 < p < 1.
        degrees: Degrees of freedom, at least 1.

    Raises:
        ValueError: If an argument is out of range.

    References:
        Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    if not 0 < p < 1 or degrees < 1:
        raise ValueError(f"p = {p}, degrees = {degrees}: 0 < p < 1 and at least one degree of freedom are needed")
    if p < 0.5:
        return -student_t(1 - p, degrees)
    low, high, within = 0.0, math.pi / 2, 2 * p - 1
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_t_probability(middle, degrees) < within else (low, middle)
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
