"""Tables of step time and power by mode: reading, checking, building, writing (docs/reference/tables.md)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from fedge.atomic_files import write_text
from fedge.devices.tables.csv_sheet import SheetRow, decode_text, parse_number, parse_sheet, read_bytes
from fedge.errors import BadInput, format_count
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

    Rows that repeat a mode are replaced by their median; ``list_table_notes`` reports it. Device and
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


# Units of the columns, and what a valid table cannot show -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Quantity:
    """Expected values of a column. The bounds are wide of every existing board; they only detect wrong units.

    Attributes:
        bounds_unit: Unit of the bounds, and of error messages.
        description: Description of the largest value, for error messages.
        top: Bounds of the largest row.
        unit_mistakes: Factor that corrects a column in another unit -> that unit.
    """

    column: str
    unit: str
    bounds_unit: str
    description: str
    smallest: float
    top: tuple[float, float]
    unit_mistakes: Mapping[float, str]


_CLOCK = ("MHz", "a board's top clock", 10.0, (100.0, 20_000.0))
_NOT_MS = {1e-3: "microseconds", 1e-6: "nanoseconds", 1e3: "seconds"}
_NOT_WATTS = {1e-3: "milliwatts", 1e-6: "microwatts", 1e3: "kilowatts"}
COLUMN_QUANTITIES = tuple(
    _Quantity(*row)
    for row in (
        ("cores", "a count", "cores", "a board's core count", 1.0, (1.0, 128.0), {}),
        ("cpu_khz", "kHz", *_CLOCK, {1e-3: "Hz", 1e3: "MHz", 1e6: "GHz"}),
        ("gpu_hz", "Hz", *_CLOCK, {1e3: "kHz", 1e6: "MHz", 1e9: "GHz"}),
        ("mem_hz", "Hz", *_CLOCK, {1e3: "kHz", 1e6: "MHz", 1e9: "GHz"}),
        ("time_ms", "milliseconds", "s", "the slowest minibatch", 1e-5, (1e-4, 300.0), _NOT_MS),
        ("power_w", "watts", "W", "a board's top power", 0.1, (0.5, 1e3), _NOT_WATTS),
    )
)


def check_units(where: str, modes: Modes, step_s: Floats, power_w: Floats) -> None:
    """Check that the columns of a table have plausible units.

    Seconds in ``time_ms`` are not detected if they could be the milliseconds of a small model.

    ``step_s`` and ``power_w`` have the shape (n,), one value per mode.

    Raises:
        BadInput: A column is in another unit than its name states, or single rows are out of range.
    """
    for quantity, values in zip(COLUMN_QUANTITIES, (*modes.knobs.T, step_s, power_w), strict=True):
        _check_column(where, quantity, values)


def _check_column(where: str, quantity: _Quantity, values: Floats) -> None:
    low, high = quantity.top
    top = float(values.max())
    strange = (values < quantity.smallest) | (values > high)
    strays, others = values[strange], values[~strange]
    few = 2 * len(strays) < len(values) or low <= top <= high
    if len(strays) and few and low <= others.max() <= high:
        got = f"{strays[0]:g} {quantity.bounds_unit} in {len(strays)} of {len(values)} rows"
        right = f"{quantity.unit} in every row: from {quantity.smallest:g} to {high:g} {quantity.bounds_unit}"
        raise BadInput(f"{where}: {quantity.column}", got, right)
    if not low <= top <= high:
        right = f"{quantity.unit}: {quantity.description} lies between {low:g} and {high:g} {quantity.bounds_unit}"
        raise BadInput(
            f"{where}: {quantity.column}",
            f"{top:g} {quantity.bounds_unit} as the top",
            right + _unit_hint(quantity, top),
        )


def list_table_notes(table: ProfileTable) -> tuple[str, ...]:
    """List repairs of a table and what cannot be learnt from it, one sentence each; empty for most tables."""
    notes = []
    if table.duplicates:
        noun = "row repeats" if table.duplicates == 1 else "rows repeat"
        notes.append(f"{table.duplicates} {noun} a mode: the mode's median is used")
    if len(table.modes) == 1:
        notes.append("only one power mode: how time and power change from mode to mode cannot be seen in it")
        return tuple(notes)
    columns = (*table.modes.knobs.T, table.step_s, table.power_w)
    for quantity, values in zip(COLUMN_QUANTITIES, columns, strict=True):
        if np.ptp(values) == 0:
            notes.append(_constant_column_note(quantity, float(values[0])))
    return tuple(notes)


def _unit_hint(quantity: _Quantity, top: float) -> str:
    low, high = quantity.top
    for factor, unit in quantity.unit_mistakes.items():
        if low <= top * factor <= high:
            mend = f"multiply it by {factor:.0f}" if factor > 1 else f"divide it by {1 / factor:.0f}"
            return f"; the column looks like {unit}: {mend}"
    return ""


def _constant_column_note(quantity: _Quantity, value: float) -> str:
    same = f"{quantity.column} is the same in every row ({value:g}{_unit_suffix(quantity)})"
    if quantity.column in ("time_ms", "power_w"):
        return f"{same}: was it measured in every mode?"
    return f"{same}: what other values do cannot be seen in this table"


def _unit_suffix(quantity: _Quantity) -> str:
    return "" if quantity.column == "cores" else f" {quantity.bounds_unit}"


# Rows of other tools --------------------------------------------------------------------------------------------------


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


def count_named(things: Sequence[str], noun: str) -> str:
    """Count things and name the first ones, such as ``3 modes (a, b, ...)``."""
    shown = ", ".join(things[:2]) + (", ..." if len(things) > 2 else "")
    return f"{format_count(len(things), noun)} ({shown})"
