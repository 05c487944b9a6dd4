"""Reading and writing of tables of step time and power by mode (docs/reference/tables.md)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from fedge.atomic_files import write_text
from fedge.devices.tables.csv_sheet import SheetRow, decode_text, parse_number, parse_sheet, read_bytes
from fedge.devices.tables.table_checks import check_units
from fedge.errors import BadInput
from fedge.types import Floats, Label, Modes, ProfileTable, weakest_label

TABLE_COLUMNS = ("cores", "cpu_khz", "gpu_hz", "mem_hz", "batch_size", "time_ms", "power_w")
"""Columns of a table in normal form (docs/reference/tables.md)."""
IDLE_COLUMN = "idle_w"
"""Optional last column: power of the idle board in the mode, in watts."""
LABEL_COLUMN = "label"
"""Optional column: the ``Label`` of each row, so that it cannot be lost on the table's way."""
_KNOB_UNITS = np.array([1.0, 1e3, 1e6, 1e6])
"""Divisors of the knob columns: cores are unchanged, kHz and Hz become MHz."""
_CHECKSUM_DIGITS = 12
"""Significant digits that enter the checksum; further digits differ only by the writing program's rounding."""
_WORKLOAD_KINDS = ("train", "infer")
_WHOLE_COLUMNS = ("cores", "batch_size")


def read_mode_table(
    path: Path, device: str | None = None, workload: str | None = None, batch_size: int | None = None
) -> ProfileTable:
    """Read a table from a CSV file with the columns ``TABLE_COLUMNS``, one row per mode and batch size.

    Rows that repeat a mode are replaced by their median; ``table_checks.list_table_notes`` reports it. Device and
    workload default to those of the path ``.../<device>/train/<workload>.csv``. A table of several batch sizes needs
    ``batch_size``. The table's label is the weakest of its rows.

    Raises:
        BadInput: The file is missing or invalid, has implausible units, or lacks the batch size.
    """
    raw = read_bytes(path, "a table (CSV)")
    where = str(path)
    numbers, labels = _parse_rows(where, decode_text(where, raw))
    size = _select_batch_size(where, numbers, batch_size)
    kept = np.flatnonzero(numbers[:, 4] == size)
    its_device, its_workload = parse_table_path(path)
    label = weakest_label(labels[row] for row in kept)
    return build_mode_table(where, numbers[kept], device or its_device, workload or its_workload, label=label)


def build_mode_table(where: str, numbers: Floats, device: str, workload: str, label: Label) -> ProfileTable:
    """Build a table from rows of one batch size.

    ``numbers`` are in the order and units of ``TABLE_COLUMNS``, shape (n, 7), or (n, 8) with ``IDLE_COLUMN``.

    Raises:
        BadInput: A column is in another unit than its name states.
    """
    check_units(where, Modes(numbers[:, :4] / _KNOB_UNITS), numbers[:, 5] / 1e3, numbers[:, 6])
    knobs, step_s, power_w, idle_w = _merge_duplicates(numbers)
    batch_size, duplicates = int(numbers[0, 4]), len(numbers) - len(knobs)
    return ProfileTable(
        device,
        workload=workload,
        batch_size=batch_size,
        modes=Modes(knobs),
        step_s=step_s,
        power_w=power_w,
        sha256=_hash_rows(numbers[:, : len(TABLE_COLUMNS)]),
        path=where,
        duplicates=duplicates,
        idle_w=idle_w,
        label=label,
    )


def read_table_label(path: Path) -> Label:
    """Return the label that all rows of a table have at least.

    Raises:
        BadInput: The file is not a table.
    """
    where = str(path)
    return weakest_label(_parse_rows(where, decode_text(where, read_bytes(path, "a table (CSV)")))[1])


def list_batch_sizes(path: Path) -> tuple[int, ...]:
    """Return the batch sizes in a table, in ascending order.

    Raises:
        BadInput: The file is not a table.
    """
    where = str(path)
    numbers, _ = _parse_rows(where, decode_text(where, read_bytes(path, "a table (CSV)")))
    return tuple(sorted({int(b) for b in numbers[:, 4]}))


def parse_workload_kind(path: Path) -> Literal["train", "infer"]:
    """Return the kind of a table's steps: ``infer`` if its folder has this name, else ``train``."""
    return "infer" if path.resolve().parent.name == "infer" else "train"


def _hash_rows(numbers: Floats) -> str:
    """Return a checksum that depends neither on the order of rows nor on the format of numbers."""
    exponent = np.floor(np.log10(numbers))
    rounded = np.hstack([exponent, np.rint(numbers / 10.0 ** (exponent - _CHECKSUM_DIGITS + 1))])
    ordered = np.ascontiguousarray(rounded[np.lexsort(rounded.T[::-1])], dtype="<f8")
    return hashlib.sha256(ordered.tobytes()).hexdigest()


def parse_table_path(path: Path) -> tuple[str, str]:
    """Return device and workload of ``.../<device>/train/<workload>.csv``; the folder ``train`` is optional."""
    folder = path.resolve().parent
    return (folder.parent.name if folder.name in _WORKLOAD_KINDS else folder.name), path.stem


def _parse_rows(where: str, text: str) -> tuple[Floats, list[Label]]:
    """Parse the numbers of all rows in the order of ``TABLE_COLUMNS``, and their labels.

    The numbers have the shape (n, 7), or (n, 8) with ``IDLE_COLUMN``.
    """
    sheet = parse_sheet(where, text, TABLE_COLUMNS)
    columns = (*TABLE_COLUMNS, IDLE_COLUMN) if IDLE_COLUMN in sheet.columns else TABLE_COLUMNS
    if not sheet.rows:
        raise BadInput(where, "no rows", "at least one row per power mode")
    rows = [
        [
            parse_number(f"{where}: line {row.line}", name, row.cells[name], whole=name in _WHOLE_COLUMNS)
            for name in columns
        ]
        for row in sheet.rows
    ]
    return np.array(rows, dtype=np.float64), [_parse_label(where, row) for row in sheet.rows]


def _parse_label(where: str, row: SheetRow) -> Label:
    labels: tuple[Label, ...] = get_args(Label)
    text = row.cells.get(LABEL_COLUMN) or "unknown"
    if text not in labels:
        raise BadInput(f"{where}: line {row.line}, {LABEL_COLUMN}", repr(text), f"one of {', '.join(labels)}")
    return labels[labels.index(text)]


def _select_batch_size(where: str, numbers: Floats, batch_size: int | None) -> int:
    known = sorted({int(b) for b in numbers[:, 4]})
    listed = ", ".join(map(str, known))
    if batch_size is None:
        if len(known) > 1:
            raise BadInput(where, f"batch sizes {listed}", "choose one with --batch-size")
        return known[0]
    if batch_size not in known:
        raise BadInput(f"{where}: batch size", str(batch_size), f"known: {listed}")
    return batch_size


def _merge_duplicates(numbers: Floats) -> tuple[Floats, Floats, Floats, Floats | None]:
    """Return knobs in MHz (n, 4), seconds (n,), watts (n,), and idle watts (n,) or None.

    Rows of one mode are replaced by their median (of idle watts by the first), in the order of first occurrence.
    """
    _, first, which = np.unique(numbers[:, :4], axis=0, return_index=True, return_inverse=True)
    rows_by_mode = np.argsort(which.reshape(-1), kind="stable")
    ends = np.cumsum(np.bincount(which.reshape(-1)))
    seconds, watts = numbers[:, 5] / 1e3, numbers[:, 6].copy()
    for rows in np.split(rows_by_mode, ends[:-1]):
        if len(rows) > 1:
            seconds[rows[0]], watts[rows[0]] = np.median(seconds[rows]), np.median(watts[rows])
    kept = np.sort(first)
    idle_w = numbers[kept, len(TABLE_COLUMNS)] if numbers.shape[1] > len(TABLE_COLUMNS) else None
    return numbers[kept, :4] / _KNOB_UNITS, seconds[kept], watts[kept], idle_w


WRITTEN_DIGITS = 12
"""Significant digits that are written: more than any meter resolves, and enough to keep whole hertz exact."""


def write_mode_table(path: Path, *tables: ProfileTable) -> None:
    """Write the tables of one workload to one CSV file in normal form, atomically.

    Raises:
        BadInput: The file cannot be written.
    """
    try:
        write_text(path, format_mode_tables(*tables))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BadInput(str(path), f"a file that cannot be written ({reason})", "the path of a table (CSV)") from error


def format_mode_tables(*tables: ProfileTable) -> str:
    """Format the tables of one workload, one per batch size, as CSV in normal form.

    Idle power is written if all tables have it, labels if any is known.
    """
    with_idle = all(table.idle_w is not None for table in tables)
    labelled = any(table.label != "unknown" for table in tables)
    heads = (*TABLE_COLUMNS, *((IDLE_COLUMN,) if with_idle else ()), *((LABEL_COLUMN,) if labelled else ()))
    lines = [",".join(heads)]
    for table in tables:
        cores, cpu_mhz, gpu_mhz, mem_mhz = table.modes.knobs.T
        size = np.full(len(cores), float(table.batch_size))
        columns = [cores, cpu_mhz * 1e3, gpu_mhz * 1e6, mem_mhz * 1e6, size, table.step_s * 1e3, table.power_w]
        columns += [table.idle_w] if table.idle_w is not None and with_idle else []
        ends = [table.label] if labelled else []
        rows = np.column_stack(columns).tolist()
        lines += [",".join([*(f"{value:.{WRITTEN_DIGITS}g}" for value in row), *ends]) for row in rows]
    return "\n".join(lines) + "\n"
