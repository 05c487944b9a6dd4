"""Predictor of two ordinary least-squares fits: time from the four knobs, energy from the knobs and the time.

T = a f_cpu + b cores + c f_gpu + d f_mem + e, energy by a regression on the four knobs and the predicted time, and
power as energy / time.

References:
    The simple predictor of the characterisation paper (doi 10.1145/3570604).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors.measurement_columns import (
    PREDICTION_FLOOR,
    MeasurementColumns,
    apply_floor,
    collect_columns,
    estimate_sd_log,
)
from fedge.types import Floats, Measurement, Modes, Predictions

POWER_CEILING = 2.0
"""Predicted power is at most this share of the largest measured one: where the line of time falls below its floor,
energy / time would grow without bound. Default; a smaller value may clip modes with high power."""


@dataclass(frozen=True, slots=True, eq=False)
class LinearFit:
    """A linear fit y = mean + (x - centre) / scale . slopes.

    Attributes:
        mean: Mean of y.
        centre: Mean of each column, shape (columns,).
        scale: Scale of each column, shape (columns,).
        slopes: Slope per scaled column, shape (columns,); the minimum-norm solution if it is not unique.
    """

    mean: float
    centre: Floats
    scale: Floats
    slopes: Floats

    def predict(self, x: Floats) -> Floats:
        """Return the values at ``x`` (n, columns), shape (n,)."""
        value: Floats = self.mean + (x - self.centre) / self.scale @ self.slopes
        return value


class LinearPredictor:
    """A ``fedge.protocols.Predictor``: linear fits, from one measured mode on.

    The fits fall below zero for modes that are much faster than the measured ones. Time, energy and power are therefore
    at least ``PREDICTION_FLOOR`` of the smallest measured value, and power is at most ``POWER_CEILING`` of the largest.
    The spread is that of the residuals, the same for every mode.

    Attributes:
        knowledge: Prior knowledge of board and workload; not used.
        time_: Fit of seconds per step.
        energy_: Fit of joules per step.
        seen_: The measurements.
        spreads_: Spreads of time and power, log units.
    """

    def __init__(self, knowledge: PriorKnowledge) -> None:
        self.knowledge = knowledge

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Fit time and energy.

        Raises:
            BadInput: There are no measurements.
        """
        self.seen_: MeasurementColumns = collect_columns("linear", measurements)
        knobs, step_s, step_j = self.seen_.knobs, self.seen_.step_s, self.seen_.step_s * self.seen_.power_w
        self.time_ = fit_line(knobs, step_s)
        # Fitted to measured times: times predicted by the first fit are linear in the knobs and add no information.
        self.energy_ = fit_line(np.column_stack([knobs, step_s]), step_j)
        said = self._values(knobs)
        truth = (step_s, self.seen_.power_w)
        self.spreads_ = tuple(
            estimate_sd_log(np.log(t / s), 1 + n) for t, s, n in zip(truth, said, (4, 5), strict=True)
        )
        return self

    def predict(self, modes: Modes) -> Predictions:
        """Predict step time and power of every mode; requires ``fit``."""
        step_s, power_w = self._values(modes.knobs)
        time_sd, power_sd = (np.full(len(modes), sd) for sd in self.spreads_)
        return Predictions(modes, step_s=step_s, power_w=power_w, step_s_sd_log=time_sd, power_w_sd_log=power_sd)

    def _values(self, knobs: Floats) -> tuple[Floats, Floats]:
        step_s = apply_floor(self.time_.predict(knobs), self.seen_.step_s)
        step_j = apply_floor(
            self.energy_.predict(np.column_stack([knobs, step_s])), self.seen_.step_s * self.seen_.power_w
        )
        watts = self.seen_.power_w
        return step_s, np.clip(step_j / step_s, PREDICTION_FLOOR * watts.min(), POWER_CEILING * watts.max())


def fit_line(x: Floats, y: Floats, scale: Floats | None = None) -> LinearFit:
    """Fit a line by least squares; if it is not unique, the one with the smallest scaled slopes.

    Args:
        x: Inputs, shape (n, columns).
        y: Outputs, shape (n,).
        scale: Scale of each column, shape (columns,); None for its standard deviation. A column without variation is
            not scaled.
    """
    centre, scale = x.mean(axis=0), x.std(axis=0) if scale is None else scale
    scale = np.where(scale > 1e-9 * np.abs(centre), scale, 1.0)
    slopes = np.linalg.lstsq((x - centre) / scale, y - y.mean(), rcond=1e-9)[0]
    return LinearFit(float(y.mean()), centre, scale, slopes)
