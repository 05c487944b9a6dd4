"""``fedge runs``: the runs in a folder, with their tags, states and headline figures, and what differs between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli.command_options import AsJson, Tags
from experiments.cli.command_output import make_console, print_json, print_line

if TYPE_CHECKING:
    from experiments.backends.run_list import ListedRun
    from experiments.report.tables import Table

MAX_DIFFERENCES = 4
"""Fields that the table shows of what differs; `--json` has all. A default that keeps a row short."""


def runs(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Folder with run folders.")] = Path("runs"),
    tags: Tags = None,
    *,
    as_json: AsJson = False,
) -> None:
    """List the runs in a folder, the newest first: state, accuracy, energy, and what differs between them.

    Example: fedge runs --tag paper
    """
    from experiments.backends.run_list import list_runs

    found = list_runs(folder, tags or ())
    if as_json:
        print_json([{**dataclasses.asdict(one), "folder": str(one.folder)} for one in found])
        return
    if not found:
        print_line(f"no run in {folder}" + (f" with {', '.join(tags)}" if tags else ""))
        return
    build_runs_table(found, str(folder)).print(make_console())
    for one in found:
        if one.problem:
            print_line(f"note: {one.name}: {one.problem}")


def build_runs_table(found: Sequence[ListedRun], title: str) -> Table:
    """Build a table with one row per run."""
    from experiments.report.quantities import energy, percent
    from experiments.report.tables import Table, number_cell, text_cell

    has_tags = any(one.tags for one in found)
    rows = tuple(
        (
            text_cell(one.name),
            *([text_cell(", ".join(one.tags))] if has_tags else []),
            text_cell(describe_differences(one)),
            text_cell("unreadable" if one.problem else one.state),
            number_cell(f"{one.rounds}/{one.planned}", one.rounds),
            number_cell(percent(one.accuracy), one.accuracy),
            number_cell(energy(one.energy_j if one.rounds else None), one.energy_j),
        )
        for one in found
    )
    heads = (
        "run",
        *(["tags"] if has_tags else []),
        "differs in",
        "state",
        "rounds",
        "accuracy",
        "energy",
    )
    return Table("runs", heads, rows, title)


def describe_differences(one: ListedRun) -> str:
    """Describe the first fields in which a run differs from the others, such as ``policy maxn, seed 3``."""
    parts = []
    for key, value in list(one.differences.items())[:MAX_DIFFERENCES]:
        owner, _, field = key.rpartition(".")
        parts.append(f"{owner or 'name'} {value}" if field == "name" else f"{field} {value}")
    more = len(one.differences) - MAX_DIFFERENCES
    return ", ".join(parts) + (f" and {more} more" if more > 0 else "")
