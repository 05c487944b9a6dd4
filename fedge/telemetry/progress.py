"""What boards are doing now, as one small file per board: told by whoever works, read by whoever shows it."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import cast, get_args

from fedge.telemetry.live import Progress, State
from fedge.telemetry.strict import BOARD, Malformed, Range, fields, matching, maybe, number, parsed, text, whole

SUFFIX = ".json"
LARGEST = 8192
"""Bytes of a statement; a file beyond it is no statement. Chosen by us."""
FOLDERS = 16
"""Of so many folders a process keeps what it read last."""
STATES = get_args(State)
NAMES = tuple(each.name for each in dataclasses.fields(Progress))
UNIX_S = Range(0.0, 4e10)
"""Unix time, to the year 3237: milliseconds taken for seconds are beyond it."""
POWER_W = Range(-100.0, 5000.0)
"""Sensors read a little below zero when nothing flows; no board takes kilowatts."""
TEMPERATURE_C = Range(-100.0, 300.0)
MOST_STEPS = 10**12
LONGEST_NAME, LONGEST_ERROR = 128, 1000

Stamp = tuple[int, int, int]
"""A file's inode, size and time of its last change: another one means another statement."""


def tell(folder: Path, progress: Progress) -> None:
    """Replace what ``progress.board`` told before; a reader sees the old or the new, never half. Raises ``OSError``.

    Raises ``Malformed`` for a board whose name is no file's name.
    """
    board = matching(progress.board, "board", BOARD)
    unfinished = folder / f".{board}.{os.getpid()}.{threading.get_native_id()}"
    data = json.dumps(dataclasses.asdict(progress), separators=(",", ":"), allow_nan=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(data, encoding="utf-8")
        unfinished.replace(folder / f"{board}{SUFFIX}")
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def told(folder: Path) -> dict[str, Progress]:
    """What every board told last, by its name; a statement that is broken, or of another board, is left out.

    Only files that changed since the last call are read.
    """
    with _turn:
        before = _known.pop(folder, {})
        now = {name: _again(before.get(name), path, stamp) for name, path, stamp in _statements(folder)}
        _known[folder] = now
        while len(_known) > FOLDERS:
            _known.popitem(last=False)
    return {board: said for board, (_, said) in now.items() if said is not None}


def to_json(progress: Progress) -> dict[str, object]:
    """The statement as JSON's own types."""
    return dataclasses.asdict(progress)


def from_json(value: object) -> Progress:
    """The statement behind a JSON value; raises ``Malformed``."""
    said = fields(value, "progress", ("board", "at_s", "state"), NAMES)
    return Progress(
        board=matching(said["board"], "board", BOARD),
        at_s=number(said["at_s"], "at_s", UNIX_S),
        state=_state(said["state"]),
        device=text(said.get("device", ""), "device", LONGEST_NAME),
        run=text(said.get("run", ""), "run", LONGEST_NAME),
        round=whole(said.get("round", 0), "round", 0, 10**9),
        steps=whole(said.get("steps", 0), "steps", 0, MOST_STEPS),
        steps_done=whole(said.get("steps_done", 0), "steps_done", 0, MOST_STEPS),
        mode=text(said.get("mode", ""), "mode", LONGEST_NAME),
        power_w=maybe(said.get("power_w"), "power_w", POWER_W),
        temperature_c=maybe(said.get("temperature_c"), "temperature_c", TEMPERATURE_C),
        error=text(said.get("error", ""), "error", LONGEST_ERROR),
    )


def _state(value: object) -> State:
    state = text(value, "state", LONGEST_NAME)
    if state not in STATES:
        raise Malformed(f"state: got {state!r}; known: {', '.join(STATES)}")
    return cast("State", state)


_Known = dict[str, tuple[Stamp, Progress | None]]
_known: OrderedDict[Path, _Known] = OrderedDict()
_turn = threading.Lock()


def _statements(folder: Path) -> Iterator[tuple[str, str, Stamp]]:
    """Board, path and stamp of every statement, in the order of their boards."""
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


def _again(before: tuple[Stamp, Progress | None] | None, path: str, stamp: Stamp) -> tuple[Stamp, Progress | None]:
    if before is not None and before[0] == stamp:
        return before
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123  of a thousand files a Path takes as long as reading
            said = from_json(parsed(file.read(LARGEST)))
    except (OSError, Malformed):
        return stamp, None
    return stamp, said if f"{said.board}{SUFFIX}" == os.path.basename(path) else None  # noqa: PTH119  as above
