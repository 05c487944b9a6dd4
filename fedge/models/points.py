"""Modes as a person reads them: seconds, watts and joules per minibatch with 90 % intervals, alone or as a front.

Symbols: t, p predicted seconds and watts, s_t, s_p their spreads in log units; energy e = t p. Its spread is
hypot(s_t, s_p), as if the two errors had nothing to do with each other; a value's interval is v exp(-+1.645 s).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from fedge.choice.objectives import Against, front_rows, knee
from fedge.evaluation.accuracy import HALF_90
from fedge.types import PowerMode, Predictions


@dataclass(frozen=True, slots=True)
class Interval:
    """A prediction, and the interval that holds it with 90 %."""

    value: float
    low90: float
    high90: float


@dataclass(frozen=True, slots=True)
class Point:
    """One mode's minibatch; ``measured`` says whether the model learnt from this mode."""

    mode: PowerMode
    step_s: Interval
    power_w: Interval
    energy_j: Interval
    measured: bool


@dataclass(frozen=True, slots=True)
class ModeFront:
    """The modes from which none is both faster and cheaper, from fastest to cheapest; ``knee`` is one of them.

    ``against`` says what is dear; ``maxn`` is the board's top mode, on the front or not.
    """

    against: Against
    points: tuple[Point, ...]
    knee: Point
    maxn: Point


def point_at(predictions: Predictions, row: int, measured: Collection[PowerMode] = ()) -> Point:
    """The mode in this row."""
    mode = predictions.modes[row]
    time_sd, power_sd = float(predictions.step_s_sd_log[row]), float(predictions.power_w_sd_log[row])
    step_s, power_w = float(predictions.step_s[row]), float(predictions.power_w[row])
    return Point(
        mode,
        _interval(step_s, time_sd),
        _interval(power_w, power_sd),
        _interval(step_s * power_w, float(np.hypot(time_sd, power_sd))),
        mode in measured,
    )


def front_of(predictions: Predictions, against: Against, maxn: int, measured: Collection[PowerMode] = ()) -> ModeFront:
    """The front of all rows; ``maxn`` is the row of the board's top mode. Raises ``FedgeError`` for no finite row."""
    points = tuple(point_at(predictions, int(row), measured) for row in front_rows(predictions, against))
    bend = point_at(predictions, knee(predictions, against).row, measured)
    return ModeFront(against, points, bend, point_at(predictions, maxn, measured))


def _interval(value: float, sd_log: float) -> Interval:
    factor = float(np.exp(HALF_90 * sd_log))
    return Interval(value, value / factor, value * factor)
