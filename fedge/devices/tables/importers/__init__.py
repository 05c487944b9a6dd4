"""Importers of measurements in other formats, one module per format; pure once the files are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np

from fedge.devices.tables.mode_table import build_mode_table
from fedge.devices.tables.table_checks import list_table_notes
from fedge.errors import BadInput
from fedge.types import ProfileTable

LAYOUTS = {
    "tegrastats": "tegrastats log (JetPack 4 to 6), with --step-times",
    "jtop": "CSV log of jetson-stats, with --step-times",
    "powertrain": "run folders or result tables of github kedar-1401/Dream-Lab",
    "bofl": "JSON of github hongpeng-guo/BoFL",
    "table": "CSV in the normal form; without a label it counts as measured",
}
"""Description of each format, by name."""


@dataclass(frozen=True, slots=True, order=True)
class ImportKey:
    """Key of one row of the result: a power mode in the units of the normal form, and the batch size."""

    cores: int
    cpu_khz: float
    gpu_hz: float
    mem_hz: float
    batch_size: int


@dataclass(frozen=True, slots=True)
class ImportedRow:
    """Measurement of one mode, in the units of ``TABLE_COLUMNS``."""

    key: ImportKey
    time_ms: float
    power_w: float


@dataclass(frozen=True, slots=True)
class ImportedRows:
    """Rows that an importer read from the source ``where``, and notes on its assumptions, omissions and repairs."""

    where: str
    rows: Sequence[ImportedRow]
    notes: Sequence[str]


@dataclass(frozen=True, slots=True, eq=False)
class ImportedTables:
    """Result of an import: one table per batch size, smallest first, and notes."""

    tables: tuple[ProfileTable, ...]
    notes: tuple[str, ...]


def assemble_tables(imported: ImportedRows, device: str, workload: str) -> ImportedTables:
    """Build tables from measurements.

    Raises:
        BadInput: There are no measurements, or their units are implausible.
    """
    where = imported.where
    if not imported.rows:
        raise BadInput(where, "no power mode with a time and a power", "at least one")
    rows = [(*astuple(row.key), row.time_ms, row.power_w) for row in imported.rows]
    numbers = np.array(rows, dtype=np.float64)
    sizes = np.unique(numbers[:, 4])
    batches = [numbers[numbers[:, 4] == size] for size in sizes]
    tables = tuple(build_mode_table(where, batch, device, workload, label="measured") for batch in batches)
    several = len(tables) > 1
    own = [
        f"batch size {table.batch_size}: {note}" if several else note
        for table in tables
        for note in list_table_notes(table)
    ]
    return ImportedTables(tables, (*imported.notes, *own))


def format_count(things: Sequence[str], noun: str) -> str:
    """Format a count with the first names, such as ``3 minibatches (a, b, ...)``."""
    shown = ", ".join(things[:2]) + (", ..." if len(things) > 2 else "")
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'} ({shown})"
