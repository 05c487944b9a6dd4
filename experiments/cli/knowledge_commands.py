"""``fedge knowledge``: list, show, import, export and forget what a fleet has learnt."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli.command_options import AsJson, TableBatchSize, command_group
from experiments.cli.command_output import make_console, print_json, print_line, warn

if TYPE_CHECKING:
    from fedge.knowledge.knowledge_folder import KnowledgeEntry

app = command_group("What a fleet has learnt: tables, models, calibrations and the measurements of finished runs.")

Folder = Annotated[
    Path | None,
    typer.Option(
        "--knowledge",
        metavar="DIR",
        help="The knowledge folder; by default $FEDGE_KNOWLEDGE, or the one beside the runs.",
    ),
]
Entry = Annotated[str, typer.Argument(metavar="ENTRY", help="Name of an entry, or its beginning.")]


@app.command("list")
def list_knowledge(
    device: Annotated[str | None, typer.Option("--board", help="The board; by default all.")] = None,
    workload: Annotated[str | None, typer.Option(help="The workload; by default all.")] = None,
    folder: Folder = None,
    as_json: AsJson = False,
) -> None:
    """List the entries, oldest first; damaged ones are named and left out.

    Example: fedge knowledge list --board agx-orin
    """
    from fedge.devices.catalogue import aliases
    from fedge.knowledge.knowledge_folder import list_entries

    listing = list_entries(_find_folder(folder))
    kind = aliases().get(device, device) if device else None
    entries = [one for one in listing.entries if kind in (None, one.device) and workload in (None, one.workload)]
    for line in listing.damaged:
        warn(line)
    if as_json:
        print_json(entries)
        return
    if not entries:
        print_line(f"nothing is known yet in {_find_folder(folder)}")
        return
    from experiments.report.tables import Column, build_table, text_cell, value_cell

    columns: tuple[Column[KnowledgeEntry], ...] = (
        ("entry", lambda one: text_cell(one.id)),
        ("what", lambda one: text_cell(one.form)),
        ("board", lambda one: text_cell(f"{one.device} ({len(one.boards)})" if one.boards else one.device)),
        ("workload", lambda one: text_cell(one.workload)),
        ("batch", lambda one: value_cell(one.batch_size)),
        ("rows", lambda one: value_cell(one.rows)),
        ("label", lambda one: text_cell(one.label)),
        ("date", lambda one: text_cell(one.date[:10])),
    )
    build_table("knowledge", columns, entries).print(make_console())


@app.command()
def show(entry: Entry, folder: Folder = None, as_json: AsJson = False) -> None:
    """Show an entry: what it is of, its conditions, and whether its file is unchanged.

    Example: fedge knowledge show table
    """
    from fedge.knowledge.knowledge_folder import find_entry, read_content

    place = _find_folder(folder)
    found = find_entry(place, entry)
    read_content(place, found)
    if as_json:
        print_json(found, indent=2)
        return
    from experiments.report.tables import print_facts

    shown = {name: value for name, value in dataclasses.asdict(found).items() if value not in (None, "", (), {})}
    if found.errors:
        columns = zip(("time", "power"), zip(*found.errors, strict=True), strict=True)
        ranges = ((name, 100 * min(errors), 100 * max(errors)) for name, errors in columns)
        shown["errors"] = ", ".join(f"{name} {low:.1f} to {high:.1f} %" for name, low, high in ranges)
    print_facts(make_console(), ((name, _write_plainly(value)) for name, value in shown.items()))


@app.command("import")
def import_knowledge(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Tables, model files, cost profiles, run folders, knowledge folders."),
    ],
    board: Annotated[
        str | None, typer.Option("--board-name", metavar="NAME", help="Name of the board that was measured.")
    ] = None,
    batch_size: TableBatchSize = None,
    folder: Folder = None,
) -> None:
    """Copy files and finished runs into the knowledge folder; an entry is replaced only by itself.

    Example: fedge knowledge import runs/office
    """
    from experiments.backends.run_knowledge import import_path

    place = _find_folder(folder)
    for path in paths:
        for entry in import_path(path, place, board=board, batch_size=batch_size):
            print_line(f"imported into {place}: {_describe(entry)}")


@app.command()
def export(
    entries: Annotated[list[str], typer.Argument(metavar="ENTRY...", help="Names of entries, or their beginnings.")],
    out: Annotated[Path, typer.Option("--folder", metavar="DIR", help="Folder to write: another knowledge folder.")],
    folder: Folder = None,
) -> None:
    """Copy entries into another knowledge folder, for another fleet or machine.

    Example: fedge knowledge export table --folder other
    """
    from fedge.knowledge.knowledge_folder import add_entry, find_entry, read_content

    place = _find_folder(folder)
    for entry in [find_entry(place, name) for name in entries]:
        add_entry(out, entry, read_content(place, entry))
        print_line(f"exported: {_describe(entry)}")


@app.command()
def forget(
    entries: Annotated[list[str], typer.Argument(metavar="ENTRY...", help="Names of entries, or their beginnings.")],
    folder: Folder = None,
) -> None:
    """Remove entries with their files.

    Example: fedge knowledge forget table
    """
    from fedge.knowledge.knowledge_folder import find_entry, forget_entry

    place = _find_folder(folder)
    for entry in [find_entry(place, name) for name in entries]:
        forget_entry(place, entry)
        print_line(f"forgotten: {_describe(entry)}")


def _write_plainly(value: object) -> str:
    """Write a value of an entry, with commas between the items of a list or mapping."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {one}" for name, one in value.items())
    return ", ".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def _find_folder(given: Path | None) -> Path:
    from experiments.backends.run_knowledge import find_commands_folder

    return given.resolve() if given else find_commands_folder()


def _describe(entry: KnowledgeEntry) -> str:
    from fedge.physics.model_fit import UNSURE_SE_LOG

    rows = f"{entry.rows} {'measurements' if entry.form == 'run' else 'modes'}, {entry.label}"
    unsure = sum(max(errors) >= UNSURE_SE_LOG for errors in entry.errors)
    rows += f", {unsure} unsure by {100 * UNSURE_SE_LOG:.0f} % or more" if unsure else ""
    return f"{entry.id} ({entry.device}, {entry.workload} at batch {entry.batch_size}: {rows})"
