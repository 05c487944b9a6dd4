"""``fedge predict import``: measurements made elsewhere become a table in the normal form, never over another file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from fedge.devices import catalogue
from fedge.errors import BadInput, UnknownName
from fedge.profiles.importers import LAYOUTS, Imported, bofl, jtop, powertrain, tegrastats
from fedge.profiles.importers.steps import Steps, read_steps
from fedge.profiles.sheet import bytes_of, text_of
from fedge.profiles.table import names_of
from fedge.profiles.write import text_of as normal_form
from fedge.profiles.write import write_table
from fedge.types import DeviceSpec

LOGS = {"tegrastats": tegrastats.from_log, "jtop": jtop.from_log}
"""Layouts that hold power only, so that a steps file has to say what ran when."""


def import_table(
    source: Path, layout: str, out: Path, steps: Path | None, batch_size: int | None, as_json: bool
) -> None:
    """Write the table ``out`` from ``source`` and say what was done, assumed and left out.

    Board and workload are those of the path of ``out`` (``.../<board>/train/<workload>.csv``); a board of the catalogue
    brings the formula of its total power and its core count. A file that is there already is left alone, unless it is
    the very same table. Raises ``BadInput``, for an unknown layout with the known ones.
    """
    if layout not in LAYOUTS:
        raise UnknownName("--format", layout, tuple(LAYOUTS))
    if (layout in LOGS) != (steps is not None):
        needed = f"a CSV file that says when each mode ran ({layout} logs power only)"
        raise BadInput("--steps", *(("nothing", needed) if steps is None else (str(steps), f"no file for {layout}")))
    device, workload = names_of(out)
    imported = _imported(source, layout, steps, batch_size, (device, workload))
    _write(out, imported)
    outcome = _outcome(out, layout, imported)
    if as_json:
        typer.echo(json.dumps(outcome))
    else:
        _say(outcome)


def _imported(
    source: Path, layout: str, steps: Path | None, batch_size: int | None, names: tuple[str, str]
) -> Imported:
    device, workload = names
    spec = _board(device)
    where = str(source)
    if steps is not None:
        formula = spec.total_power if spec else None
        return LOGS[layout](where, _text(source, LAYOUTS[layout]), _steps(steps, batch_size), device, workload, formula)
    if layout == "bofl":
        cores = max(spec.cores) if spec else None
        return bofl.from_json(where, _text(source, LAYOUTS[layout]), device, workload, batch_size, cores)
    found = powertrain.read_source(source)
    if isinstance(found, str):
        return powertrain.from_results(where, found, device, workload, batch_size)
    return powertrain.from_folders(where, found, device, workload, batch_size)


def _board(device: str) -> DeviceSpec | None:
    """The catalogue's board of that name, if there is one."""
    return catalogue.load_catalogue().get(catalogue.aliases().get(device, device))


def _text(source: Path, what: str) -> str:
    return text_of(str(source), bytes_of(source, f"a {what}"), f"a {what}, in UTF-8")


def _steps(steps: Path, batch_size: int | None) -> Steps:
    return read_steps(str(steps), text_of(str(steps), bytes_of(steps, "a steps file (CSV)")), batch_size)


def _write(out: Path, imported: Imported) -> None:
    if not out.exists():
        write_table(out, *imported.tables)
    elif bytes_of(out, "a table to write (CSV)") != normal_form(*imported.tables).encode("utf-8"):
        raise BadInput(f"--out: {out}", "a file that is there already", "another path, or delete it first")


def _outcome(out: Path, layout: str, imported: Imported) -> dict[str, Any]:
    tables = imported.tables
    return {
        "table": str(out),
        "format": layout,
        "device": tables[0].device,
        "workload": tables[0].workload,
        "rows": sum(len(table.modes) for table in tables),
        "modes": len({mode for table in tables for mode in table.modes}),
        "batch_sizes": [table.batch_size for table in tables],
        "repeated": sum(table.duplicates for table in tables),
        "notes": list(imported.notes),
    }


def _say(outcome: dict[str, Any]) -> None:
    sizes = ", ".join(map(str, outcome["batch_sizes"]))
    typer.echo(
        f"{outcome['table']}: rows {outcome['rows']}, power modes {outcome['modes']}, "
        f"batch size{'s' if len(outcome['batch_sizes']) > 1 else ''} {sizes} "
        f"(board {outcome['device']}, workload {outcome['workload']})"
    )
    for note in outcome["notes"]:
        typer.echo(f"note: {note}")
