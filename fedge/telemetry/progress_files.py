"""Progress of boards as one small file per board: written by the worker process, read by whatever displays it."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import cast, get_args

from fedge.telemetry.live_records import ActivityState, BoardProgress
from fedge.telemetry.strict_json import (
    BOARD,
    MalformedJson,
    NumberRange,
    check_fields,
    check_int,
    check_number,
    check_optional_number,
    check_pattern,
    check_text,
    parse_json,
)

SUFFIX = ".json"
MAX_STATEMENT_BYTES = 8192
"""Upper limit of a progress file in bytes; a larger one is ignored."""
FOLDERS = 16
"""Number of folders whose last readings a process caches."""
STATES = get_args(ActivityState)
NAMES = tuple(each.name for each in dataclasses.fields(BoardProgress))
UNIX_S = NumberRange(0.0, 4e10)
"""Unix time, up to the year 3237: milliseconds mistaken for seconds are beyond it."""
POWER_W = NumberRange(-100.0, 5000.0)
"""Sensors read slightly below zero when no current flows; no board draws kilowatts."""
TEMPERATURE_C = NumberRange(-100.0, 300.0)
MOST_STEPS = 10**12
LONGEST_NAME, LONGEST_ERROR = 128, 1000

FileStamp = tuple[int, int, int]
"""A file's inode, size and modification time in ns: a change means a new report."""


def write_progress(folder: Path, progress: BoardProgress) -> None:
    """Replace a board's progress file atomically.

    Raises:
        OSError: The file cannot be written.
        MalformedJson: The board's name is not a valid file name.
    """
    board = check_pattern(progress.board, "board", BOARD)
    unfinished = folder / f".{board}.{os.getpid()}.{threading.get_native_id()}"
    data = json.dumps(dataclasses.asdict(progress), separators=(",", ":"), allow_nan=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(data, encoding="utf-8")
        unfinished.replace(folder / f"{board}{SUFFIX}")
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def read_progress(folder: Path) -> dict[str, BoardProgress]:
    """Read the last report of every board, by name; invalid files are skipped.

    Only files that changed since the last call are read.
    """
    with _turn:
        before = _known.pop(folder, {})
        now = {name: _read_if_changed(before.get(name), path, stamp) for name, path, stamp in _list_statements(folder)}
        _known[folder] = now
        while len(_known) > FOLDERS:
            _known.popitem(last=False)
    return {board: said for board, (_, said) in now.items() if said is not None}


def to_json(progress: BoardProgress) -> dict[str, object]:
    """Return the progress as JSON values."""
    return dataclasses.asdict(progress)


def from_json(value: object) -> BoardProgress:
    """Restore and validate a progress from a JSON value.

    Raises:
        MalformedJson: A field is missing, of the wrong type or out of range.
    """
    said = check_fields(value, "progress", ("board", "at_s", "state"), NAMES)
    return BoardProgress(
        board=check_pattern(said["board"], "board", BOARD),
        at_s=check_number(said["at_s"], "at_s", UNIX_S),
        state=_parse_activity(said["state"]),
        device=check_text(said.get("device", ""), "device", LONGEST_NAME),
        run=check_text(said.get("run", ""), "run", LONGEST_NAME),
        round=check_int(said.get("round", 0), "round", 0, 10**9),
        steps=check_int(said.get("steps", 0), "steps", 0, MOST_STEPS),
        steps_done=check_int(said.get("steps_done", 0), "steps_done", 0, MOST_STEPS),
        mode=check_text(said.get("mode", ""), "mode", LONGEST_NAME),
        power_w=check_optional_number(said.get("power_w"), "power_w", POWER_W),
        temperature_c=check_optional_number(said.get("temperature_c"), "temperature_c", TEMPERATURE_C),
        error=check_text(said.get("error", ""), "error", LONGEST_ERROR),
    )


def _parse_activity(value: object) -> ActivityState:
    state = check_text(value, "state", LONGEST_NAME)
    if state not in STATES:
        raise MalformedJson(f"state: got {state!r}; known: {', '.join(STATES)}")
    return cast("ActivityState", state)


_CachedStatements = dict[str, tuple[FileStamp, BoardProgress | None]]
_known: OrderedDict[Path, _CachedStatements] = OrderedDict()
_turn = threading.Lock()


def _list_statements(folder: Path) -> Iterator[tuple[str, str, FileStamp]]:
    """Yield board, path and stamp of every progress file, in the order of the boards."""
    try:
        found = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in found:
        board = entry.name.removesuffix(SUFFIX)
        if entry.name.endswith(SUFFIX) and BOARD.fullmatch(board):
            try:
                there = entry.stat()
            except OSError:  # gone meanwhile
                continue
            yield board, entry.path, (there.st_ino, there.st_size, there.st_mtime_ns)


def _read_if_changed(
    before: tuple[FileStamp, BoardProgress | None] | None, path: str, stamp: FileStamp
) -> tuple[FileStamp, BoardProgress | None]:
    if before is not None and before[0] == stamp:
        return before
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123  of a thousand files a Path takes as long as reading
            said = from_json(parse_json(file.read(MAX_STATEMENT_BYTES)))
    except (OSError, MalformedJson):
        return stamp, None
    return stamp, said if f"{said.board}{SUFFIX}" == os.path.basename(path) else None  # noqa: PTH119  as above
