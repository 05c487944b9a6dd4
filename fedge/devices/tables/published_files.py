"""Import of the measurements published with BoFL and PowerTrain; pure once the files are read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from statistics import median
from typing import Any

from fedge.devices.tables.csv_sheet import CsvSheet, decode_text, float_or_nan, parse_sheet, read_bytes
from fedge.devices.tables.mode_table import ImportedRow, ImportedRows, ImportKey, count_named
from fedge.errors import BadInput
from fedge.json_reader import MalformedJson, parse_json

# BoFL's JSON (github hongpeng-guo/BoFL): clocks -> seconds and joules of one step -------------------------------------


BATCH_SIZES = {"cifar10": 32, "imagenet": 8, "imdb": 8}
"""Batch size by file name, as set in the repository's own profiling program."""
CORES = {"agx-xavier": 8, "tx2": 6}
"""Number of cores by board, which the file does not contain; the program switches all of them on."""
GPU_MHZ = {
    "agx-xavier": (
        *(114.75, 216.75, 318.75, 420.75, 522.75, 624.75, 675.75),
        *(828.75, 905.25, 1032.75, 1198.5, 1236.75, 1338.75, 1377.0),
    ),
    "tx2": (
        *(114.75, 216.75, 318.75, 420.75, 522.75, 624.75, 726.75),
        *(828.75, 930.75, 1032.75, 1134.75, 1236.75, 1300.5),
    ),
}
"""GPU clocks that were requested, by which the repository's two boards are distinguished."""
BOFL_LAYOUT = '{"CPU_KHZ,GPU_HZ,MEMORY_HZ": [seconds, joules], ...}'


def import_bofl_json(where: str, text: str, batch_size: int | None = None, cores: int | None = None) -> ImportedRows:
    """Import a file in the format ``BOFL_LAYOUT``.

    Power is energy over time. Energies are sums of rails (AGX Xavier) or the module's input (TX2), so they are not
    directly comparable with other tables. Without ``batch_size`` the file's name gives it, without ``cores`` the
    board's GPU clocks give them.

    Raises:
        BadInput: The format differs, or batch size or cores are unknown.
    """
    entries = _parse_entries(where, text)
    size = batch_size or BATCH_SIZES.get(PurePath(where).stem.casefold())
    if size is None:
        right = f"--batch-size: only {', '.join(BATCH_SIZES)} have a known one"
        raise BadInput(where, "a file that does not say its batch size", right)
    known_cores = cores or _infer_cores(where, entries)
    notes = [f"cores {known_cores}: the file does not say; all of the board's were on"]
    if batch_size is None:
        notes.append(f"batch size {size}: that of the program which wrote {PurePath(where).name}")
    rows, empty = [], []
    for name, (cpu_khz, gpu_hz, mem_hz, seconds, joules) in entries.items():
        if seconds > 0 and joules > 0:
            key = ImportKey(known_cores, cpu_khz=cpu_khz, gpu_hz=gpu_hz, mem_hz=mem_hz, batch_size=size)
            rows.append(ImportedRow(key, 1e3 * seconds, joules / seconds))
        else:
            empty.append(name)
    if empty:
        notes.append(f"{count_named(empty, 'mode')} without a time and an energy above 0: left out")
    return ImportedRows(where, rows, notes)


def _parse_entries(where: str, text: str) -> dict[str, tuple[float, float, float, float, float]]:
    try:
        content = parse_json(text)
    except MalformedJson as error:
        raise BadInput(where, f"text that is not JSON ({error})", BOFL_LAYOUT) from error
    if not isinstance(content, Mapping) or not content:
        raise BadInput(where, "JSON of another layout", BOFL_LAYOUT)
    return {name: _parse_entry(where, name, value) for name, value in content.items()}


def _parse_entry(where: str, name: str, value: Any) -> tuple[float, float, float, float, float]:
    try:
        cpu_khz, gpu_hz, mem_hz = (float(part) for part in name.split(","))
        seconds, joules = (float(part) for part in value)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadInput(f"{where}: {name[:60]!r}", "an entry of another layout", BOFL_LAYOUT) from error
    if not (all(math.isfinite(v) and v > 0 for v in (cpu_khz, gpu_hz, mem_hz)) and math.isfinite(seconds + joules)):
        raise BadInput(f"{where}: {name[:60]!r}", "numbers that are not finite or not above 0", BOFL_LAYOUT)
    return cpu_khz, gpu_hz, mem_hz, seconds, joules


def _infer_cores(where: str, entries: Mapping[str, tuple[float, ...]]) -> int:
    """Return the number of cores of the board that has all of the file's GPU clocks."""
    asked = {entry[1] / 1e6 for entry in entries.values()}
    fitting = [device for device, clocks in GPU_MHZ.items() if asked <= set(clocks)]
    if len(fitting) != 1:
        right = "--out BOARD/train/WORKLOAD.csv with a board of the catalogue, whose core count is taken"
        raise BadInput(where, "a file that does not say how many cores were on", right)
    return CORES[fitting[0]]


# PowerTrain's run folders and result tables (github kedar-1401/Dream-Lab) ---------------------------------------------


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
        raise BadInput(str(source), f"modes of {count_named(parents, 'folder')}", "one workload's folder")
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
        notes.append(f"{count_named(left_out, 'mode')}: left out")
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
        notes.append(f"{count_named(left_out, 'row')} without a mode, a time and a power: left out")
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
