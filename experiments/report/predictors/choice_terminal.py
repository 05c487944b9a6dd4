"""Terminal tables of the studies: means over the seeds, with the worst seed in brackets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.report.palette import assign_colours
from experiments.report.predictors.choice_summary import (
    BASELINE_COLUMNS,
    BASELINE_NAMES,
    FLEET_COLUMNS,
    MODE_CHOICE_COLUMNS,
    SAVING_COLUMNS,
    FigureRow,
    describe_engine,
    describe_infeasible_limits,
    group_rows,
    select_baseline,
)
from experiments.report.tables import Table, number_cell, print_lines, swatch_cell, text_cell
from fedge.studies.fleet import FleetRun
from fedge.studies.mode_choice_study import ModeChoiceResult
from fedge.types import ProfileTable

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS_NOTE = "Saved: energy, against MAXN. From 10 on: from round 10 on."


def print_mode_choice(console: Console, table: ProfileTable, steps: int, choices: Sequence[ModeChoiceResult]) -> None:
    """Print the mode-choice study: regret, saving, missed deadlines and explored modes."""
    rows: list[FigureRow] = [choice.row for choice in choices]
    title = f"{table.device}/{table.workload}: {steps} steps per round"
    mode_choice_table(rows, title).print(console)
    print_lines(console, (COLUMNS_NOTE, _describe_seeds(rows)))


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
    notes = (gap, COLUMNS_NOTE, describe_engine(runs), _describe_seeds(rows), *describe_infeasible_limits(rows))
    print_lines(console, notes)


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


def _describe_seeds(rows: Sequence[FigureRow]) -> str:
    seeds = len({row["seed"] for row in rows})
    return f"Mean of {seeds} seeds, the worst seed in brackets." if seeds > 1 else "One seed."
