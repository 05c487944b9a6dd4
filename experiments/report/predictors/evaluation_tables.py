"""Aggregates a predictor study's rows over their seeds: grouping, mean and worst value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.report.palette import assign_colours
from experiments.report.quantities import UNKNOWN
from experiments.report.tables import Cell, Table, number_cell, swatch_cell
from fedge.studies.prediction_cells import PredictionRow

if TYPE_CHECKING:
    from rich.console import Console

EvaluationKey = tuple[str, str, int]
"""Display name of a target, method, number of profiled modes."""
EvaluationGroups = Mapping[EvaluationKey, Sequence[PredictionRow]]
"""Rows that differ only in the seed, by what they have in common."""


@dataclass(frozen=True, slots=True)
class EvaluationColumn:
    """A column of a table.

    Attributes:
        worst: Selects the worst seed's value, or None to show only the mean.
        factor: Factor from the field's unit to the heading's.
    """

    heading: str
    field: str
    digits: int = 1
    worst: Callable[[Sequence[float]], float] | None = max
    factor: float = 1.0

    def format_cell(self, rows: Sequence[PredictionRow]) -> str:
        """Format the mean and, in brackets, the worst value over the seeds; a dash if no seed has a value."""
        values = [self.factor * value for value in list_known_values(rows, self.field)]
        if not values:
            return UNKNOWN
        mean = self._figure(sum(values) / len(values))
        return mean if self.worst is None or len(values) == 1 else f"{mean} ({self._figure(self.worst(values))})"

    def make_cell(self, rows: Sequence[PredictionRow]) -> Cell:
        """Return the formatted cell with the unrounded mean behind it."""
        values = [self.factor * value for value in list_known_values(rows, self.field)]
        return number_cell(self.format_cell(rows), sum(values) / len(values) if values else None)

    def _figure(self, value: float) -> str:
        return f"{value:,.{0 if abs(value) >= 100 else self.digits}f}"


def list_known_values(rows: Sequence[PredictionRow], field: str) -> list[float]:
    """Return the values of a field that are not None."""
    values = [getattr(row, field) for row in rows]
    return [float(value) for value in values if value is not None]


def group_seeds(rows: Sequence[PredictionRow]) -> dict[EvaluationKey, list[PredictionRow]]:
    """Group rows that differ only in the seed, in the order of the rows."""
    names = name_targets(rows)
    groups: dict[EvaluationKey, list[PredictionRow]] = {}
    for row in rows:
        groups.setdefault((names[row.target], row.method, row.modes), []).append(row)
    return groups


def name_targets(rows: Sequence[PredictionRow]) -> dict[str, str]:
    """Return ``device/workload`` for each target's path, or the path where that name is ambiguous."""
    short = {row.target: f"{row.device}/{row.workload}" for row in rows}
    names = list(short.values())
    return {path: name if names.count(name) == 1 else path for path, name in short.items()}


ERROR_COLUMNS = (
    EvaluationColumn("time, %", "time_mape"),
    EvaluationColumn("power, %", "power_mape"),
    EvaluationColumn("in 90 %, %", "coverage90", 0, min),
    EvaluationColumn("fit, s", "fit_s", 1, None),
    EvaluationColumn("predict, ms", field="predict_s", digits=0, worst=None, factor=1e3),
    EvaluationColumn("profile, s", "profiling_s", 0, None),
)
CHOICE_COLUMNS = (
    EvaluationColumn("penalty median, %", "penalty_median"),
    EvaluationColumn("mean, %", "penalty_mean"),
    EvaluationColumn("excess, W", "excess_w", 2, None),
    EvaluationColumn("over, %", "over_limit", 0, None),
    EvaluationColumn("by > 1 W, %", "over_limit_1w", 0),
    EvaluationColumn("verified modes", "verify_modes", 2, None),
)


def print_evaluation(console: Console, rows: Sequence[PredictionRow]) -> None:
    """Print two tables per target: mean over the seeds, worst in brackets, and how each method works."""
    for table in build_evaluation_tables(rows):
        table.print(console)
    seeds = len({row.seed for row in rows})
    note = f"Mean of {seeds} seeds, the worst seed in brackets." if seeds > 1 else "One seed."
    ways = {f"{row.method}: profiles by {row.explorer}, chooses {row.choice}" for row in rows}
    for line in (note, "time, power: MAPE; in 90 %: share inside the 90 % interval.", *sorted(ways)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def build_evaluation_tables(rows: Sequence[PredictionRow]) -> list[Table]:
    """Build tables per target with one line per method and number of modes."""
    groups = group_seeds(rows)
    return [
        table
        for target in dict.fromkeys(target for target, _, _ in groups)
        for table in _target_tables(target, {key: group for key, group in groups.items() if key[0] == target})
    ]


def _target_tables(target: str, groups: EvaluationGroups) -> tuple[Table, Table]:
    problems = next((row.problems for group in groups.values() for row in group if row.problems is not None), 0)
    errors, choices = (
        f"{target}: errors on modes not profiled",
        f"{target}: fastest mode within {problems} power budgets",
    )
    return (
        evaluation_table("errors", groups, ERROR_COLUMNS, errors),
        evaluation_table("choices", groups, CHOICE_COLUMNS, choices),
    )


def evaluation_table(key: str, groups: EvaluationGroups, columns: Sequence[EvaluationColumn], title: str = "") -> Table:
    """Build a table of one target with one line per method and number of modes."""
    colour = assign_colours(tuple(dict.fromkeys(method for _, method, _ in groups)))
    rows: list[tuple[Cell, ...]] = []
    for (_, method, count), group in groups.items():
        failed = sum(row.error is not None for row in group)
        name = f"{method} ({failed} failed)" if failed else method
        cells = (column.make_cell(group) for column in columns)
        rows.append((swatch_cell(colour[method], name), number_cell(str(count), count), *cells))
    return Table(key, ("method", "modes", *(column.heading for column in columns)), tuple(rows), title)
