"""Progress of boards as one small file per board: written by the worker process, read by whatever displays it."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from fedge.json_reader import MalformedJson
from fedge.strict_json import BOARD, decode_json, validate_json
from fedge.telemetry.live_records import BoardName, BoardProgress

SUFFIX = ".json"
MAX_FILE_BYTES = 8192
"""Upper limit of a progress file in bytes; a larger one is ignored."""
FOLDERS = 16
"""Number of folders whose last readings a process caches."""

FileStamp = tuple[int, int, int]
"""A file's inode, size and modification time in ns: a change means a new report."""
_CachedReport = tuple[FileStamp, BoardProgress | None]
_cache: OrderedDict[Path, dict[str, _CachedReport]] = OrderedDict()
_turn = threading.Lock()


def write_progress(folder: Path, progress: BoardProgress) -> None:
    """Replace a board's progress file atomically.

    Raises:
        OSError: The file cannot be written.
        MalformedJson: The board's name is not a valid file name.
    """
    board = validate_json(progress.board, BoardName, "board")
    data = json.dumps(dataclasses.asdict(progress), separators=(",", ":"), allow_nan=False)
    # Without ``atomic_files``: emulated rounds take milliseconds, and no report is worth waiting for the disk.
    part = folder / f".{board}.{os.getpid()}.{threading.get_native_id()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part.write_text(data, encoding="utf-8")
        part.replace(folder / f"{board}{SUFFIX}")
    except OSError:
        part.unlink(missing_ok=True)
        raise


def read_progress(folder: Path) -> dict[str, BoardProgress]:
    """Read the last report of every board, by name; invalid files are skipped.

    Only files that changed since the last call are read.
    """
    with _turn:
        before = _cache.pop(folder, {})
        now = {name: _read_if_changed(before.get(name), path, stamp) for name, path, stamp in _list_files(folder)}
        _cache[folder] = now
        while len(_cache) > FOLDERS:
            _cache.popitem(last=False)
    return {board: progress for board, (_, progress) in now.items() if progress is not None}


def _list_files(folder: Path) -> Iterator[tuple[str, str, FileStamp]]:
    """Yield board, path and stamp of every progress file, in the order of the boards."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        board = entry.name.removesuffix(SUFFIX)
        if entry.name.endswith(SUFFIX) and BOARD.fullmatch(board):
            try:
                status = entry.stat()
            except OSError:  # gone meanwhile
                continue
            yield board, entry.path, (status.st_ino, status.st_size, status.st_mtime_ns)


def _read_if_changed(before: _CachedReport | None, path: str, stamp: FileStamp) -> _CachedReport:
    if before is not None and before[0] == stamp:
        return before
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123  of a thousand files a Path takes as long as reading
            progress = decode_json(file.read(MAX_FILE_BYTES), BoardProgress, "progress")
    except (OSError, MalformedJson):
        return stamp, None
    return stamp, progress if f"{progress.board}{SUFFIX}" == os.path.basename(path) else None  # noqa: PTH119  as above
