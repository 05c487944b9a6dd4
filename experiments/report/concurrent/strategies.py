"""What strategies reached, for a terminal: per pair and family one table, one line per strategy and seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from experiments.report.concurrent.figures import figures, whole
from fedge.studies.concurrent.row import LATE, OVER_W, Row

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

TITLES = {"train": "training alone", "infer": "inference alone", "concurrent": "training and inference"}
NOTHING = "-"


def as_tables(rows: Sequence[Row]) -> Group:
    """Per pair and family what every strategy reached."""
    from rich.console import Group
    from rich.text import Text

    cases = dict.fromkeys((row.pair, row.family) for row in rows)
    tables = [_table([row for row in rows if (row.pair, row.family) == case]) for case in cases]
    note = (
        f"Percent, but for counts. Violations: of the answers, those over the power by more than {OVER_W:g} W or over "
        f"the latency by more than {100 * LATE:g} %, or that cannot keep up. Modes: trials per solvable problem."
    )
    return Group(*tables, Text(note, style="dim"))


def _table(rows: Sequence[Row]) -> Table:
    first = rows[0]
    problems = max(row.problems for row in rows)
    title = f"{first.pair}: {TITLES[first.family]}, {problems} problem{'' if problems == 1 else 's'}"
    if first.modes_left_out is not None:
        title += f", {first.modes_left_out} implausible modes left out"
    table = figures(title)
    table.add_column("strategy", overflow="fold", min_width=8)
    columns = _columns(rows)
    for heading, _ in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        if row.error is not None:
            table.add_row(f"{row.strategy} (failed)", *(NOTHING for _ in columns))
        else:
            table.add_row(row.strategy, *(text(row) for _, text in columns))
    return whole(table)


Column = tuple[str, Callable[[Row], str]]


def _columns(rows: Sequence[Row]) -> list[Column]:
    """Those that the family has; the seed only where there are several, the total only with reuse."""
    family = rows[0].family
    found: list[Column] = [("seed", lambda row: str(row.seed))] if len({row.seed for row in rows}) > 1 else []
    found += [
        ("solved", lambda row: f"{row.solved}/{row.solvable}"),
        ("share\n%", lambda row: _number(row.solved_share)),
        ("viol.\n%", lambda row: _number(row.violations, 2)),
    ]
    if family != "infer":
        found += [("loss\nmean", lambda row: _number(row.loss_mean)), ("median", lambda row: _number(row.loss_median))]
    if family != "train":
        found.append(("t_in\nover", lambda row: _number(row.excess_mean)))
    if family == "infer":
        found.append(("median", lambda row: _number(row.excess_median)))
    found += [
        ("modes\nmean", lambda row: _number(row.modes_mean)),
        ("max", lambda row: _number(row.modes_max, 0)),
    ]
    if any(row.reuse for row in rows):
        found.append(("total", lambda row: _number(row.modes_total, 0)))
    return [*found, ("s", lambda row: _number(row.seconds))]


def _number(value: float | None, digits: int = 1) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"
