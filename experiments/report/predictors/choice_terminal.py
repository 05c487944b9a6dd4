"""A study's runs over their seeds: columns with mean and worst seed, and their terminal tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.report.palette import assign_colours
from experiments.report.quantities import UNKNOWN
from experiments.report.tables import Cell, Table, number_cell, print_lines, swatch_cell, text_cell
from fedge.studies.fleet.round_comparison import FleetRun
from fedge.studies.mode_choice_study import ModeChoiceResult
from fedge.types import ProfileTable

if TYPE_CHECKING:
    from rich.console import Console


FigureRow = Mapping[str, str | int | float | None]
"""One run's values by field, as in JSON."""


@dataclass(frozen=True, slots=True)
class ChoiceColumn:
    """A column of a table; rows are records or mappings.

    Attributes:
        worst: Selects the worst seed's value, or None to show only the mean.
        factor: Factor from the field's unit to the heading's.
        is_whole_number: Whether single values are whole numbers; the worst is then shown without decimals.
        total_field: Field with the total that the value is a part of ("3 of 20"); a dash is shown if it is zero.
        large_digits: Most decimals of values from 100 on, which keeps columns narrow.
    """

    heading: str
    field: str
    digits: int = 2
    worst: Callable[[Sequence[float]], float] | None = max
    factor: float = 1.0
    is_whole_number: bool = False
    total_field: str = ""
    large_digits: int = 1

    def format_cell(self, rows: Sequence[object]) -> str:
        """Format the mean and, in brackets, the worst value over the seeds; a dash if no seed has a value."""
        values = self._list_values(rows)
        if not values:
            return UNKNOWN
        digits = 0 if self.total_field and len(values) == 1 else self.digits
        mean = self._format_figure(sum(values) / len(values), digits)
        if self.total_field:
            most = sum(list_known_values(rows, self.total_field)) / len(rows)
            return f"{mean} of {self._format_figure(most, 0)}" if most else UNKNOWN
        if self.worst is None or len(values) == 1:
            return mean
        return f"{mean} ({self._format_figure(self.worst(values), 0 if self.is_whole_number else self.digits)})"

    def make_cell(self, rows: Sequence[object]) -> Cell:
        """Return the formatted cell with the unrounded mean behind it."""
        shown, values = self.format_cell(rows), self._list_values(rows)
        return number_cell(shown, None if shown == UNKNOWN else sum(values) / len(values))

    def _list_values(self, rows: Sequence[object]) -> list[float]:
        return [self.factor * value for value in list_known_values(rows, self.field)]

    def _format_figure(self, value: float, digits: int) -> str:
        return f"{value:,.{min(digits, self.large_digits) if abs(value) >= 100.0 else digits}f}"


def list_known_values(rows: Sequence[object], field: str) -> list[float]:
    """Return the values of a field that are not None."""
    values = [row.get(field) if isinstance(row, Mapping) else getattr(row, field) for row in rows]
    return [float(value) for value in values if value is not None]


def describe_seeds(count: int) -> str:
    """Describe what the columns show."""
    return f"Mean of {count} seeds, the worst seed in brackets." if count > 1 else "One seed."


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


COLUMNS_NOTE = "Saved: energy, against MAXN. From 10 on: from round 10 on."


def print_mode_choice(console: Console, table: ProfileTable, steps: int, choices: Sequence[ModeChoiceResult]) -> None:
    """Print the mode-choice study: regret, saving, missed deadlines and explored modes."""
    rows: list[FigureRow] = [choice.row for choice in choices]
    title = f"{table.device}/{table.workload}: {steps} steps per round"
    mode_choice_table(rows, title).print(console)
    print_lines(console, (COLUMNS_NOTE, describe_seeds(len({row["seed"] for row in rows}))))


def mode_choice_table(rows: Sequence[FigureRow], title: str = "") -> Table:
    """Build a table with one line per policy and deadline ratio."""
    groups = group_rows(rows, "policy", "ratio")
    colour = assign_colours(tuple(dict.fromkeys(str(policy) for policy, _ in groups)))
    lines = tuple(
        (
            swatch_cell(colour[str(policy)], str(policy)),
            number_cell(f"{ratio:g}"),
            *(column.make_cell(group) for column in MODE_CHOICE_COLUMNS),
        )
        for (policy, ratio), group in groups.items()
    )
    return Table("policies", ("policy", "ratio", *(column.heading for column in MODE_CHOICE_COLUMNS)), lines, title)


def print_fleet_study(console: Console, runs: Sequence[FleetRun]) -> None:
    """Print the fleet study: rounds, energy and gap to the oracle per policy, and the baselines."""
    rows: list[FigureRow] = [run.row for run in runs]
    for table in build_fleet_tables(rows):
        table.print(console)
    gap = "Gap: to the oracle's objective. Share: of the oracle's saving."
    seeds = describe_seeds(len({row["seed"] for row in rows}))
    print_lines(console, (gap, COLUMNS_NOTE, describe_engine(runs), seeds, *describe_infeasible_limits(rows)))


def build_fleet_tables(rows: Sequence[FigureRow]) -> tuple[Table, Table, Table]:
    """Build the tables of means per round, of energy saved, and of the baselines."""
    groups = group_rows(rows, "policy")
    colour = assign_colours([str(policy) for (policy,) in groups])
    shown, saved = (
        tuple(
            (swatch_cell(colour[str(policy)], str(policy)), *(column.make_cell(group) for column in columns))
            for (policy,), group in groups.items()
        )
        for columns in (FLEET_COLUMNS, SAVING_COLUMNS)
    )
    others = tuple(
        (
            text_cell(name),
            text_cell(policy),
            *(column.make_cell(select_baseline(group, prefix)) for column in BASELINE_COLUMNS),
        )
        for (policy,), group in groups.items()
        for prefix, name in BASELINE_NAMES.items()
    )
    title = "Baselines on the same boards and partitions"
    return (
        Table("policies", ("policy", *(column.heading for column in FLEET_COLUMNS)), shown, "Fleet: means per round"),
        Table("savings", ("policy", *(column.heading for column in SAVING_COLUMNS)), saved, "Energy saved"),
        Table("baselines", ("against", "policy", *(column.heading for column in BASELINE_COLUMNS)), others, title),
    )
