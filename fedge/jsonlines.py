"""A JSON Lines file with a single writer that syncs every line to disk before continuing.

A killed process leaves at most one incomplete line, the last. It is ignored on reading and cut off before the next
line is written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from fedge.errors import BadInput
from fedge.file_lock import try_lock
from fedge.json_reader import MalformedJson, parse_json

RETRY_ADVICE = "make room, then give the same command again"


class JsonLines:
    """An open journal that only one process writes."""

    def __init__(self, path: Path, file: int) -> None:
        self.path, self._file = path, file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._file)

    def _append(self, event: Mapping[str, Any]) -> None:
        """Append a line and sync it to disk.

        Raises:
            BadInput: If the file cannot be written.
        """
        line = (json.dumps(event) + "\n").encode()
        try:
            while line:
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)
        except OSError as error:
            raise BadInput(str(self.path), f"a file that cannot be written ({error.strerror})", RETRY_ADVICE) from error


def open_locked(path: Path, command: str) -> int:
    """Open ``path`` for appending with an exclusive lock, creating it if necessary.

    Args:
        path: The journal.
        command: Name of the command that writes such journals, for the error message.

    Returns:
        The file descriptor; closing it releases the lock.

    Raises:
        BadInput: If the path cannot be written or another process holds the lock.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise BadInput(str(path), f"a file that cannot be written ({error.strerror})", "another folder") from error
    try:
        is_own = try_lock(file)
    except OSError as error:
        os.close(file)
        raise BadInput(str(path), f"a file that cannot be locked ({error.strerror})", "another folder") from error
    if not is_own:
        os.close(file)
        right = "wait until it is done, or write elsewhere"
        raise BadInput(str(path), f"a journal that another `{command}` writes", right)
    return file


def replay_lines(path: Path, raw: bytes, take: Callable[[int, Any], None], right: str) -> int:
    """Call ``take`` for every complete line.

    Args:
        path: Name of the file for error messages.
        raw: The file's content.
        take: Receives the line number (from 1) and the parsed content; may raise what a wrong value raises.
        right: Advice for the user if a line is invalid.

    Returns:
        Number of bytes in the complete lines.

    Raises:
        BadInput: If a line is not JSON or ``take`` rejects it.
    """
    whole = raw.rfind(b"\n") + 1
    for number, line in enumerate(raw[:whole].splitlines(), start=1):
        try:
            take(number, parse_json(line))
        except (MalformedJson, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise BadInput(f"{path}: line {number}", "a line that makes no sense", right) from error
    return whole
