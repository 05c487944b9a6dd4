"""A study's figures for a terminal: per target one table of errors and one of choices, each within 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.report.study.summary import Column, grouped
from fedge.evaluation.cells import Row

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

ERRORS = (
    Column("time\nMAPE %", "time_mape"),
    Column("power\nMAPE %", "power_mape"),
    Column("in 90 %\nspread %", "coverage90", 0, min),
    Column("fit\ns", "fit_s", 1, None),
    Column("predict\nms", "predict_s", 0, None, 1e3),
    Column("profiling\ns", "profiling_s", 0, None),
)
CHOICES = (
    Column("penalty\nmedian %", "penalty_median"),
    Column("penalty\nmean %", "penalty_mean"),
    Column("excess\nW", "excess_w", 2, None),
    Column("over\n%", "over_limit", 0, None),
    Column("over 1 W\n%", "over_limit_1w", 0),
    Column("verify\nmodes", "verify_modes", 2, None),
)


def as_tables(rows: Sequence[Row]) -> Group:
    """Per target, method and number of modes the mean over the seeds, and the worst seed in brackets."""
    from rich.console import Group
    from rich.text import Text

    seeds = len({row.seed for row in rows})
    groups = grouped(rows)
    tables = [
        table
        for target in dict.fromkeys(target for target, _, _ in groups)
        for table in _tables(target, {key: group for key, group in groups.items() if key[0] == target})
    ]
    note = f"Mean of {seeds} seeds, in brackets the worst of them." if seeds > 1 else "One seed."
    ways = {f"{row.method}: profiles by {row.explorer}, chooses {row.choice}" for row in rows}
    return Group(*tables, Text("\n".join([note, *sorted(ways)]), style="dim"))


def _tables(target: str, groups: dict[tuple[str, str, int], list[Row]]) -> tuple[Table, Table]:
    problems = next((row.problems for group in groups.values() for row in group if row.problems is not None), 0)
    return (
        _table(f"{target}: errors on modes not profiled", groups, ERRORS),
        _table(f"{target}: fastest mode within {problems} power budgets", groups, CHOICES),
    )


def _table(title: str, groups: dict[tuple[str, str, int], list[Row]], columns: Sequence[Column]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("method", overflow="fold", min_width=10)
    table.add_column("modes", justify="right", no_wrap=True)
    for column in columns:
        table.add_column(column.heading, justify="right", no_wrap=True)
    for (_, method, count), group in groups.items():
        failed = sum(row.error is not None for row in group)
        name = f"{method} ({failed} failed)" if failed else method
        table.add_row(name, str(count), *(column.text(group) for column in columns))
    return table
