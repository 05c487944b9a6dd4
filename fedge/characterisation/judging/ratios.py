"""How two estimates compare: their ratio with its 95 % interval.

a / b of independent a and b: log(a / b) has the variance (se_a / a)^2 + (se_b / b)^2 (delta method). Its degrees of
freedom are the lesser of the two, not Welch and Satterthwaite's: both may know their scatter from the same epochs
(``pooling``). Where a is small against its error (a stall that is nearly gone) the logarithm is
not nearly normal, and the delta method is applied to the ratio itself, which is cut off at 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedge.characterisation.judging.estimate import Estimate, student, together

MOST_RELATIVE_SE = 0.2
"""Up to this relative standard error the logarithm is taken; chosen by us."""


def ratio(after: Estimate, before: Estimate) -> Estimate | None:
    """After by before; None where ``before`` is not known to be above 0."""
    if before.value <= 0 or (before.bounded and before.low <= 0) or after.value < 0:
        return None
    value, n = after.value / before.value, min(after.n, before.n)
    if not (after.bounded and before.bounded):
        return Estimate(value, 0.0, math.inf, 1)
    below = before.se / before.value
    if after.value > 0 and after.se <= MOST_RELATIVE_SE * after.value:
        half = student(n - 1) * math.hypot(after.se / after.value, below)
        return Estimate(value, value * math.exp(-half), value * math.exp(half), n)
    half = student(n - 1) * math.hypot(after.se / before.value, value * below)
    return Estimate(value, max(value - half, 0.0), value + half, n)


def middle(found: Sequence[Estimate]) -> Estimate:
    """The geometric mean of the ratios that several boards show, one at least."""
    if len(found) == 1:
        return found[0]
    if any(one.low <= 0 or not one.bounded for one in found):
        mean = together(found)
        return Estimate(mean.value, max(mean.low, 0.0), mean.high, mean.n)
    logs = [Estimate(math.log(one.value), math.log(one.low), math.log(one.high), one.n) for one in found]
    mean = together(logs)
    return Estimate(math.exp(mean.value), math.exp(mean.low), math.exp(mean.high), mean.n)
