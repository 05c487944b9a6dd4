"""The studies' figures for a terminal: means over the seeds, the worst seed in brackets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.report.choices.summary import (
    BASELINES,
    FLEET,
    MODE_CHOICE,
    SAVINGS,
    WAYS,
    Choice,
    Column,
    Figures,
    baseline,
    grouped,
    out_of_reach,
)
from fedge.studies.fleet import FleetRun
from fedge.types import ProfileTable

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text


def mode_choice_table(table: ProfileTable, steps: int, choices: Sequence[Choice]) -> Group:
    """Per policy and deadline ratio: regret, saving, deadlines missed, modes tried."""
    from rich.console import Group
    from rich.text import Text

    rows: list[Figures] = [choice.row for choice in choices]
    title = f"{table.device}/{table.workload}: {steps} minibatches a round"
    shown = _table(title, ("policy", "ratio"), MODE_CHOICE, narrow=True)
    for (policy, ratio), group in grouped(rows, "policy", "ratio").items():
        shown.add_row(str(policy), f"{ratio:g}", *(column.text(group) for column in MODE_CHOICE))
    return Group(shown, Text(), _note(rows))


def fleet_table(runs: Sequence[FleetRun]) -> Group:
    """Per policy its rounds, energy and distance from the oracle; below it what others would have taken."""
    from rich.console import Group
    from rich.text import Text

    rows: list[Figures] = [run.row for run in runs]
    shown = _table("Fleet: means per round", ("policy",), FLEET)
    saved = _table("Energy saved", ("policy",), SAVINGS)
    others = _table("The same boards and shares", ("policy", "against"), BASELINES)
    for (policy,), group in grouped(rows, "policy").items():
        shown.add_row(str(policy), *(column.text(group) for column in FLEET))
        saved.add_row(str(policy), *(column.text(group) for column in SAVINGS))
        for prefix, name in WAYS.items():
            others.add_row(str(policy), name, *(column.text(baseline(group, prefix)) for column in BASELINES))
    return Group(shown, saved, others, _note(rows), *(Text(sentence) for sentence in out_of_reach(rows)))


def _table(title: str, heads: Sequence[str], columns: Sequence[Column], *, narrow: bool = False) -> Table:
    """An empty table; a ``narrow`` one has many columns of figures, short names, and single spaces between."""
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


def _note(rows: Sequence[Figures]) -> Text:
    from rich.text import Text

    seeds = len({row["seed"] for row in rows})
    return Text(f"Mean of {seeds} seeds, in brackets the worst of them." if seeds > 1 else "One seed.", style="dim")
