"""Import of PowerTrain's measurements (github kedar-1401/Dream-Lab): a folder of files per mode, or a result table."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from fedge.devices.tables.csv_sheet import CsvSheet, decode_text, float_or_nan, parse_sheet, read_bytes
from fedge.devices.tables.importers import ImportedRow, ImportedRows, ImportKey, format_count
from fedge.errors import BadInput

BATCH_SIZE = 16
"""Batch size of all training runs in the paper; the files do not contain it."""
BATCH_NOTE = f"batch size {BATCH_SIZE}: the paper's; the files do not say"
LAST_MINIBATCHES = 40
"""Number of last steps of a mode that count, as in the paper; before them, power has not settled."""
FOLDER_PATTERN = re.compile(r"pm_(\d{1,3})_(\d{1,12})_(\d{1,12})_(\d{1,12})", re.ASCII)
"""Folder name of a mode: cores, CPU kHz, GPU Hz, memory Hz."""
RESULT_COLUMNS = ("powermode", "observed_time", "observed_power")
LAYOUT = "a folder with pm_CORES_KHZ_HZ_HZ folders in it, or a CSV with the columns " + ", ".join(RESULT_COLUMNS)
MAX_STEP_MS = 600_000.0
"""A longer step time must be that of an epoch, which some of the repository's result tables contain."""


@dataclass(frozen=True, slots=True)
class ModeFiles:
    """Files of one mode: the folder's name, and their text by kind (``epoch_stats``, ``tegrastats`` and so on)."""

    name: str
    text: Mapping[str, str]


def read_source(source: Path) -> Iterator[ModeFiles] | str:
    """Read measurements.

    Returns:
        The files of each mode, read lazily, or the text of the result table.

    Raises:
        BadInput: The source is neither.
    """
    if not source.is_dir():
        return decode_text(str(source), read_bytes(source, LAYOUT), LAYOUT)
    if FOLDER_PATTERN.fullmatch(source.name):
        return iter((_read_folder(source),))
    folders = sorted(path for path in source.rglob("pm_*") if path.is_dir() and FOLDER_PATTERN.fullmatch(path.name))
    if not folders:
        raise BadInput(str(source), "no pm_... folder", LAYOUT)
    parents = sorted({str(folder.parent) for folder in folders})
    if len(parents) > 1:
        raise BadInput(str(source), f"modes of {format_count(parents, 'folder')}", "one workload's folder")
    return map(_read_folder, folders)


def import_folders(where: str, modes: Iterable[ModeFiles], batch_size: int | None = None) -> ImportedRows:
    """Build one row per mode folder: medians over the last ``LAST_MINIBATCHES`` steps, never including the first.

    Step time is ``epochtime_ms`` of ``*_epoch_stats.csv`` (one line per step), or the sum of fetch and compute times in
    ``*_fetch.csv`` and ``*_compute.csv``. Power is ``power cur`` of ``*_tegrastats.csv`` (mW, jtop's total) between the
    ``log_time`` of these steps. Modes with incomplete files are left out with a note.

    Raises:
        BadInput: No mode has a time and a power.
    """
    rows, left_out = [], []
    size = batch_size or BATCH_SIZE
    for mode in modes:
        try:
            rows.append(_import_mode(mode, size))
        except BadInput as error:
            left_out.append(str(error))
    if not rows:
        raise BadInput(where, f"no mode with a time and a power ({left_out[0] if left_out else 'none at all'})", LAYOUT)
    notes = [BATCH_NOTE] if batch_size is None else []
    if left_out:
        notes.append(f"{format_count(left_out, 'mode')}: left out")
    return ImportedRows(where, rows, notes)


def import_results(where: str, text: str, batch_size: int | None = None) -> ImportedRows:
    """Import the observed columns of a result table (``RESULT_COLUMNS``, ms per step and watts), not its predictions.

    Raises:
        BadInput: Columns are missing, no row is usable, or times are those of epochs.
    """
    sheet = parse_sheet(where, text, RESULT_COLUMNS)
    rows, left_out = [], []
    for row in sheet.rows:
        mode = FOLDER_PATTERN.fullmatch("pm_" + row.cells["powermode"])
        time_ms, power_w = (float_or_nan(row.cells[name]) for name in RESULT_COLUMNS[1:])
        if not mode or not all(math.isfinite(v) and v > 0 for v in (time_ms, power_w)):
            left_out.append(f"line {row.line}")
            continue
        rows.append(_build_row(mode, batch_size or BATCH_SIZE, time_ms, power_w))
    slowest_ms = max((row.time_ms for row in rows), default=0.0)
    if slowest_ms > MAX_STEP_MS:
        right = "milliseconds of one minibatch; the column looks like those of an epoch"
        raise BadInput(f"{where}: observed_time", f"{slowest_ms:g} ms as the slowest", right)
    notes = [BATCH_NOTE] if batch_size is None else []
    if left_out:
        notes.append(f"{format_count(left_out, 'row')} without a mode, a time and a power: left out")
    return ImportedRows(where, rows, notes)


def _read_folder(folder: Path) -> ModeFiles:
    """Read the files that are needed: fetch and compute only if their sum is not given."""
    text: dict[str, str] = {}
    for kind in ("tegrastats", "epoch_stats", "fetch", "compute"):
        if "epoch_stats" in text:
            break
        paths = sorted(folder.glob(f"*_{kind}.csv"))
        if len(paths) > 1:
            raise BadInput(str(folder), f"{len(paths)} files *_{kind}.csv", "one run's files")
        if paths:
            text[kind] = read_bytes(paths[0], LAYOUT).decode("utf-8-sig", errors="replace")
    return ModeFiles(folder.name, text)


def _import_mode(mode: ModeFiles, batch_size: int) -> ImportedRow:
    name = FOLDER_PATTERN.fullmatch(mode.name)
    if not name:
        raise BadInput(mode.name, "a folder of another name", "pm_CORES_KHZ_HZ_HZ")
    timed = [(time_ms, at_s) for time_ms, at_s in _iterate_minibatches(mode) if time_ms > 0]
    minibatches = timed[1:][-LAST_MINIBATCHES:]
    if not minibatches:
        raise BadInput(mode.name, "no minibatch after the first", "a run of several")
    times_ms = [time_ms for time_ms, _ in minibatches]
    start_s = minibatches[0][1] - minibatches[0][0] / 1e3
    power = _parse_file(mode, "tegrastats", ("power cur", "log_time"))
    samples = _iterate_finite_rows(power, ("power cur", "log_time"))
    watts = [mw / 1e3 for mw, at_s in samples if start_s <= at_s <= minibatches[-1][1] and mw > 0]
    if not watts:
        raise BadInput(mode.name, "no power sample during its minibatches", "at least one")
    return _build_row(name, batch_size, median(times_ms), median(watts))


def _iterate_minibatches(mode: ModeFiles) -> Iterator[tuple[float, float]]:
    """Yield step time in milliseconds and the log's clock at the end of every step."""
    if "epoch_stats" in mode.text:
        whole = ("epochtime_ms", "log_time")
        for time_ms, at_s in _iterate_finite_rows(_parse_file(mode, "epoch_stats", whole), whole):
            yield time_ms, at_s
        return
    fetch = ("epoch", "batch_idx", "fetchtime_ms")
    compute = ("epoch", "batch_idx", "computetime_ms", "log_time")
    fetched = {(epoch, i): ms for epoch, i, ms in _iterate_finite_rows(_parse_file(mode, "fetch", fetch), fetch)}
    for epoch, i, ms, at_s in _iterate_finite_rows(_parse_file(mode, "compute", compute), compute):
        if (epoch, i) in fetched:
            yield fetched[epoch, i] + ms, at_s


def _parse_file(mode: ModeFiles, kind: str, columns: Sequence[str]) -> CsvSheet:
    if kind not in mode.text:
        raise BadInput(mode.name, f"no *_{kind}.csv", LAYOUT)
    return parse_sheet(f"{mode.name}: *_{kind}.csv", mode.text[kind], columns)


def _iterate_finite_rows(sheet: CsvSheet, columns: Sequence[str]) -> Iterator[list[float]]:
    """Yield the rows with finite numbers only; the logs also contain ``null`` and lines of text."""
    for row in sheet.rows:
        values = [float_or_nan(row.cells[column]) for column in columns]
        if all(map(math.isfinite, values)):
            yield values


def _build_row(mode: re.Match[str], batch_size: int, time_ms: float, power_w: float) -> ImportedRow:
    cores, cpu_khz, gpu_hz, mem_hz = map(int, mode.groups())
    key = ImportKey(cores, cpu_khz=cpu_khz, gpu_hz=gpu_hz, mem_hz=mem_hz, batch_size=batch_size)
    return ImportedRow(key, time_ms, power_w)
