"""A measured table as a board: its profiling, where an explorer selects modes, and predictions' errors against it.

Symbols: y measured, m predicted, s the prediction's spread in log units. APE = |m - y| / y; the 90 % interval is
m exp(-1.645 s) ... m exp(1.645 s).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.errors import BadInput, FedgeError
from fedge.predictors.explorers.budgeted_explorer import STEPS, compute_profiling_s
from fedge.protocols import Explorer
from fedge.types import Floats, Measurement, PowerMode, Predictions, ProfileTable


class TableBoard:
    """A measured table with the interface of a board: it returns the table's measurement of a mode."""

    def __init__(self, table: ProfileTable) -> None:
        self.table = table
        self._rows = {mode: row for row, mode in enumerate(table.modes)}

    def find_row(self, mode: PowerMode) -> int:
        """Return the row of a mode.

        Raises:
            BadInput: The table does not have the mode.
        """
        if mode not in self._rows:
            raise BadInput("explorer", f"the mode {mode}", f"one of the {len(self._rows)} candidates that it was given")
        return self._rows[mode]

    def measure(self, mode: PowerMode) -> Measurement:
        """Return a measurement of ``STEPS`` steps in ``mode``.

        Raises:
            BadInput: The table does not have the mode.
        """
        row = self.find_row(mode)
        return Measurement(mode, STEPS, float(self.table.step_s[row]), float(self.table.power_w[row]))

    def measure_rows(self, rows: Iterable[int]) -> list[Measurement]:
        """Return one measurement per row."""
        return [self.measure(self.table.modes[row]) for row in rows]


def profile_table(explorer: Explorer, board: TableBoard, count: int) -> tuple[int, ...]:
    """Return the indices of profiled rows, in the explorer's order.

    All modes are requested at once; only if the explorer returns fewer are the measurements passed to it and more
    requested.

    Args:
        explorer: Selects the modes.
        board: The table to measure.
        count: Largest number of rows.

    Raises:
        BadInput: The explorer selects a mode that the table does not have.
    """
    rows: list[int] = []
    while len(rows) < count:
        asked = [board.find_row(mode) for mode in explorer.ask(count - len(rows))]
        fresh = [row for row in dict.fromkeys(asked) if row not in rows][: count - len(rows)]
        if not fresh:
            break
        rows += fresh
        explorer.tell(board.measure_rows(fresh))
    return tuple(rows)


def profiling_time_s(table: ProfileTable, rows: Sequence[int]) -> float:
    """Return the total time to profile rows on the board, in seconds.

    Args:
        table: The measured table.
        rows: Indices of the profiled rows.
    """
    return float(compute_profiling_s(table.step_s[np.asarray(rows, dtype=np.intp)]).sum())


Z_90 = 1.645
"""Two-sided 90 % quantile of the normal distribution, in standard deviations."""


@dataclass(frozen=True, slots=True)
class PredictionAccuracy:
    """Accuracy in percent over the rows that were not profiled; None if there is no such row.

    Attributes:
        time_mape: Mean absolute relative error of time.
        power_mape: Mean absolute relative error of power.
        coverage90: Share of times and powers inside their 90 % intervals.
        coverage90_time: The same for time alone.
        coverage90_power: The same for power alone.
        time_mape_plausible: Mean absolute relative error of time over plausible rows.
        power_mape_plausible: Mean absolute relative error of power over plausible rows.
    """

    time_mape: float | None
    power_mape: float | None
    coverage90: float | None
    coverage90_time: float | None
    coverage90_power: float | None
    time_mape_plausible: float | None
    power_mape_plausible: float | None


def check_predictions(predictions: Predictions, rows: int) -> None:
    """Check that predictions are usable.

    Args:
        predictions: The predictions.
        rows: Expected number of predictions.

    Raises:
        FedgeError: There is not one prediction per row, a value is not finite or not above 0, or a spread is below 0.
    """
    means = np.stack([predictions.step_s, predictions.power_w])
    spreads = np.stack([predictions.step_s_sd_log, predictions.power_w_sd_log])
    if means.shape != (2, rows):
        raise FedgeError(f"predictions of shape {means.shape[1:]} for {rows} modes")
    wrong = ~(np.isfinite(means) & np.isfinite(spreads) & (means > 0) & (spreads >= 0))
    if wrong.any():
        count = int(wrong.any(axis=0).sum())
        raise FedgeError(f"{count} of {rows} predictions are not finite, not above 0, or have a spread below 0")


def score_predictions(
    predictions: Predictions, table: ProfileTable, profiled: tuple[int, ...], plausible: NDArray[np.bool_]
) -> PredictionAccuracy:
    """Score predictions on the rows of a table that were not profiled.

    Args:
        predictions: Predictions of all rows, in the table's order.
        table: The measured table, n rows.
        profiled: Indices of the rows to leave out.
        plausible: Which rows are plausible measurements, shape (n,).
    """
    rows = np.ones(len(table.modes), dtype=np.bool_)
    rows[list(profiled)] = False
    time_off = np.log(predictions.step_s / table.step_s)
    power_off = np.log(predictions.power_w / table.power_w)
    time_held = np.abs(time_off) <= Z_90 * predictions.step_s_sd_log
    power_held = np.abs(power_off) <= Z_90 * predictions.power_w_sd_log
    return PredictionAccuracy(
        time_mape=_percent(np.abs(np.expm1(time_off)), rows),
        power_mape=_percent(np.abs(np.expm1(power_off)), rows),
        coverage90=_percent((time_held.astype(np.float64) + power_held) / 2.0, rows),
        coverage90_time=_percent(time_held, rows),
        coverage90_power=_percent(power_held, rows),
        time_mape_plausible=_percent(np.abs(np.expm1(time_off)), rows & plausible),
        power_mape_plausible=_percent(np.abs(np.expm1(power_off)), rows & plausible),
    )


def _percent(values: Floats | NDArray[np.bool_], rows: NDArray[np.bool_]) -> float | None:
    return 100.0 * float(values[rows].mean()) if rows.any() else None
