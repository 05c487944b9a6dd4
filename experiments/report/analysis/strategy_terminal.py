"""Terminal tables of strategy results: per pair and problem family one table, with one line per strategy and seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.report.quantities import UNKNOWN
from experiments.report.tables import Cell, Table, number_cell, print_lines, text_cell, value_cell
from fedge.studies.serving.strategy_study import LATENCY_TOLERANCE, POWER_TOLERANCE_W, StrategyRow

if TYPE_CHECKING:
    from rich.console import Console

FAMILY_TITLES = {"train": "training alone", "infer": "inference alone", "concurrent": "training and inference"}


@dataclass(frozen=True, slots=True)
class StrategyColumn:
    """A column of figures.

    Attributes:
        value: Reads the figure from a row; None if the row has none.
    """

    heading: str
    value: Callable[[StrategyRow], float | None]
    digits: int = 1

    def make_cell(self, row: StrategyRow) -> Cell:
        """Return the row's cell; a dash for a failed strategy and for an unknown figure."""
        value = None if row.error is not None else self.value(row)
        return value_cell(value, f".{self.digits}f")


def print_strategies(console: Console, rows: Sequence[StrategyRow]) -> None:
    """Print one table of results per pair and problem family, and what the columns mean."""
    for table in build_strategy_tables(rows):
        table.print(console)
    note = (
        f"Percent, except counts. Violations: choices that exceed the power by more than {POWER_TOLERANCE_W:g} W or "
        f"the latency by more than {100 * LATENCY_TOLERANCE:g} %, or cannot keep up. Excess: inference time over the "
        f"optimum's. Modes: trials per feasible problem."
    )
    print_lines(console, [note])


def build_strategy_tables(rows: Sequence[StrategyRow]) -> list[Table]:
    """Build one table of results per pair and problem family."""
    cases = dict.fromkeys((row.pair, row.family) for row in rows)
    return [_case_table([row for row in rows if (row.pair, row.family) == case]) for case in cases]


def _case_table(rows: Sequence[StrategyRow]) -> Table:
    first = rows[0]
    problems = max(row.problems for row in rows)
    title = f"{first.pair}: {FAMILY_TITLES[first.family]}, {problems} problem{'' if problems == 1 else 's'}"
    if first.modes_left_out is not None:
        title += f", {first.modes_left_out} implausible modes excluded"
    columns = _select_columns(rows)
    seeded = len({row.seed for row in rows}) > 1
    heads = ("strategy", *(("seed",) if seeded else ()), "solved", *(column.heading for column in columns))
    lines = tuple(
        (
            text_cell(row.strategy if row.error is None else f"{row.strategy} (failed)"),
            *((value_cell(row.seed),) if seeded else ()),
            number_cell(UNKNOWN if row.error is not None else f"{row.solved}/{row.solvable}"),
            *(column.make_cell(row) for column in columns),
        )
        for row in rows
    )
    return Table(f"{first.pair}-{first.family}", heads, lines, title)


def _select_columns(rows: Sequence[StrategyRow]) -> list[StrategyColumn]:
    """Return the columns that the family has; the total only with reuse."""
    family = rows[0].family
    found = [
        StrategyColumn("share, %", lambda row: row.solved_share),
        StrategyColumn("violations, %", lambda row: row.violations, 2),
    ]
    if family != "infer":
        found.append(StrategyColumn("loss, mean", lambda row: row.loss_mean))
        found.append(StrategyColumn("loss, median", lambda row: row.loss_median))
    if family != "train":
        found.append(StrategyColumn("excess, mean", lambda row: row.excess_mean))
    if family == "infer":
        found.append(StrategyColumn("excess, median", lambda row: row.excess_median))
    found.append(StrategyColumn("modes, mean", lambda row: row.modes_mean))
    found.append(StrategyColumn("modes, max", lambda row: row.modes_max, 0))
    if any(row.reuse for row in rows):
        found.append(StrategyColumn("modes, total", lambda row: row.modes_total, 0))
    return [*found, StrategyColumn("s", lambda row: row.seconds)]
