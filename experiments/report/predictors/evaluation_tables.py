"""Aggregates a predictor study's rows over their seeds: grouping, mean and worst value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.report.quantities import UNKNOWN
from fedge.studies.prediction_cells import PredictionRow

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table


EvaluationKey = tuple[str, str, int]
"""Display name of a target, method, number of profiled modes."""


@dataclass(frozen=True, slots=True)
class EvaluationColumn:
    """A column of a table.

    Attributes:
        heading: Column heading.
        field: Field of the rows.
        digits: Digits after the decimal point.
        worst: Selects the worst seed's value, or None to show only the mean.
    """

    heading: str
    field: str
    digits: int = 1
    worst: Callable[[Sequence[float]], float] | None = max
    factor: float = 1.0
    """Factor from the field's unit to the heading's."""

    def format_cell(self, rows: Sequence[PredictionRow]) -> str:
        """Format the mean and, in brackets, the worst value over the seeds; a dash if no seed has a value."""
        values = [self.factor * value for value in list_known_values(rows, self.field)]
        if not values:
            return UNKNOWN
        mean = self._figure(sum(values) / len(values))
        return mean if self.worst is None or len(values) == 1 else f"{mean} ({self._figure(self.worst(values))})"

    def _figure(self, value: float) -> str:
        return f"{value:,.{0 if abs(value) >= 100 else self.digits}f}"


def list_known_values(rows: Sequence[PredictionRow], field: str) -> list[float]:
    """Return the values of a field that are not None."""
    found = [getattr(row, field) for row in rows]
    return [float(value) for value in found if value is not None]


def group_seeds(rows: Sequence[PredictionRow]) -> dict[EvaluationKey, list[PredictionRow]]:
    """Group rows that differ only in the seed, in the order of the rows."""
    names = name_targets(rows)
    found: dict[EvaluationKey, list[PredictionRow]] = {}
    for row in rows:
        found.setdefault((names[row.target], row.method, row.modes), []).append(row)
    return found


def name_targets(rows: Sequence[PredictionRow]) -> dict[str, str]:
    """Return ``device/workload`` for each target's path, or the path where that name is ambiguous."""
    short = {row.target: f"{row.device}/{row.workload}" for row in rows}
    names = list(short.values())
    return {path: name if names.count(name) == 1 else path for path, name in short.items()}


ERROR_COLUMNS = (
    EvaluationColumn("time\nMAPE %", "time_mape"),
    EvaluationColumn("power\nMAPE %", "power_mape"),
    EvaluationColumn("in 90 %\nspread %", "coverage90", 0, min),
    EvaluationColumn("fit\ns", "fit_s", 1, None),
    EvaluationColumn("predict\nms", field="predict_s", digits=0, worst=None, factor=1e3),
    EvaluationColumn("profiling\ns", "profiling_s", 0, None),
)
CHOICE_COLUMNS = (
    EvaluationColumn("penalty\nmedian %", "penalty_median"),
    EvaluationColumn("penalty\nmean %", "penalty_mean"),
    EvaluationColumn("excess\nW", "excess_w", 2, None),
    EvaluationColumn("over\n%", "over_limit", 0, None),
    EvaluationColumn("over 1 W\n%", "over_limit_1w", 0),
    EvaluationColumn("verify\nmodes", "verify_modes", 2, None),
)


def build_evaluation_tables(rows: Sequence[PredictionRow]) -> Group:
    """Build tables per target with one line per method and number of modes: mean over the seeds, worst in brackets."""
    from rich.console import Group
    from rich.text import Text

    seeds = len({row.seed for row in rows})
    groups = group_seeds(rows)
    tables = [
        table
        for target in dict.fromkeys(target for target, _, _ in groups)
        for table in _target_tables(target, {key: group for key, group in groups.items() if key[0] == target})
    ]
    note = f"Mean of {seeds} seeds, in brackets the worst of them." if seeds > 1 else "One seed."
    ways = {f"{row.method}: profiles by {row.explorer}, chooses {row.choice}" for row in rows}
    return Group(*tables, Text("\n".join([note, *sorted(ways)]), style="dim"))


def _target_tables(target: str, groups: dict[tuple[str, str, int], list[PredictionRow]]) -> tuple[Table, Table]:
    problems = next((row.problems for group in groups.values() for row in group if row.problems is not None), 0)
    return (
        _evaluation_table(f"{target}: errors on modes not profiled", groups, ERROR_COLUMNS),
        _evaluation_table(f"{target}: fastest mode within {problems} power budgets", groups, CHOICE_COLUMNS),
    )


def _evaluation_table(
    title: str, groups: dict[tuple[str, str, int], list[PredictionRow]], columns: Sequence[EvaluationColumn]
) -> Table:
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
        table.add_row(name, str(count), *(column.format_cell(group) for column in columns))
    return table
