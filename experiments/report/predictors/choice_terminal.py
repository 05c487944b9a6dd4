"""Terminal tables of the studies: means over the seeds, with the worst seed in brackets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.report.predictors.choice_summary import (
    BASELINE_COLUMNS,
    BASELINE_NAMES,
    FLEET_COLUMNS,
    MODE_CHOICE_COLUMNS,
    SAVING_COLUMNS,
    ChoiceColumn,
    FigureRow,
    PolicyRun,
    describe_infeasible_limits,
    group_rows,
    select_baseline,
)
from fedge.studies.fleet import FleetRun
from fedge.types import ProfileTable

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text


def mode_choice_table(table: ProfileTable, steps: int, choices: Sequence[PolicyRun]) -> Group:
    """Build the table of the mode-choice study: regret, saving, missed deadlines and explored modes.

    Args:
        table: The measured table that served as truth.
        steps: SGD steps per round.
        choices: All runs.
    """
    from rich.console import Group
    from rich.text import Text

    rows: list[FigureRow] = [choice.row for choice in choices]
    title = f"{table.device}/{table.workload}: {steps} minibatches a round"
    shown = _empty_table(title, ("policy", "ratio"), MODE_CHOICE_COLUMNS, narrow=True)
    for (policy, ratio), group in group_rows(rows, "policy", "ratio").items():
        shown.add_row(str(policy), f"{ratio:g}", *(column.format_cell(group) for column in MODE_CHOICE_COLUMNS))
    return Group(shown, Text(), _seeds_note(rows))


def fleet_table(runs: Sequence[FleetRun]) -> Group:
    """Build the fleet study's tables: rounds, energy and gap to the oracle per policy, and the baselines."""
    from rich.console import Group
    from rich.text import Text

    rows: list[FigureRow] = [run.row for run in runs]
    shown = _empty_table("Fleet: means per round", ("policy",), FLEET_COLUMNS)
    saved = _empty_table("Energy saved", ("policy",), SAVING_COLUMNS)
    others = _empty_table("The same boards and shares", ("policy", "against"), BASELINE_COLUMNS)
    for (policy,), group in group_rows(rows, "policy").items():
        shown.add_row(str(policy), *(column.format_cell(group) for column in FLEET_COLUMNS))
        saved.add_row(str(policy), *(column.format_cell(group) for column in SAVING_COLUMNS))
        for prefix, name in BASELINE_NAMES.items():
            others.add_row(
                str(policy), name, *(column.format_cell(select_baseline(group, prefix)) for column in BASELINE_COLUMNS)
            )
    return Group(
        shown, saved, others, _seeds_note(rows), *(Text(sentence) for sentence in describe_infeasible_limits(rows))
    )


def _empty_table(title: str, heads: Sequence[str], columns: Sequence[ChoiceColumn], *, narrow: bool = False) -> Table:
    """Build an empty table; a narrow one has short headings and single spaces, to fit many columns."""
    from rich import box
    from rich.table import Table

    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=not narrow,
        pad_edge=False,
        padding=(0, 0 if narrow else 1, 0, 0),
    )
    for head in heads:
        table.add_column(head, overflow="fold", min_width=None if narrow else 8)
    for column in columns:
        table.add_column(column.heading, justify="right", no_wrap=True)
    return table


def _seeds_note(rows: Sequence[FigureRow]) -> Text:
    from rich.text import Text

    seeds = len({row["seed"] for row in rows})
    return Text(f"Mean of {seeds} seeds, in brackets the worst of them." if seeds > 1 else "One seed.", style="dim")
