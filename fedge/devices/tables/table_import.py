"""Import of other tools' measurements: reads a log, file or folder and writes a table in the normal form."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from fedge.devices import catalogue
from fedge.devices.tables.csv_sheet import decode_text, read_bytes
from fedge.devices.tables.mode_table import (
    ImportedRows,
    ImportedTables,
    assemble_tables,
    format_mode_tables,
    list_batch_sizes,
    list_table_notes,
    parse_table_path,
    read_mode_table,
    write_mode_table,
)
from fedge.devices.tables.power_log import import_jtop_log, import_tegrastats_log, read_steps_file
from fedge.devices.tables.published_files import import_bofl_json, import_folders, import_results, read_source
from fedge.errors import BadInput, check_known
from fedge.types import DeviceSpec, Label, weakest_label

LAYOUTS = {
    "tegrastats": "tegrastats log (JetPack 4 to 6), with --step-times",
    "jtop": "CSV log of jetson-stats, with --step-times",
    "powertrain": "run folders or result tables of github kedar-1401/Dream-Lab",
    "bofl": "JSON of github hongpeng-guo/BoFL",
    "table": "CSV in the normal form; without a label it counts as measured",
}
"""Description of each format, by name."""
LOG_IMPORTERS = {"tegrastats": import_tegrastats_log, "jtop": import_jtop_log}
"""Formats that hold power only, so that a steps file must say what ran when."""


@dataclass(frozen=True, slots=True)
class TableImport:
    """Outcome of an import."""

    table: str
    format: str
    device: str
    workload: str
    rows: int
    modes: int
    batch_sizes: tuple[int, ...]
    label: Label
    repeated: int
    notes: tuple[str, ...]


def import_table(
    source: Path, layout: str, out: Path, *, steps: Path | None = None, batch_size: int | None = None
) -> TableImport:
    """Convert measurements and write them as a table.

    Board and workload come from the path of ``out`` (``.../<board>/train/<workload>.csv``); for a board of the
    catalogue, the total power and the core count follow its definition. An existing file is kept unless it is the same
    table. ``steps`` is the file with the times of each mode's steps, which logs need.

    Raises:
        BadInput: If the source is invalid, the format is unknown, or ``out`` holds something else.
    """
    check_known("--format", layout, LAYOUTS)
    if (layout in LOG_IMPORTERS) != (steps is not None):
        needed = f"a CSV file that says when each mode ran ({layout} logs power only)"
        raise BadInput(
            "--step-times", *(("nothing", needed) if steps is None else (str(steps), f"no file for {layout}"))
        )
    device, workload = parse_table_path(out)
    spec = catalogue.load_catalogue().get(catalogue.aliases().get(device, device))
    if layout == "table":
        imported = _read_tables(source, batch_size, device, workload)
    else:
        rows = _read_rows(source, layout, steps, batch_size=batch_size, spec=spec)
        imported = assemble_tables(rows, device, workload)
    _write_table(out, imported)
    tables = imported.tables
    return TableImport(
        table=str(out),
        format=layout,
        device=tables[0].device,
        workload=tables[0].workload,
        rows=sum(len(table.modes) for table in tables),
        modes=len({mode for table in tables for mode in table.modes}),
        batch_sizes=tuple(table.batch_size for table in tables),
        label=weakest_label(table.label for table in tables),
        repeated=sum(table.duplicates for table in tables),
        notes=tuple(imported.notes),
    )


def _read_rows(
    source: Path, layout: str, steps: Path | None, batch_size: int | None, spec: DeviceSpec | None
) -> ImportedRows:
    where = str(source)
    if steps is not None:
        text = _read_text(source, LAYOUTS[layout])
        steps_text = decode_text(str(steps), read_bytes(steps, "a steps file (CSV)"))
        runs = read_steps_file(str(steps), steps_text, batch_size)
        return LOG_IMPORTERS[layout](where, text, runs, spec.total_power if spec else None)
    if layout == "bofl":
        text = _read_text(source, LAYOUTS[layout])
        return import_bofl_json(where, text, batch_size, max(spec.cores) if spec else None)
    content = read_source(source)
    if isinstance(content, str):
        return import_results(where, content, batch_size)
    return import_folders(where, content, batch_size)


def _read_tables(source: Path, batch_size: int | None, device: str, workload: str) -> ImportedTables:
    """Read tables in the normal form; who imports one without a label states that it was measured."""
    sizes = list_batch_sizes(source) if batch_size is None else (batch_size,)
    tables = [read_mode_table(source, device, workload, size) for size in sizes]
    labelled = tuple(replace(table, label="measured") if table.label == "unknown" else table for table in tables)
    return ImportedTables(labelled, tuple(note for table in labelled for note in list_table_notes(table)))


def _read_text(source: Path, what: str) -> str:
    return decode_text(str(source), read_bytes(source, f"a {what}"), f"a {what}, in UTF-8")


def _write_table(out: Path, imported: ImportedTables) -> None:
    if not out.exists():
        write_mode_table(out, *imported.tables)
    elif read_bytes(out, "a table to write (CSV)") != format_mode_tables(*imported.tables).encode("utf-8"):
        raise BadInput(f"--out: {out}", "an existing file with other content", "another path, or delete it first")
