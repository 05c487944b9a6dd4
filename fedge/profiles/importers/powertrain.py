"""Imports PowerTrain's measurements (github kedar-1401/Dream-Lab): a folder of files per mode, or a result table."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from fedge.errors import BadInput
from fedge.profiles.importers import Imported, Seen, counted, gathered
from fedge.profiles.sheet import Sheet, bytes_of, sheet_of, text_of

BATCH_SIZE = 16
"""The files do not say; the paper's training runs all have it."""
BATCH_NOTE = f"batch size {BATCH_SIZE}: the paper's; the files do not say"
KEPT = 40
"""The last so many minibatches of a mode count, as in the paper; before them the power settles."""
FOLDER = re.compile(r"pm_(\d{1,3})_(\d{1,12})_(\d{1,12})_(\d{1,12})", re.ASCII)
"""A mode's folder: cores, CPU kHz, GPU Hz, memory Hz."""
RESULTS = ("powermode", "observed_time", "observed_power")
LAYOUT = "a folder with pm_CORES_KHZ_HZ_HZ folders in it, or a CSV with the columns " + ", ".join(RESULTS)
LONGEST_MS = 600_000.0
"""A minibatch longer than this is a whole epoch; some of the repository's result tables hold those."""


@dataclass(frozen=True, slots=True)
class ModeFiles:
    """One mode's folder: its name, and its files' text by what they hold (``epoch_stats``, ``tegrastats`` ...)."""

    name: str
    text: Mapping[str, str]


def read_source(source: Path) -> Iterator[ModeFiles] | str:
    """The mode folders below ``source``, read one by one, or a result table's text; ``BadInput`` for anything else."""
    if not source.is_dir():
        return text_of(str(source), bytes_of(source, LAYOUT), LAYOUT)
    if FOLDER.fullmatch(source.name):
        return iter((_files(source),))
    folders = sorted(path for path in source.rglob("pm_*") if path.is_dir() and FOLDER.fullmatch(path.name))
    if not folders:
        raise BadInput(str(source), "no pm_... folder", LAYOUT)
    parents = sorted({str(folder.parent) for folder in folders})
    if len(parents) > 1:
        raise BadInput(str(source), f"modes of {counted(parents, 'folder')}", "one workload's folder")
    return map(_files, folders)


def from_folders(
    where: str, modes: Iterable[ModeFiles], device: str, workload: str, batch_size: int | None = None
) -> Imported:
    """One row per mode folder: medians over the last ``KEPT`` minibatches, the first never among them.

    Time is ``epochtime_ms`` of ``*_epoch_stats.csv`` (one line per minibatch), or fetch plus compute of
    ``*_fetch.csv`` and ``*_compute.csv``; power is ``power cur`` (mW, the module's total as jtop makes it) of
    ``*_tegrastats.csv`` meanwhile, by ``log_time``. Modes with incomplete files are left out and noted.
    """
    seen, left_out = [], []
    size = batch_size or BATCH_SIZE
    for mode in modes:
        try:
            seen.append(_measured(mode, size))
        except BadInput as error:
            left_out.append(str(error))
    if not seen:
        raise BadInput(where, f"no mode with a time and a power ({left_out[0] if left_out else 'none at all'})", LAYOUT)
    notes = [BATCH_NOTE] if batch_size is None else []
    if left_out:
        notes.append(f"{counted(left_out, 'mode')}: left out")
    return gathered(where, seen, device, workload, notes)


def from_results(where: str, text: str, device: str, workload: str, batch_size: int | None = None) -> Imported:
    """The observed columns of a result table (``RESULTS``): ms per minibatch and watts; predictions are ignored."""
    sheet = sheet_of(where, text, RESULTS)
    seen, left_out = [], []
    for row in sheet.rows:
        mode = FOLDER.fullmatch("pm_" + row.cells["powermode"])
        time_ms, power_w = _plain(row.cells["observed_time"]), _plain(row.cells["observed_power"])
        if not mode or not all(math.isfinite(v) and v > 0 for v in (time_ms, power_w)):
            left_out.append(f"line {row.line}")
            continue
        seen.append(_row(mode, batch_size or BATCH_SIZE, time_ms, power_w))
    slowest_ms = max((row.time_ms for row in seen), default=0.0)
    if slowest_ms > LONGEST_MS:
        right = "milliseconds of one minibatch; the column looks like those of an epoch"
        raise BadInput(f"{where}: observed_time", f"{slowest_ms:g} ms as the slowest", right)
    notes = [BATCH_NOTE] if batch_size is None else []
    if left_out:
        notes.append(f"{counted(left_out, 'row')} without a mode, a time and a power: left out")
    return gathered(where, seen, device, workload, notes)


def _files(folder: Path) -> ModeFiles:
    """The kinds of files that matter; of fetch and compute only where the sum of both is not there."""
    text: dict[str, str] = {}
    for kind in ("tegrastats", "epoch_stats", "fetch", "compute"):
        if "epoch_stats" in text:
            break
        paths = sorted(folder.glob(f"*_{kind}.csv"))
        if len(paths) > 1:
            raise BadInput(str(folder), f"{len(paths)} files *_{kind}.csv", "one run's files")
        if paths:
            text[kind] = bytes_of(paths[0], LAYOUT).decode("utf-8-sig", errors="replace")
    return ModeFiles(folder.name, text)


def _measured(mode: ModeFiles, batch_size: int) -> Seen:
    name = FOLDER.fullmatch(mode.name)
    if not name:
        raise BadInput(mode.name, "a folder of another name", "pm_CORES_KHZ_HZ_HZ")
    minibatches = [(time_ms, at_s) for time_ms, at_s in _minibatches(mode) if time_ms > 0][1:][-KEPT:]
    if not minibatches:
        raise BadInput(mode.name, "no minibatch after the first", "a run of several")
    times_ms = [time_ms for time_ms, _ in minibatches]
    start_s = minibatches[0][1] - minibatches[0][0] / 1e3
    power = _sheet(mode, "tegrastats", ("power cur", "log_time"))
    samples = _numbers(power, ("power cur", "log_time"))
    watts = [mw / 1e3 for mw, at_s in samples if start_s <= at_s <= minibatches[-1][1] and mw > 0]
    if not watts:
        raise BadInput(mode.name, "no power sample during its minibatches", "at least one")
    return _row(name, batch_size, median(times_ms), median(watts))


def _minibatches(mode: ModeFiles) -> Iterator[tuple[float, float]]:
    """Milliseconds, and the log's clock at the end, of every minibatch."""
    if "epoch_stats" in mode.text:
        whole = ("epochtime_ms", "log_time")
        yield from ((time_ms, at_s) for time_ms, at_s in _numbers(_sheet(mode, "epoch_stats", whole), whole))
        return
    fetch = ("epoch", "batch_idx", "fetchtime_ms")
    compute = ("epoch", "batch_idx", "computetime_ms", "log_time")
    fetched = {(epoch, i): ms for epoch, i, ms in _numbers(_sheet(mode, "fetch", fetch), fetch)}
    for epoch, i, ms, at_s in _numbers(_sheet(mode, "compute", compute), compute):
        if (epoch, i) in fetched:
            yield fetched[epoch, i] + ms, at_s


def _sheet(mode: ModeFiles, kind: str, columns: Sequence[str]) -> Sheet:
    if kind not in mode.text:
        raise BadInput(mode.name, f"no *_{kind}.csv", LAYOUT)
    return sheet_of(f"{mode.name}: *_{kind}.csv", mode.text[kind], columns)


def _numbers(sheet: Sheet, columns: Sequence[str]) -> Iterator[list[float]]:
    """The rows whose cells are all finite numbers; the logs also hold ``null`` and lines of text."""
    for row in sheet.rows:
        values = [_plain(row.cells[column]) for column in columns]
        if all(map(math.isfinite, values)):
            yield values


def _plain(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _row(mode: re.Match[str], batch_size: int, time_ms: float, power_w: float) -> Seen:
    cores, cpu_khz, gpu_hz, mem_hz = mode.groups()
    return Seen(int(cores), float(cpu_khz), float(gpu_hz), float(mem_hz), batch_size, time_ms, power_w)
