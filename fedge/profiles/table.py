"""Reads a measured table of step time and power per power mode, and says exactly what is wrong with a bad one."""

from __future__ import annotations

import csv
import hashlib
import io
import math
from pathlib import Path

import numpy as np

from fedge.errors import BadInput
from fedge.types import Floats, Modes, ProfileTable

COLUMNS = ("cores", "cpu_khz", "gpu_hz", "mem_hz", "batch_size", "time_ms", "power_w")
_KNOB_UNITS = np.array([1.0, 1e3, 1e6, 1e6])
"""Cores as they are; kHz and Hz to MHz."""
_KINDS = ("train", "infer")


def read_table(
    path: Path, device: str | None = None, workload: str | None = None, batch_size: int | None = None
) -> ProfileTable:
    """Read a CSV with the columns ``COLUMNS``, one row per power mode (and batch size).

    Names default to the path: ``.../<device>/train/<workload>.csv``. A table with several batch sizes needs
    ``batch_size``. Rows that repeat a mode are replaced by their median. Raises ``BadInput`` for everything else.
    """
    raw = _bytes_of(path)
    numbers = _numbers(path, raw)
    at_batch = _one_batch_size(path, numbers, batch_size)
    knobs, step_s, power_w = _without_duplicates(at_batch)
    return ProfileTable(
        device or _device_of(path),
        workload or path.stem,
        int(at_batch[0, 4]),
        Modes(knobs),
        step_s,
        power_w,
        hashlib.sha256(raw).hexdigest(),
        str(path),
        duplicates=len(at_batch) - len(knobs),
    )


def _bytes_of(path: Path) -> bytes:
    if not path.exists():
        raise BadInput(str(path), "no such file", "the path of a measured table (CSV)")
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(str(path), f"a file that cannot be read ({error.strerror})", "a readable CSV file") from error


def _numbers(path: Path, raw: bytes) -> Floats:
    """All rows as numbers in the order of ``COLUMNS``, shape (n, 7)."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(str(path), f"bytes that are not text (at {error.start})", "a CSV file in UTF-8") from error
    reader = csv.DictReader(io.StringIO(text, newline=""))
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise BadInput(str(path), f"no column {', '.join(missing)}", f"columns {','.join(COLUMNS)}")
    try:
        rows = [[_number(path, reader.line_num, name, row[name]) for name in COLUMNS] for row in reader]
    except csv.Error as error:
        raise BadInput(f"{path}: line {reader.line_num}", f"a line that is not CSV ({error})", "a CSV file") from error
    if not rows:
        raise BadInput(str(path), "no rows", "at least one row per power mode")
    return np.array(rows, dtype=np.float64)


def _number(path: Path, line: int, name: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    whole = name not in ("cores", "batch_size") or value == round(value if math.isfinite(value) else 0.5)
    if not (math.isfinite(value) and value > 0 and whole):
        right = "a whole number above 0" if name in ("cores", "batch_size") else "a number above 0"
        raise BadInput(f"{path}: line {line}, {name}", repr(text or ""), right)
    return value


def _one_batch_size(path: Path, numbers: Floats, batch_size: int | None) -> Floats:
    known = sorted({int(b) for b in numbers[:, 4]})
    listed = ", ".join(map(str, known))
    if batch_size is None:
        if len(known) > 1:
            raise BadInput(str(path), f"batch sizes {listed}", "choose one with --batch-size")
        return numbers
    if batch_size not in known:
        raise BadInput(f"{path}: batch size", str(batch_size), f"known: {listed}")
    chosen: Floats = numbers[numbers[:, 4] == batch_size]
    return chosen


def _without_duplicates(numbers: Floats) -> tuple[Floats, Floats, Floats]:
    """Knobs in MHz (n, 4), seconds and watts (n,); rows of one mode become their median, in order of first sight."""
    knobs, first, which = np.unique(numbers[:, :4] / _KNOB_UNITS, axis=0, return_index=True, return_inverse=True)
    which = which.reshape(-1)
    seconds, watts = numbers[:, 5] / 1e3, numbers[:, 6].copy()
    if len(knobs) == len(numbers):
        return numbers[:, :4] / _KNOB_UNITS, seconds, watts
    order = np.argsort(first)
    groups = [which == group for group in order]
    step_s = np.array([np.median(seconds[rows]) for rows in groups], dtype=np.float64)
    power_w = np.array([np.median(watts[rows]) for rows in groups], dtype=np.float64)
    return knobs[order], step_s, power_w


def _device_of(path: Path) -> str:
    folder = path.resolve().parent
    return folder.parent.name if folder.name in _KINDS else folder.name
