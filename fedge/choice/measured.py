"""What a board has measured itself takes the place of what is predicted: its own modes are known far better.

Symbols: m_k the median log of mode k's n_k repeats, r the spread of one measurement about its mode, S and R the sum of
squares and the degrees of freedom of all repeats about their medians. r^2 = (w r_0^2 + S) / (w + R), with r_0 what is
expected beforehand, worth w repeats. Mode k is then known up to r / sqrt(n_k).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedge.physics.fit import NOISE_POWER_SD, NOISE_TIME_SD
from fedge.types import Floats, Measurement, Modes, PowerMode, Predictions

WORTH = 3.0
"""How many repeats the expected spread of a measurement is worth; chosen by us."""
WILD_SD = 4.0
"""A single measurement so many spreads off its prediction does not count: something else may have run; chosen by us."""
SAME_CLOCK_MHZ = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class _Repeats:
    """Logs of one quantity, by mode."""

    by_mode: Mapping[PowerMode, Floats]
    spread: float

    @classmethod
    def of(cls, values: Iterable[tuple[PowerMode, float]], expected_sd: float) -> _Repeats:
        grouped: dict[PowerMode, list[float]] = {}
        for mode, value in values:
            grouped.setdefault(mode, []).append(float(np.log(value)))
        by_mode = {mode: np.array(logs) for mode, logs in grouped.items()}
        squares = sum(
            float(np.square(logs - np.median(logs)).clip(max=(5 * expected_sd) ** 2).sum()) for logs in by_mode.values()
        )
        freedom = sum(len(logs) - 1 for logs in by_mode.values())
        return cls(by_mode, float(np.sqrt((WORTH * expected_sd**2 + squares) / (WORTH + freedom))))


def with_measured(predictions: Predictions, measurements: Sequence[Measurement]) -> Predictions:
    """``predictions`` with a board's own modes as it measured them; throttled measurements do not count.

    A single measurement that lies far off its prediction is left out too, until it is seen again.
    """
    own = [m for m in measurements if m.board is None and not m.throttled]
    rows = rows_of(predictions.modes, {m.mode for m in own})
    own = [m for m in own if m.mode in rows]
    if not own:
        return predictions
    times = _Repeats.of(((m.mode, m.step_s) for m in own), NOISE_TIME_SD)
    powers = _Repeats.of(((m.mode, m.power_w) for m in own), NOISE_POWER_SD)
    step_s, step_sd = _replaced(predictions.step_s, predictions.step_s_sd_log, times, rows)
    power_w, power_sd = _replaced(predictions.power_w, predictions.power_w_sd_log, powers, rows)
    return Predictions(predictions.modes, step_s, power_w, step_sd, power_sd)


def rows_of(modes: Modes, wanted: Iterable[PowerMode]) -> dict[PowerMode, int]:
    """The rows of those of the wanted modes that are in the table."""
    found: dict[PowerMode, int] = {}
    for mode in wanted:
        knobs = np.array([mode.cores, mode.cpu_mhz, mode.gpu_mhz, mode.mem_mhz])
        same = np.flatnonzero((np.abs(modes.knobs - knobs) < SAME_CLOCK_MHZ).all(axis=1))
        if len(same):
            found[mode] = int(same[0])
    return found


def _replaced(values: Floats, sd_log: Floats, seen: _Repeats, rows: Mapping[PowerMode, int]) -> tuple[Floats, Floats]:
    new, new_sd = values.copy(), sd_log.copy()
    for mode, logs in seen.by_mode.items():
        row, middle = rows[mode], float(np.median(logs))
        if len(logs) == 1 and abs(middle - np.log(values[row])) > WILD_SD * max(sd_log[row], seen.spread):
            continue
        new[row], new_sd[row] = np.exp(middle), seen.spread / np.sqrt(len(logs))
    return new, new_sd
