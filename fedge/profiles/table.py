"""Reads a measured table of step time and power per power mode, and says exactly what is wrong with a bad one."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

import numpy as np

from fedge.errors import BadInput
from fedge.profiles.health import check_units
from fedge.profiles.sheet import bytes_of, number, sheet_of, text_of
from fedge.types import Floats, Modes, ProfileTable

COLUMNS = ("cores", "cpu_khz", "gpu_hz", "mem_hz", "batch_size", "time_ms", "power_w")
"""The normal form, docs/tables.md."""
_KNOB_UNITS = np.array([1.0, 1e3, 1e6, 1e6])
"""Cores as they are; kHz and Hz to MHz."""
_DIGITS = 12
"""Significant digits by which two tables are told apart: beyond them stands only how a program rounded."""
_KINDS = ("train", "infer")
_WHOLE = ("cores", "batch_size")


def read_table(
    path: Path, device: str | None = None, workload: str | None = None, batch_size: int | None = None
) -> ProfileTable:
    """Read a CSV with the columns ``COLUMNS``, one row per power mode (and batch size).

    Names default to the path: ``.../<device>/train/<workload>.csv``. A table with several batch sizes needs
    ``batch_size``. Rows that repeat a mode are replaced by their median; ``health.notes_of`` says so. Raises
    ``BadInput`` for everything else, wrong units among it.
    """
    raw = bytes_of(path, "a measured table (CSV)")
    where = str(path)
    at_batch = _one_batch_size(where, _numbers(where, text_of(where, raw)), batch_size)
    its_device, its_workload = names_of(path)
    return table_of(where, at_batch, device or its_device, workload or its_workload)


def table_of(where: str, numbers: Floats, device: str, workload: str) -> ProfileTable:
    """The table of rows in the order and units of ``COLUMNS``, shape (n, 7), all of one batch size.

    ``where`` is the path that they came from. Raises ``BadInput`` for columns in other units than their names say.
    """
    check_units(where, Modes(numbers[:, :4] / _KNOB_UNITS), numbers[:, 5] / 1e3, numbers[:, 6])
    knobs, step_s, power_w = _without_duplicates(numbers)
    batch_size, duplicates = int(numbers[0, 4]), len(numbers) - len(knobs)
    return ProfileTable(
        device, workload, batch_size, Modes(knobs), step_s, power_w, _sha256(numbers), where, duplicates
    )


def batch_sizes_of(path: Path) -> tuple[int, ...]:
    """The batch sizes that a table holds, ascending; raises ``BadInput`` for a file that is no table."""
    where = str(path)
    numbers = _numbers(where, text_of(where, bytes_of(path, "a measured table (CSV)")))
    return tuple(sorted({int(b) for b in numbers[:, 4]}))


def kind_of(path: Path) -> Literal["train", "infer"]:
    """What a minibatch of the table at ``path`` is: ``infer`` in a folder of this name, else ``train``."""
    return "infer" if path.resolve().parent.name == "infer" else "train"


def _sha256(numbers: Floats) -> str:
    """The checksum of the rows, whatever their order and however the file writes its numbers."""
    exponent = np.floor(np.log10(numbers))
    rounded = np.hstack([exponent, np.rint(numbers / 10.0 ** (exponent - _DIGITS + 1))])
    ordered = np.ascontiguousarray(rounded[np.lexsort(rounded.T[::-1])], dtype="<f8")
    return hashlib.sha256(ordered.tobytes()).hexdigest()


def names_of(path: Path) -> tuple[str, str]:
    """Device and workload that a path stands for: ``.../<device>/train/<workload>.csv``, with or without the kind."""
    folder = path.resolve().parent
    return (folder.parent.name if folder.name in _KINDS else folder.name), path.stem


def _numbers(where: str, text: str) -> Floats:
    """All rows as numbers in the order of ``COLUMNS``, shape (n, 7)."""
    sheet = sheet_of(where, text, COLUMNS)
    if not sheet.rows:
        raise BadInput(where, "no rows", "at least one row per power mode")
    rows = [
        [number(f"{where}: line {row.line}", name, row.cells[name], whole=name in _WHOLE) for name in COLUMNS]
        for row in sheet.rows
    ]
    return np.array(rows, dtype=np.float64)


def _one_batch_size(where: str, numbers: Floats, batch_size: int | None) -> Floats:
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


def _without_duplicates(numbers: Floats) -> tuple[Floats, Floats, Floats]:
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
