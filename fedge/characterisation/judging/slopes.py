"""What a sweep shows of a clock or of the batch size: by which power of it a figure goes, y ~ x^s, near a setting."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise

from fedge.characterisation.judging.estimate import Estimate
from fedge.characterisation.judging.pooling import Pooled
from fedge.characterisation.judging.setting import value_of, without
from fedge.characterisation.judging.statistics import PointStats
from fedge.characterisation.point import Point

UNSURE = 0.5
"""Relative half-width of what is expected by a slope that was seen somewhere else; chosen by us."""

FigureOf = Callable[[PointStats], float | None]


def slope_of(now: Pooled, group: Sequence[Pooled], knob: str, figure: FigureOf) -> float | None:
    """By two settings that differ in ``knob`` alone, those most like ``now``; None where there are none."""
    own = value_of(now.point, knob)
    if own is None or float(own) <= 0:
        return None
    chains: dict[Point, list[Pooled]] = defaultdict(list)
    for one in group:
        if value_of(one.point, knob):
            chains[without(one.point, knob)].append(one)
    like = without(now.point, knob)
    found: list[tuple[bool, float, float]] = []
    for key, settings in chains.items():
        ordered = sorted((float(value_of(one.point, knob) or 0.0), figure(one.stats) or 0.0) for one in settings)
        for (x, y), (x2, y2) in pairwise(ordered):
            if y > 0 and y2 > 0 and x2 > x > 0:
                away = abs(math.log(math.sqrt(x * x2) / float(own)))
                found.append((key != like, away, math.log(y2 / y) / math.log(x2 / x)))
    return min(found)[2] if found else None


def scaled(slope: float, ratio: float) -> Estimate:
    """By how much a figure grows when its knob goes to ``ratio`` times what it is."""
    value, other, another = (ratio ** (slope * (1.0 + by)) for by in (0.0, -UNSURE, UNSURE))
    return Estimate(value, min(other, another), max(other, another), 0)


def watts(stats: PointStats) -> float | None:
    """An epoch's mean power; None where nobody metered."""
    return stats.power_w.value if stats.power_w is not None else None


def computing(stats: PointStats) -> float | None:
    """Seconds of computing per minibatch."""
    return stats.compute_s.value / stats.steps
