"""Modes as a person reads them: seconds, watts and joules per minibatch with 90 % intervals, alone or as a front.

Symbols: t, p predicted seconds and watts, s_t, s_p their spreads in log units; energy e = t p. Its spread is
hypot(s_t, s_p), as if the two errors had nothing to do with each other; a value's interval is v exp(-+1.645 s).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from fedge.decisions.mode_objectives import FrontCost, find_front_rows, find_knee
from fedge.predictors.prediction_accuracy import Z_90
from fedge.types import PowerMode, Predictions


@dataclass(frozen=True, slots=True)
class PredictionInterval:
    """A prediction, and the interval that holds it with 90 %."""

    value: float
    low90: float
    high90: float


@dataclass(frozen=True, slots=True)
class ModePoint:
    """One mode's minibatch; ``measured`` says whether the model learnt from this mode."""

    mode: PowerMode
    step_s: PredictionInterval
    power_w: PredictionInterval
    energy_j: PredictionInterval
    measured: bool


@dataclass(frozen=True, slots=True)
class ModeFront:
    """The modes from which none is both faster and cheaper, from fastest to cheapest; ``find_knee`` is one of them.

    ``against`` says what is dear; ``maxn`` is the board's top mode, on the front or not.
    """

    against: FrontCost
    points: tuple[ModePoint, ...]
    knee: ModePoint
    maxn: ModePoint


def build_mode_point(predictions: Predictions, row: int, measured: Collection[PowerMode] = ()) -> ModePoint:
    """The mode in this row."""
    mode = predictions.modes[row]
    time_sd, power_sd = float(predictions.step_s_sd_log[row]), float(predictions.power_w_sd_log[row])
    step_s, power_w = float(predictions.step_s[row]), float(predictions.power_w[row])
    return ModePoint(
        mode,
        step_s=_prediction_interval(step_s, time_sd),
        power_w=_prediction_interval(power_w, power_sd),
        energy_j=_prediction_interval(step_s * power_w, float(np.hypot(time_sd, power_sd))),
        measured=mode in measured,
    )


def build_mode_front(
    predictions: Predictions, against: FrontCost, maxn: int, measured: Collection[PowerMode] = ()
) -> ModeFront:
    """The front of all rows; ``maxn`` is the row of the board's top mode. Raises ``FedgeError`` for no finite row."""
    points = tuple(build_mode_point(predictions, int(row), measured) for row in find_front_rows(predictions, against))
    bend = build_mode_point(predictions, find_knee(predictions, against).row, measured)
    return ModeFront(against, points, bend, build_mode_point(predictions, maxn, measured))


def _prediction_interval(value: float, sd_log: float) -> PredictionInterval:
    factor = float(np.exp(Z_90 * sd_log))
    return PredictionInterval(value, value / factor, value * factor)
