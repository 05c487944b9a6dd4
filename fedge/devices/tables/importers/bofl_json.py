"""Import of BoFL's JSON (github hongpeng-guo/BoFL): clocks -> seconds and joules of one step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from fedge.devices.tables.importers import ImportedRow, ImportedRows, ImportKey, format_count
from fedge.errors import BadInput
from fedge.json_reader import MalformedJson, parse_json

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
LAYOUT = '{"CPU_KHZ,GPU_HZ,MEMORY_HZ": [seconds, joules], ...}'


def import_json(where: str, text: str, batch_size: int | None = None, cores: int | None = None) -> ImportedRows:
    """Import a file in the format ``LAYOUT``.

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
        notes.append(f"{format_count(empty, 'mode')} without a time and an energy above 0: left out")
    return ImportedRows(where, rows, notes)


def _parse_entries(where: str, text: str) -> dict[str, tuple[float, float, float, float, float]]:
    try:
        content = parse_json(text)
    except MalformedJson as error:
        raise BadInput(where, f"text that is not JSON ({error})", LAYOUT) from error
    if not isinstance(content, Mapping) or not content:
        raise BadInput(where, "JSON of another layout", LAYOUT)
    return {name: _parse_entry(where, name, value) for name, value in content.items()}


def _parse_entry(where: str, name: str, value: Any) -> tuple[float, float, float, float, float]:
    try:
        cpu_khz, gpu_hz, mem_hz = (float(part) for part in name.split(","))
        seconds, joules = (float(part) for part in value)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadInput(f"{where}: {name[:60]!r}", "an entry of another layout", LAYOUT) from error
    if not (all(math.isfinite(v) and v > 0 for v in (cpu_khz, gpu_hz, mem_hz)) and math.isfinite(seconds + joules)):
        raise BadInput(f"{where}: {name[:60]!r}", "numbers that are not finite or not above 0", LAYOUT)
    return cpu_khz, gpu_hz, mem_hz, seconds, joules


def _infer_cores(where: str, entries: Mapping[str, tuple[float, ...]]) -> int:
    """Return the number of cores of the board that has all of the file's GPU clocks."""
    asked = {entry[1] / 1e6 for entry in entries.values()}
    fitting = [device for device, clocks in GPU_MHZ.items() if asked <= set(clocks)]
    if len(fitting) != 1:
        right = "--out BOARD/train/WORKLOAD.csv with a board of the catalogue, whose core count is taken"
        raise BadInput(where, "a file that does not say how many cores were on", right)
    return CORES[fitting[0]]
