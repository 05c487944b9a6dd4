"""Terminal tables of strategy results: per pair and problem family one table, with one line per strategy and seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from experiments.report.text_tables import fit_to_content, make_text_table
from fedge.studies.serving.strategy_scores import LATENCY_TOLERANCE, POWER_TOLERANCE_W, StrategyRow

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

FAMILY_TITLES = {"train": "training alone", "infer": "inference alone", "concurrent": "training and inference"}
EMPTY_CELL = "-"


def build_strategy_tables(rows: Sequence[StrategyRow]) -> Group:
    """Build one table of results per pair and problem family."""
    from rich.console import Group
    from rich.text import Text

    cases = dict.fromkeys((row.pair, row.family) for row in rows)
    tables = [_case_table([row for row in rows if (row.pair, row.family) == case]) for case in cases]
    note = (
        f"Percent, but for counts. Violations: of the answers, those over the power by more than "
        f"{POWER_TOLERANCE_W:g} W or over "
        f"the latency by more than {100 * LATENCY_TOLERANCE:g} %, or that cannot keep up. Modes: trials per "
        f"solvable problem."
    )
    return Group(*tables, Text(note, style="dim"))


def _case_table(rows: Sequence[StrategyRow]) -> Table:
    first = rows[0]
    problems = max(row.problems for row in rows)
    title = f"{first.pair}: {FAMILY_TITLES[first.family]}, {problems} problem{'' if problems == 1 else 's'}"
    if first.modes_left_out is not None:
        title += f", {first.modes_left_out} implausible modes left out"
    table = make_text_table(title)
    table.add_column("strategy", overflow="fold", min_width=8)
    columns = _select_columns(rows)
    for heading, _ in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        if row.error is not None:
            table.add_row(f"{row.strategy} (failed)", *(EMPTY_CELL for _ in columns))
        else:
            table.add_row(row.strategy, *(text(row) for _, text in columns))
    return fit_to_content(table)


StrategyColumn = tuple[str, Callable[[StrategyRow], str]]


def _select_columns(rows: Sequence[StrategyRow]) -> list[StrategyColumn]:
    """Return the columns that the family has; the seed only if there are several, the total only with reuse."""
    family = rows[0].family
    found: list[StrategyColumn] = [("seed", lambda row: str(row.seed))] if len({row.seed for row in rows}) > 1 else []
    found += [
        ("solved", lambda row: f"{row.solved}/{row.solvable}"),
        ("share\n%", lambda row: _format_number(row.solved_share)),
        ("viol.\n%", lambda row: _format_number(row.violations, 2)),
    ]
    if family != "infer":
        found += [
            ("loss\nmean", lambda row: _format_number(row.loss_mean)),
            ("median", lambda row: _format_number(row.loss_median)),
        ]
    if family != "train":
        found.append(("t_in\nover", lambda row: _format_number(row.excess_mean)))
    if family == "infer":
        found.append(("median", lambda row: _format_number(row.excess_median)))
    found += [
        ("modes\nmean", lambda row: _format_number(row.modes_mean)),
        ("max", lambda row: _format_number(row.modes_max, 0)),
    ]
    if any(row.reuse for row in rows):
        found.append(("total", lambda row: _format_number(row.modes_total, 0)))
    return [*found, ("s", lambda row: _format_number(row.seconds))]


def _format_number(value: float | None, digits: int = 1) -> str:
    return EMPTY_CELL if value is None else f"{value:.{digits}f}"
