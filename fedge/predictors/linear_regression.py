"""Predicts with two ordinary least squares: time from the four knobs, energy from the knobs and the time.

Characterisation paper (doi 10.1145/3570604), the simple predictor: T = a f_cpu + b cores + c f_gpu + d f_mem + e, and
energy by a regression on the four knobs and the predicted time. Power is energy / time.
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
"""No predicted power is above this share of the largest measured one: where the line of time dives below its floor,
energy / time would grow without bound. Chosen by us."""


@dataclass(frozen=True, slots=True, eq=False)
class LinearFit:
    """y = mean + (x - centre) / scale . slopes; of several lines that fit alike, the one with the least slopes."""

    mean: float
    centre: Floats
    scale: Floats
    slopes: Floats

    def predict(self, x: Floats) -> Floats:
        """Values at ``x`` (n, columns), shape (n,)."""
        value: Floats = self.mean + (x - self.centre) / self.scale @ self.slopes
        return value


class LinearPredictor:
    """A ``fedge.protocols.Predictor``: straight lines, from one measured mode on.

    The lines fall below zero where modes are much faster than the measured ones; time, energy and power are therefore
    not below ``PREDICTION_FLOOR`` of the least measured, nor power above ``POWER_CEILING`` of the largest. The spread
    is the residuals', the same for every mode. Learnt: ``time_``, ``energy_``, ``seen_``, ``spreads_``.
    """

    def __init__(self, knowledge: PriorKnowledge) -> None:
        self.knowledge = knowledge

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Fit both lines; raises ``BadInput`` when nothing was measured."""
        self.seen_: MeasurementColumns = collect_columns("linear", measurements)
        knobs, step_s, step_j = self.seen_.knobs, self.seen_.step_s, self.seen_.step_s * self.seen_.power_w
        self.time_ = fit_line(knobs, step_s)
        # Fitted to measured times: times on the first line are a sum of the knobs already and would say nothing more.
        self.energy_ = fit_line(np.column_stack([knobs, step_s]), step_j)
        said = self._values(knobs)
        truth = (step_s, self.seen_.power_w)
        self.spreads_ = tuple(
            estimate_sd_log(np.log(t / s), 1 + n) for t, s, n in zip(truth, said, (4, 5), strict=True)
        )
        return self

    def predict(self, modes: Modes) -> Predictions:
        """Step time and power of every mode; needs ``fit`` first."""
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
    """The least-squares line through ``y`` (n,) at ``x`` (n, columns); of equals that with the least slopes.

    Slopes are weighed per ``scale`` (columns,) of each column, by default what it spreads over; without spread a
    column says nothing and counts as it is.
    """
    centre, scale = x.mean(axis=0), x.std(axis=0) if scale is None else scale
    scale = np.where(scale > 1e-9 * np.abs(centre), scale, 1.0)
    slopes = np.linalg.lstsq((x - centre) / scale, y - y.mean(), rcond=1e-9)[0]
    return LinearFit(float(y.mean()), centre, scale, slopes)
