"""Reads a measured table of step time and power per power mode, and says exactly what is wrong with a bad one."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from fedge.devices.tables.csv_sheet import decode_text, parse_number, parse_sheet, read_bytes
from fedge.devices.tables.table_checks import check_units
from fedge.errors import BadInput
from fedge.types import Floats, Label, Modes, ProfileTable

TABLE_COLUMNS = ("cores", "cpu_khz", "gpu_hz", "mem_hz", "batch_size", "time_ms", "power_w")
"""The normal form, docs/tables.md."""
_KNOB_UNITS = np.array([1.0, 1e3, 1e6, 1e6])
"""Cores as they are; kHz and Hz to MHz."""
_CHECKSUM_DIGITS = 12
"""Significant digits by which two tables are told apart: beyond them stands only how a program rounded."""
_WORKLOAD_KINDS = ("train", "infer")
_WHOLE_COLUMNS = ("cores", "batch_size")


def read_mode_table(
    path: Path, device: str | None = None, workload: str | None = None, batch_size: int | None = None
) -> ProfileTable:
    """Read a CSV with the columns ``TABLE_COLUMNS``, one row per power mode (and batch size).

    Names default to the path: ``.../<device>/train/<workload>.csv``. A table with several batch sizes needs
    ``batch_size``. Rows that repeat a mode are replaced by their median; ``health.notes_of`` says so. Raises
    ``BadInput`` for everything else, wrong units among it.
    """
    raw = read_bytes(path, "a measured table (CSV)")
    where = str(path)
    at_batch = _select_batch_size(where, _parse_numbers(where, decode_text(where, raw)), batch_size)
    its_device, its_workload = parse_table_path(path)
    return build_mode_table(where, at_batch, device or its_device, workload or its_workload)


def build_mode_table(where: str, numbers: Floats, device: str, workload: str) -> ProfileTable:
    """The table of rows in the order and units of ``TABLE_COLUMNS``, shape (n, 7), all of one batch size.

    ``where`` is the path that they came from. Raises ``BadInput`` for columns in other units than their names say.
    """
    check_units(where, Modes(numbers[:, :4] / _KNOB_UNITS), numbers[:, 5] / 1e3, numbers[:, 6])
    knobs, step_s, power_w = _merge_duplicates(numbers)
    batch_size, duplicates = int(numbers[0, 4]), len(numbers) - len(knobs)
    return ProfileTable(
        device,
        workload=workload,
        batch_size=batch_size,
        modes=Modes(knobs),
        step_s=step_s,
        power_w=power_w,
        sha256=_hash_rows(numbers),
        path=where,
        duplicates=duplicates,
    )


def list_batch_sizes(path: Path) -> tuple[int, ...]:
    """The batch sizes that a table holds, ascending; raises ``BadInput`` for a file that is no table."""
    where = str(path)
    numbers = _parse_numbers(where, decode_text(where, read_bytes(path, "a measured table (CSV)")))
    return tuple(sorted({int(b) for b in numbers[:, 4]}))


def parse_workload_kind(path: Path) -> Literal["train", "infer"]:
    """What a minibatch of the table at ``path`` is: ``infer`` in a folder of this name, else ``train``."""
    return "infer" if path.resolve().parent.name == "infer" else "train"


def _hash_rows(numbers: Floats) -> str:
    """The checksum of the rows, whatever their order and however the file writes its numbers."""
    exponent = np.floor(np.log10(numbers))
    rounded = np.hstack([exponent, np.rint(numbers / 10.0 ** (exponent - _CHECKSUM_DIGITS + 1))])
    ordered = np.ascontiguousarray(rounded[np.lexsort(rounded.T[::-1])], dtype="<f8")
    return hashlib.sha256(ordered.tobytes()).hexdigest()


def parse_table_path(path: Path) -> tuple[str, str]:
    """Device and workload that a path stands for: ``.../<device>/train/<workload>.csv``, with or without the kind."""
    folder = path.resolve().parent
    return (folder.parent.name if folder.name in _WORKLOAD_KINDS else folder.name), path.stem


def _parse_numbers(where: str, text: str) -> Floats:
    """All rows as numbers in the order of ``TABLE_COLUMNS``, shape (n, 7)."""
    sheet = parse_sheet(where, text, TABLE_COLUMNS)
    if not sheet.rows:
        raise BadInput(where, "no rows", "at least one row per power mode")
    rows = [
        [
            parse_number(f"{where}: line {row.line}", name, row.cells[name], whole=name in _WHOLE_COLUMNS)
            for name in TABLE_COLUMNS
        ]
        for row in sheet.rows
    ]
    return np.array(rows, dtype=np.float64)


def _select_batch_size(where: str, numbers: Floats, batch_size: int | None) -> Floats:
    known = sorted({int(b) for b in numbers[:, 4]})
    listed = ", ".join(map(str, known))
    if batch_size is None:
        if len(known) > 1:
            raise BadInput(where, f"batch sizes {listed}", "choose one with --batch-size")
        return numbers
    if batch_size not in known:
        raise BadInput(f"{where}: batch size", str(batch_size), f"known: {listed}")
    chosen: Floats = numbers[numbers[:, 4] == batch_size]
    return chosen


def _merge_duplicates(numbers: Floats) -> tuple[Floats, Floats, Floats]:
    """Knobs in MHz (n, 4), seconds and watts (n,); rows of one mode become their median, in order of first sight."""
    _, first, which = np.unique(numbers[:, :4], axis=0, return_index=True, return_inverse=True)
    rows_by_mode = np.argsort(which.reshape(-1), kind="stable")
    ends = np.cumsum(np.bincount(which.reshape(-1)))
    seconds, watts = numbers[:, 5] / 1e3, numbers[:, 6].copy()
    for rows in np.split(rows_by_mode, ends[:-1]):
        if len(rows) > 1:
            seconds[rows[0]], watts[rows[0]] = np.median(seconds[rows]), np.median(watts[rows])
    kept = np.sort(first)
    return numbers[kept, :4] / _KNOB_UNITS, seconds[kept], watts[kept]


RECORD_SUFFIX = ".json"
"""A table's record is named like the table, with this after it (docs/profiling.md)."""


def read_table_label(table: Path) -> Label:
    """``calibrated`` or ``estimated`` for the table of an emulated board, as that board's model is; else ``measured``.

    A record that cannot be read says nothing.
    """
    try:
        record: Any = json.loads(table.with_name(table.name + RECORD_SUFFIX).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "measured"
    if not isinstance(record, dict) or record.get("label") != "emulated":
        return "measured"
    labels: tuple[Label, ...] = get_args(Label)
    return next((label for label in labels if label == record.get("truth_label")), "estimated")


WRITTEN_DIGITS = 12
"""Significant digits written: more than any meter has, and whole hertz stay whole."""


def write_mode_table(path: Path, *tables: ProfileTable) -> None:
    """Write one workload's tables, one per batch size, as one CSV in the normal form (docs/tables.md).

    Folders are made, an existing file is replaced; a failure leaves what was there. Raises ``BadInput`` for a path
    that cannot be written.
    """
    try:
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_text(format_mode_tables(*tables), encoding="utf-8", newline="")
            unfinished.replace(path)
        except BaseException:
            with suppress(OSError):
                unfinished.unlink()
            raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BadInput(str(path), f"a file that cannot be written ({reason})", "the path of a table (CSV)") from error


def format_mode_tables(*tables: ProfileTable) -> str:
    """The normal form of one workload's tables, one per batch size, in the order given."""
    lines = [",".join(TABLE_COLUMNS)]
    for table in tables:
        rows = zip(table.modes.knobs.tolist(), table.step_s.tolist(), table.power_w.tolist(), strict=True)
        for (cores, cpu_mhz, gpu_mhz, mem_mhz), step_s, power_w in rows:
            values = (cores, cpu_mhz * 1e3, gpu_mhz * 1e6, mem_mhz * 1e6, table.batch_size, step_s * 1e3, power_w)
            lines.append(",".join(f"{value:.{WRITTEN_DIGITS}g}" for value in values))
    return "\n".join(lines) + "\n"
