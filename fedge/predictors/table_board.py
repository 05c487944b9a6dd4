"""Profiling of a measured table as if it were a board: an explorer selects modes, which are looked up in the table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fedge.errors import BadInput
from fedge.predictors.explorers.budgeted_explorer import STEPS, compute_profiling_s
from fedge.protocols import Explorer
from fedge.types import Measurement, PowerMode, ProfileTable


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
