"""``fedge reproduce``: published figures of the papers that fedge grew from, beside ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli.command_options import AsJson, OutFile
from experiments.cli.command_output import check_output, make_console, print_json, show_progress, write_json
from experiments.report.tables import Column, Table, build_table, print_lines, text_cell, value_cell

if TYPE_CHECKING:
    from fedge.studies.reproductions import ReproducedFigure, Reproduction


def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Name of a reproduction; without it, list all of them.")
    ] = None,
    tables: Annotated[
        Path | None,
        typer.Argument(
            metavar="TABLES",
            envvar="FEDGE_PROFILES",
            help="Folder of measured tables: <board>/train and <board>/infer.",
        ),
    ] = None,
    *,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, help="Number of repetitions; by default the reproduction's own.")
    ] = None,
    out: OutFile = None,
    as_json: AsJson = False,
) -> None:
    """Reproduce a paper's method: the published figures beside ours, and what differs.

    Example: fedge reproduce accelerators
    """
    from fedge.studies.reproductions import REPRODUCTIONS
    from fedge.studies.reproductions import reproduce as run

    check_output("--out", out, "[")
    figures = [] if name is None else run(name, show_progress, tables, seeds)
    results = [asdict(one) for one in figures] or [_reproduction_to_dict(*item) for item in REPRODUCTIONS.items()]
    write_json(out, results)
    if as_json:
        print_json(results)
    elif name is None:
        _build_names_table(REPRODUCTIONS.items()).print(make_console())
    else:
        _print_figures(REPRODUCTIONS[name], figures)


def _reproduction_to_dict(name: str, one: Reproduction) -> dict[str, str | bool | int | None]:
    fields = ("title", "reference", "compares", "needs_tables", "seeds")
    return {"name": name} | {field: getattr(one, field) for field in fields}


def _build_names_table(items: Iterable[tuple[str, Reproduction]]) -> Table:
    columns: tuple[Column[tuple[str, Reproduction]], ...] = (
        ("name", lambda item: text_cell(item[0])),
        ("compared", lambda item: text_cell(item[1].compares)),
        ("measured tables", lambda item: text_cell("needed" if item[1].needs_tables else "not needed")),
        ("paper", lambda item: text_cell(item[1].reference)),
    )
    return build_table("reproductions", columns, items)


def _print_figures(paper: Reproduction, figures: Sequence[ReproducedFigure]) -> None:
    """Print the figures, and below them once each what differs."""
    differences = list(dict.fromkeys(figure.differs for figure in figures))
    columns: tuple[Column[ReproducedFigure], ...] = (
        ("figure", lambda one: text_cell(one.what)),
        ("published", lambda one: text_cell(one.published)),
        ("ours", lambda one: value_cell(one.ours, f".{_count_decimals(one)}f", one.unit)),
        ("unit", lambda one: text_cell(one.unit)),
        ("label", lambda one: text_cell(one.label)),
        ("source", lambda one: text_cell(one.source)),
        ("note", lambda one: text_cell(differences.index(one.differs) + 1)),
    )
    console = make_console()
    build_table("figures", columns, figures, f"{paper.title} ({paper.reference})").print(console)
    print_lines(console, (f"{place}: {text}." for place, text in enumerate(differences, 1)))


def _count_decimals(figure: ReproducedFigure) -> int:
    """Return the decimals to show: those of the published figure, but one at least unless ours is a count."""
    return 0 if isinstance(figure.ours, int) else max(1, len(figure.published.partition(".")[2]))
