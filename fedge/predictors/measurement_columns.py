"""Shared parts of the predictors without a prior: measurements as columns, floor of predictions, spread estimate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.errors import BadInput
from fedge.types import Floats, Measurement

PREDICTION_FLOOR = 0.5
"""Share of the smallest measured value below which no linear fit or network may predict; either may fall below zero
otherwise. Default: few unmeasured modes halve the shortest measured time."""
PRIOR_SD_LOG, PRIOR_ROWS = 0.7, 2.0
"""Prior spread of a predictor's error (a factor of e^0.7), and the number of residuals it counts as. Default; it
dominates while there are only a few measurements."""


@dataclass(frozen=True, slots=True, eq=False)
class MeasurementColumns:
    """Measurements as columns, sorted so that the order of the measurements does not matter.

    Attributes:
        knobs: Cores, and CPU, GPU and memory clock in MHz, shape (n, 4).
        step_s: Seconds per step, shape (n,).
        power_w: Module power in watts, shape (n,).
        steps: Measured steps, shape (n,).
    """

    knobs: Floats
    step_s: Floats
    power_w: Floats
    steps: NDArray[np.int64]


def collect_columns(predictor: str, measurements: Sequence[Measurement]) -> MeasurementColumns:
    """Select the measurements to learn from.

    Those of other boards are used only if there is none of this board, throttled ones only if all are throttled.

    Args:
        predictor: Name of the predictor, for the error.
        measurements: All measurements.

    Raises:
        BadInput: There are no measurements.
    """
    if not measurements:
        raise BadInput(f"predictor {predictor}", "no measurement", "at least one measured power mode: it has no prior")
    own = [m for m in measurements if m.board is None] or measurements
    kept = [m for m in own if not m.throttled] or own
    rows = sorted(
        (m.mode.cores, m.mode.cpu_mhz, m.mode.gpu_mhz, m.mode.mem_mhz, m.step_s, m.power_w, m.steps) for m in kept
    )
    table = np.array(rows, dtype=np.float64)
    return MeasurementColumns(table[:, :4], table[:, 4], table[:, 5], table[:, 6].astype(np.int64))


def apply_floor(predicted: Floats, measured: Floats) -> Floats:
    """Clip predictions from below at ``PREDICTION_FLOOR`` times the smallest measured value.

    Args:
        predicted: Predicted values, any shape.
        measured: Measured values, at least one.
    """
    value: Floats = np.maximum(predicted, PREDICTION_FLOOR * measured.min())
    return value


def estimate_sd_log(residuals: Floats, parameters: int) -> float:
    """Estimate the standard deviation of residuals, shrunk to ``PRIOR_SD_LOG``.

    Args:
        residuals: Residuals in log units, shape (n,).
        parameters: Number of parameters fitted to them.
    """
    beyond = max(len(residuals) - parameters, 0)
    total = PRIOR_ROWS * PRIOR_SD_LOG**2 + float(np.square(residuals).sum())
    return float(np.sqrt(total / (PRIOR_ROWS + beyond)))
