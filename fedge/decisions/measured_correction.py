"""Correct a board's predictions with its own measurements of the same modes.

Symbols: x_i the log of repeat i of a mode, e_i its standard error from its own steps, r the standard deviation of whole
measurements about their mode, v_i = r^2 + e_i^2. With the prediction p of standard deviation s (log), the corrected
value is the precision-weighted mean (p / s^2 + sum x_i / v_i) / (1 / s^2 + sum 1 / v_i), and its standard deviation is
the root of that denominator's inverse. r^2 = (w r_0^2 + S) / (w + R), with r_0 the prior value of r, worth w repeats; S
is the excess of the squares of all repeats about their medians over e_i^2, R their degrees of freedom.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedge.modes import find_mode_index
from fedge.types import Floats, Measurement, Modes, PowerMode, Predictions

RUN_TIME_SD = 0.005
RUN_POWER_SD = 0.008
"""r_0 of step time and power: what smooth measured tables leave (0.1 to 0.8 % in time, 0.3 to 1.2 % in power)."""
PRIOR_REPEATS = 3.0
"""Default weight w of r_0, in repeats: a larger value makes a board's own scatter count later."""
OUTLIER_SD = 4.0
"""Default limit for outliers, in standard deviations: a single measurement farther from its prediction is ignored.

A lower limit rejects more measurements that other load disturbed, but also delays real corrections.
"""
MIN_SD_LOG = 1e-6
"""Least standard deviation of a prediction that is assumed, so that a weight stays finite."""


@dataclass(frozen=True, slots=True, eq=False)
class _Repeats:
    """Logs and standard errors of one quantity by mode, and the standard deviation r of whole measurements."""

    by_mode: Mapping[PowerMode, tuple[list[float], list[float]]]
    spread: float

    @classmethod
    def from_values(
        cls, modes: Iterable[PowerMode], values: Sequence[float], errors: Sequence[float], expected_sd: float
    ) -> _Repeats:
        """Group values and their standard errors by mode and estimate r from the repeats."""
        by_mode: dict[PowerMode, tuple[list[float], list[float]]] = {}
        for mode, log, error in zip(modes, np.log(values).tolist(), errors, strict=True):
            logs, log_errors = by_mode.setdefault(mode, ([], []))
            logs.append(log)
            log_errors.append(error)
        squares = sum(_excess_squares(x, e, expected_sd) for x, e in by_mode.values() if len(x) > 1)
        freedom = len(values) - len(by_mode)
        return cls(by_mode, math.sqrt((PRIOR_REPEATS * expected_sd**2 + squares) / (PRIOR_REPEATS + freedom)))

    def doubts(self, mode: PowerMode, expected: float, sd_log: float) -> bool:
        """Return whether the mode has a single measurement, beyond ``OUTLIER_SD`` of its prediction.

        A predictor of the user's may predict 0, which no measurement is near.
        """
        x, errors = self.by_mode[mode]
        spread = math.sqrt(max(sd_log, MIN_SD_LOG) ** 2 + self.spread**2 + errors[0] ** 2)
        expected_log = math.log(expected) if expected > 0.0 else -math.inf
        return len(x) == 1 and abs(x[0] - expected_log) > OUTLIER_SD * spread


def _excess_squares(x: Sequence[float], errors: Sequence[float], expected_sd: float) -> float:
    """Return the sum of squares about the median beyond the standard errors; outliers count as ``OUTLIER_SD``."""
    middle, most = statistics.median(x), (OUTLIER_SD * expected_sd) ** 2
    return sum(min(max((log - middle) ** 2 - error**2, 0.0), most) for log, error in zip(x, errors, strict=True))


def correct_with_measurements(predictions: Predictions, measurements: Sequence[Measurement]) -> Predictions:
    """Return the predictions with the modes that the board itself measured corrected.

    Args:
        predictions: Step times, powers and their standard deviations (log), one row per mode.
        measurements: Only the board's own ones count (``board`` is None) that were not throttled. A single measurement
            beyond ``OUTLIER_SD`` of its prediction is ignored until the mode is measured again.

    Returns:
        New predictions, or the same object if no measurement applies.
    """
    rows, times, powers = _group_own(predictions.modes, measurements)
    if not rows:
        return predictions
    step_s, step_sd = _correct_values(predictions.step_s, predictions.step_s_sd_log, times, rows)
    power_w, power_sd = _correct_values(predictions.power_w, predictions.power_w_sd_log, powers, rows)
    return Predictions(
        predictions.modes, step_s=step_s, power_w=power_w, step_s_sd_log=step_sd, power_w_sd_log=power_sd
    )


def correct_relative_to_row(predictions: Predictions, measurements: Sequence[Measurement], row: int) -> Predictions:
    """Return the predictions with measured modes corrected relative to the measurement of the mode in ``row``.

    That mode keeps its prediction. So measured modes compare with it by measurements alone, and predicted ones by
    predictions alone: what those have in common with its own, such as a wrong prior of all times, cancels. Without a
    measurement of that mode nothing is corrected.
    """
    corrected = correct_with_measurements(predictions, measurements)
    step_s, step_sd = _keep_ratio(
        predictions.step_s, predictions.step_s_sd_log, corrected.step_s, corrected.step_s_sd_log, row=row
    )
    power_w, power_sd = _keep_ratio(
        predictions.power_w, predictions.power_w_sd_log, corrected.power_w, corrected.power_w_sd_log, row=row
    )
    return replace(corrected, step_s=step_s, step_s_sd_log=step_sd, power_w=power_w, power_w_sd_log=power_sd)


def _keep_ratio(
    predicted: Floats, predicted_sd: Floats, corrected: Floats, corrected_sd: Floats, *, row: int
) -> tuple[Floats, Floats]:
    """Return one quantity and its spreads, corrected so that the value in ``row`` stays what was predicted."""
    measured = corrected_sd != predicted_sd
    if not measured[row]:
        return predicted, predicted_sd
    return np.where(measured, corrected * predicted[row] / corrected[row], predicted), corrected_sd


def find_doubted_measurements(predictions: Predictions, measurements: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """Return the single measurements that ``correct_with_measurements`` ignores until their modes are measured again.

    A measurement whose repeat was throttled is left out: the repeat settles nothing, and the next would end alike. The
    arguments are those of ``correct_with_measurements``; a repeat comes after what it repeats.
    """
    rows, times, powers = _group_own(predictions.modes, measurements)
    doubted = {
        mode
        for mode, row in rows.items()
        if times.doubts(mode, float(predictions.step_s[row]), float(predictions.step_s_sd_log[row]))
        or powers.doubts(mode, float(predictions.power_w[row]), float(predictions.power_w_sd_log[row]))
    }
    latest = {m.mode: m for m in measurements if m.mode in doubted and m.board is None}
    return tuple(m for m in latest.values() if not m.throttled)


def _group_own(modes: Modes, measurements: Sequence[Measurement]) -> tuple[dict[PowerMode, int], _Repeats, _Repeats]:
    """Return the rows of the modes that the board itself measured, and the repeats of time and power by mode."""
    own = [m for m in measurements if m.board is None and not m.throttled]
    rows = find_rows(modes, {m.mode for m in own})
    own = [m for m in own if m.mode in rows]
    measured = [m.mode for m in own]
    times = _Repeats.from_values(measured, [m.step_s for m in own], [m.time_se_log for m in own], RUN_TIME_SD)
    powers = _Repeats.from_values(measured, [m.power_w for m in own], [m.power_se_log for m in own], RUN_POWER_SD)
    return rows, times, powers


def find_rows(modes: Modes, wanted: Iterable[PowerMode]) -> dict[PowerMode, int]:
    """Return the row of each wanted mode that is in the table."""
    return {mode: row for mode in wanted if (row := find_mode_index(modes, mode)) is not None}


def _correct_values(
    values: Floats, sd_log: Floats, seen: _Repeats, rows: Mapping[PowerMode, int]
) -> tuple[Floats, Floats]:
    new, new_sd = values.copy(), sd_log.copy()
    for mode, (x, errors) in seen.by_mode.items():
        row = rows[mode]
        if seen.doubts(mode, float(values[row]), float(sd_log[row])):
            continue
        expected, sd, middle = float(np.log(values[row])), max(float(sd_log[row]), MIN_SD_LOG), statistics.median(x)
        precision = 1.0 / sd**2
        weighted = expected * precision
        for log, error in zip(x, errors, strict=True):
            variance = seen.spread**2 + error**2
            if abs(log - middle) <= OUTLIER_SD * math.sqrt(variance):
                precision += 1.0 / variance
                weighted += log / variance
        new[row], new_sd[row] = np.exp(weighted / precision), 1.0 / math.sqrt(precision)
    return new, new_sd
