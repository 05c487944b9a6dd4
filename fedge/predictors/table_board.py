"""Profiles a measured table as one would a board: asks an explorer what to measure, and reads it from the table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fedge.errors import BadInput
from fedge.predictors.explorers.budgeted_explorer import STEPS, compute_profiling_s
from fedge.protocols import Explorer
from fedge.types import Measurement, PowerMode, ProfileTable


class TableBoard:
    """A measured table that answers like a board: a mode in, what the table has of it out."""

    def __init__(self, table: ProfileTable) -> None:
        self.table = table
        self._rows = {mode: row for row, mode in enumerate(table.modes)}

    def find_row(self, mode: PowerMode) -> int:
        """The mode's row; raises ``BadInput`` for a mode that the table does not have."""
        if mode not in self._rows:
            raise BadInput("explorer", f"the mode {mode}", f"one of the {len(self._rows)} candidates that it was given")
        return self._rows[mode]

    def measure(self, mode: PowerMode) -> Measurement:
        """``STEPS`` minibatches in ``mode``."""
        row = self.find_row(mode)
        return Measurement(mode, STEPS, float(self.table.step_s[row]), float(self.table.power_w[row]))

    def measure_rows(self, rows: Iterable[int]) -> list[Measurement]:
        """One measurement per row."""
        return [self.measure(self.table.modes[row]) for row in rows]


def profile_table(explorer: Explorer, board: TableBoard, count: int) -> tuple[int, ...]:
    """Up to ``count`` rows in the order in which they were asked for.

    All are asked for at once; only an explorer that gives fewer is told of them and asked for the rest.
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
    """Seconds that profiling these rows takes on the board, together."""
    return float(compute_profiling_s(table.step_s[np.asarray(rows, dtype=np.intp)]).sum())
