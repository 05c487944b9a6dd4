"""A file of JSON lines with one writer: each line is on the disk before the writer goes on, a torn end is cut off.

A process that is killed leaves at most one line that is not whole: the last. It is dropped on reading, and cut off
before the next line is written.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from fedge.errors import BadInput

RETRY_ADVICE = "make room, then give the same command again"


class JsonLines:
    """An open journal; only one process writes it."""

    def __init__(self, path: Path, file: int) -> None:
        self.path, self._file = path, file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._file)

    def _append(self, event: Mapping[str, Any]) -> None:
        """Put a line on the disk; raises ``BadInput`` where that cannot be done."""
        line = (json.dumps(event) + "\n").encode()
        try:
            while line:
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)
        except OSError as error:
            raise BadInput(str(self.path), f"a file that cannot be written ({error.strerror})", RETRY_ADVICE) from error


def open_locked(path: Path, command: str) -> int:
    """The file at ``path``, made where there is none, for this process alone.

    Raises ``BadInput`` for a path that cannot be written, and for a file that another ``command`` writes.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise BadInput(str(path), f"a file that cannot be written ({error.strerror})", "--out in a folder") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        right = "wait until it is done, or give another --out"
        raise BadInput(str(path), f"a journal that another `{command}` writes", right) from error
    return file


def replay_lines(path: Path, raw: bytes, take: Callable[[int, Any], None], right: str) -> int:
    """Give ``take`` the number (from 1) and the content of every whole line; returns how many bytes these are.

    Raises ``BadInput`` with ``right`` for a line that is no JSON or of which ``take`` can make no sense
    (``ValueError``, ``KeyError``, ``TypeError``).
    """
    whole = raw.rfind(b"\n") + 1
    for number, line in enumerate(raw[:whole].splitlines(), start=1):
        try:
            take(number, json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(f"{path}: line {number}", "a line that makes no sense", right) from error
    return whole


def sync_folder(folder: Path) -> None:
    """A new file's name is on the disk only when its folder is."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
