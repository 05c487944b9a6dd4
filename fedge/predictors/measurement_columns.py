"""What the predictors without a prior share: measured modes as columns, a floor under predictions, a spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.errors import BadInput
from fedge.types import Floats, Measurement

PREDICTION_FLOOR = 0.5
"""No prediction of a straight line or a network is below this share of the smallest value measured; either may fall
below zero otherwise. Chosen by us: halving the fastest time seen is more than a few unseen modes usually bring."""
PRIOR_SD_LOG, PRIOR_ROWS = 0.7, 2.0
"""Before its residuals say anything, a predictor is taken to err by a factor of e^0.7; that counts as much as two
residuals. Chosen by us."""


@dataclass(frozen=True, slots=True, eq=False)
class MeasurementColumns:
    """Measurements as columns, in an order that does not depend on theirs.

    ``knobs`` has shape (n, 4), columns cores, CPU, GPU and memory MHz; the others have shape (n,).
    """

    knobs: Floats
    step_s: Floats
    power_w: Floats
    steps: NDArray[np.int64]


def collect_columns(predictor: str, measurements: Sequence[Measurement]) -> MeasurementColumns:
    """The measurements that ``predictor`` learns from. Raises ``BadInput`` when there are none.

    Other boards' count only where there is none of the board's own; throttled ones only where all are.
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
    """``predicted``, but nowhere below ``PREDICTION_FLOOR`` times the smallest value measured."""
    value: Floats = np.maximum(predicted, PREDICTION_FLOOR * measured.min())
    return value


def estimate_sd_log(residuals: Floats, parameters: int) -> float:
    """The standard deviation that residuals in log units suggest, given how many parameters were fitted to them."""
    beyond = max(len(residuals) - parameters, 0)
    total = PRIOR_ROWS * PRIOR_SD_LOG**2 + float(np.square(residuals).sum())
    return float(np.sqrt(total / (PRIOR_ROWS + beyond)))
