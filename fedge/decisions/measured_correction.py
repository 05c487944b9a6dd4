"""What a board has measured of a mode itself corrects what is predicted of it: its own modes are known far better.

Symbols: x_i the log of repeat i of a mode, e_i its standard error from its own minibatches, r the spread of whole
measurements about their mode, v_i = r^2 + e_i^2. With the prediction p of spread s, the mode is expected at
(p / s^2 + sum x_i / v_i) / (1 / s^2 + sum 1 / v_i), and known up to the root of that denominator's inverse.
r^2 = (w r_0^2 + S) / (w + R), with r_0 what is expected beforehand, worth w repeats; S is what the squares of all
repeats about their medians hold beyond e_i^2, R their degrees of freedom.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedge.modes import find_mode_index
from fedge.types import Floats, Measurement, Modes, PowerMode, Predictions

RUN_TIME_SD = 0.005
RUN_POWER_SD = 0.008
"""r_0 of step time and power: what smooth measured tables leave (0.1 to 0.8 % in time, 0.3 to 1.2 % in power)."""
PRIOR_REPEATS = 3.0
"""How many repeats they are worth; chosen by us."""
OUTLIER_SD = 4.0
"""A single measurement so many spreads off its prediction does not count: something else may have run; chosen by us."""


@dataclass(frozen=True, slots=True, eq=False)
class _Repeats:
    """Logs and standard errors of one quantity by mode, and the spread r of whole measurements."""

    by_mode: Mapping[PowerMode, tuple[Floats, Floats]]
    spread: float

    @classmethod
    def from_values(cls, values: Iterable[tuple[PowerMode, float, float]], expected_sd: float) -> _Repeats:
        """From mode, value and standard error."""
        grouped: dict[PowerMode, list[tuple[float, float]]] = {}
        for mode, value, error in values:
            grouped.setdefault(mode, []).append((float(np.log(value)), error))
        by_mode = {mode: (np.array([x for x, _ in g]), np.array([e for _, e in g])) for mode, g in grouped.items()}
        squares = sum(_excess_squares(x, e, expected_sd) for x, e in by_mode.values())
        freedom = sum(len(x) - 1 for x, _ in by_mode.values())
        return cls(by_mode, float(np.sqrt((PRIOR_REPEATS * expected_sd**2 + squares) / (PRIOR_REPEATS + freedom))))


def _excess_squares(x: Floats, errors: Floats, expected_sd: float) -> float:
    """Squares about the median beyond what the standard errors explain; wild ones count no more than ``OUTLIER_SD``."""
    excess = np.square(x - np.median(x)) - np.square(errors)
    return float(np.clip(excess, 0.0, (OUTLIER_SD * expected_sd) ** 2).sum()) if len(x) > 1 else 0.0


def correct_with_measurements(predictions: Predictions, measurements: Sequence[Measurement]) -> Predictions:
    """``predictions`` with a board's own modes corrected by what it measured; throttled measurements do not count.

    A single measurement that lies far off its prediction is left out too, until it is seen again.
    """
    own = [m for m in measurements if m.board is None and not m.throttled]
    rows = find_rows(predictions.modes, {m.mode for m in own})
    own = [m for m in own if m.mode in rows]
    if not own:
        return predictions
    times = _Repeats.from_values(((m.mode, m.step_s, m.time_se_log) for m in own), RUN_TIME_SD)
    powers = _Repeats.from_values(((m.mode, m.power_w, m.power_se_log) for m in own), RUN_POWER_SD)
    step_s, step_sd = _correct_values(predictions.step_s, predictions.step_s_sd_log, times, rows)
    power_w, power_sd = _correct_values(predictions.power_w, predictions.power_w_sd_log, powers, rows)
    return Predictions(
        predictions.modes, step_s=step_s, power_w=power_w, step_s_sd_log=step_sd, power_w_sd_log=power_sd
    )


def find_rows(modes: Modes, wanted: Iterable[PowerMode]) -> dict[PowerMode, int]:
    """The rows of those of the wanted modes that are in the table."""
    return {mode: row for mode in wanted if (row := find_mode_index(modes, mode)) is not None}


def _correct_values(
    values: Floats, sd_log: Floats, seen: _Repeats, rows: Mapping[PowerMode, int]
) -> tuple[Floats, Floats]:
    new, new_sd = values.copy(), sd_log.copy()
    for mode, (x, errors) in seen.by_mode.items():
        row = rows[mode]
        expected, sd = float(np.log(values[row])), max(float(sd_log[row]), 1e-6)
        variances = seen.spread**2 + np.square(errors)
        if len(x) == 1 and abs(x[0] - expected) > OUTLIER_SD * np.sqrt(sd**2 + variances[0]):
            continue
        kept = np.abs(x - np.median(x)) <= OUTLIER_SD * np.sqrt(variances)
        precision = 1.0 / sd**2 + (1.0 / variances)[kept].sum()
        new[row] = np.exp((expected / sd**2 + (x / variances)[kept].sum()) / precision)
        new_sd[row] = 1.0 / np.sqrt(precision)
    return new, new_sd
