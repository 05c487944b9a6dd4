"""Predicted modes for display: time, power and energy per step with 90 % intervals, single modes or fronts.

Symbols: t, p predicted seconds and watts, s_t, s_p their standard deviations in log units; energy e = t p. Its standard
deviation is hypot(s_t, s_p), assuming independent errors; a value's interval is v exp(-+1.645 s).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from fedge.decisions.mode_objectives import FrontCost, find_front_rows, find_knee
from fedge.predictors.table_board import Z_90
from fedge.types import PowerMode, Predictions


@dataclass(frozen=True, slots=True)
class PredictionInterval:
    """A prediction with its 90 % interval."""

    value: float
    low90: float
    high90: float


@dataclass(frozen=True, slots=True)
class ModePoint:
    """The time, power and energy of a step in one mode.

    Attributes:
        measured: Whether the model learnt from this mode.
    """

    mode: PowerMode
    step_s: PredictionInterval
    power_w: PredictionInterval
    energy_j: PredictionInterval
    measured: bool


@dataclass(frozen=True, slots=True)
class ModeFront:
    """The Pareto-optimal modes from fastest to cheapest.

    Attributes:
        against: Cost that is traded against time.
        knee: The point of best trade-off.
        maxn: The board's top mode, whether on the front or not.
    """

    against: FrontCost
    points: tuple[ModePoint, ...]
    knee: ModePoint
    maxn: ModePoint


def build_mode_point(predictions: Predictions, row: int, measured: Collection[PowerMode] = ()) -> ModePoint:
    """Return the mode in this row."""
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
    """Return the front of all rows; ``maxn`` is the row of the board's top mode.

    Raises:
        FedgeError: If no row is finite.
    """
    points = tuple(build_mode_point(predictions, int(row), measured) for row in find_front_rows(predictions, against))
    bend = build_mode_point(predictions, find_knee(predictions, against).row, measured)
    return ModeFront(against, points, bend, build_mode_point(predictions, maxn, measured))


def _prediction_interval(value: float, sd_log: float) -> PredictionInterval:
    factor = float(np.exp(Z_90 * sd_log))
    return PredictionInterval(value, value / factor, value * factor)
