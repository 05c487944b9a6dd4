"""Aggregates a study's runs over their seeds: columns with mean and worst seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from experiments.report.quantities import UNKNOWN
from experiments.report.tables import Cell, number_cell
from fedge.studies.fleet import FleetRun

FigureRow = Mapping[str, str | int | float | None]
"""One run's values by field, as in JSON."""


@dataclass(frozen=True, slots=True)
class ChoiceColumn:
    """A column of a table.

    Attributes:
        worst: Selects the worst seed's value, or None to show only the mean.
        factor: Factor from the field's unit to the heading's.
        is_whole_number: Whether single values are whole numbers; the worst is then shown without decimals.
        total_field: Field with the total that the value is a part of ("3 of 20"); a dash is shown if it is zero.
    """

    heading: str
    field: str
    digits: int = 2
    worst: Callable[[Sequence[float]], float] | None = max
    factor: float = 1.0
    is_whole_number: bool = False
    total_field: str = ""

    def format_cell(self, rows: Sequence[FigureRow]) -> str:
        """Format the mean and, in brackets, the worst value over the seeds; a dash if no seed has a value."""
        values = [self.factor * float(value) for row in rows if (value := row.get(self.field)) is not None]
        if not values:
            return UNKNOWN
        digits = 0 if self.total_field and len(values) == 1 else self.digits
        mean = _format_figure(sum(values) / len(values), digits)
        if self.total_field:
            most = sum(float(row.get(self.total_field) or 0) for row in rows) / len(rows)
            return f"{mean} of {_format_figure(most, 0)}" if most else UNKNOWN
        if self.worst is None or len(values) == 1:
            return mean
        return f"{mean} ({_format_figure(self.worst(values), 0 if self.is_whole_number else self.digits)})"

    def make_cell(self, rows: Sequence[FigureRow]) -> Cell:
        """Return the formatted cell with the unrounded mean behind it."""
        shown = self.format_cell(rows)
        values = [self.factor * float(value) for row in rows if (value := row.get(self.field)) is not None]
        return number_cell(shown, None if shown == UNKNOWN else sum(values) / len(values))


def _format_figure(value: float, digits: int) -> str:
    """Format a value, with at most one decimal from 100 on to keep columns narrow."""
    return f"{value:,.{min(digits, 1) if abs(value) >= 100.0 else digits}f}"


MODE_CHOICE_COLUMNS = (
    ChoiceColumn("regret, %", "regret_pct"),
    ChoiceColumn("from 10 on, %", "regret_after10_pct"),
    ChoiceColumn("saved, %", "energy_saved_pct", 1, min),
    ChoiceColumn("missed", "deadlines_missed", 1, is_whole_number=True),
    ChoiceColumn("modes", "modes_explored", 1, is_whole_number=True),
)
FLEET_COLUMNS = (
    ChoiceColumn("round, s", "round_s", 1, None),
    ChoiceColumn("energy, kJ", field="energy_j", digits=2, worst=None, factor=1e-3),
    ChoiceColumn("gap, %", "objective_gap_pct"),
    ChoiceColumn("from 10 on, %", "objective_gap_pct_settled"),
    ChoiceColumn("missed", "deadlines_missed", 1, None, total_field="deadlines"),
    ChoiceColumn("modes", "modes_explored_mean", 1, None),
)
SAVING_COLUMNS = (
    ChoiceColumn("saved, %", "saving_pct", 1, min),
    ChoiceColumn("oracle saves, %", "oracle_saving_pct", 1, None),
    ChoiceColumn("share, %", "saving_share_pct", 1, min),
    ChoiceColumn("from 10 on, %", "saving_share_pct_settled", 1, min),
)
BASELINE_COLUMNS = (
    ChoiceColumn("round, s", "round_s", 1, None),
    ChoiceColumn("energy, kJ", field="energy_j", digits=2, worst=None, factor=1e-3),
)
BASELINE_NAMES = {
    "oracle_": "oracle: the same plan from true values",
    "oracle_all_rows_": "oracle with implausible modes",
    "maxn_": "MAXN",
    "maxn_low_": "MAXN, low idle",
    "preset_": "each board's best preset within the limit",
    "preset_but_maxn_": "each board's best preset except MAXN",
}
"""Display name of each baseline, by its prefix in the rows."""


def select_baseline(rows: Sequence[FigureRow], prefix: str) -> list[FigureRow]:
    """Return the round time and energy of a baseline as rows with the plain field names."""
    return [{name: row[prefix + name] for name in ("round_s", "energy_j")} for row in rows]


def describe_engine(runs: Sequence[FleetRun]) -> str:
    """Say how the rounds were played."""
    if runs[0].engine == "columns":
        return "Engine: columns. Boards of a kind share one posterior, with an offset per board."
    return "Engine: coordinator. Boards of a kind share measurements."


def describe_infeasible_limits(rows: Sequence[FigureRow]) -> list[str]:
    """Return a sentence per policy whose limits even the oracle cannot meet in some rounds."""
    sentences = []
    for (policy,), group in group_rows(rows, "policy").items():
        beyond, played = (sum(int(row.get(key) or 0) for row in group) for key in ("limits_out_of_reach", "rounds"))
        if beyond:
            rounds = f"{beyond} of {played} round{'s' * (played > 1)}"
            sentences.append(
                f"{policy}: in {rounds} even the oracle exceeds the limits, so gap and share are not reported."
            )
    return sentences


def group_rows(rows: Sequence[FigureRow], *keys: str) -> dict[tuple[object, ...], list[FigureRow]]:
    """Group rows by the values of ``keys``, in the order of first occurrence."""
    groups: dict[tuple[object, ...], list[FigureRow]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups
