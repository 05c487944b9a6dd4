"""Journals: JSON Lines files with a single writer, which syncs every line to disk before it continues."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from fedge.atomic_files import try_lock
from fedge.errors import BadInput, refuse_unwritable
from fedge.json_reader import MalformedJson, parse_json

RETRY_ADVICE = "make room, then give the same command again"


class JournalState(Protocol):
    """The state that the lines of a journal add up to."""

    def apply_event(self, event: Mapping[str, Any]) -> None:
        """Apply a line; raises KeyError, TypeError or ValueError if it is no line of such a journal."""


P = TypeVar("P", bound=JournalState)


class JsonLines(Generic[P]):
    """An open journal with a single writer, which syncs every line to disk before it continues.

    A killed process leaves at most one incomplete line, the last. It is ignored on reading and cut off before the next
    line is written. What the lines came to is ``past``.
    """

    def __init__(self, path: Path, command: str, replay: Callable[[Path, bytes], tuple[P, int]]) -> None:
        """Open or create the journal, lock it, replay it, and cut off an incomplete last line.

        Args:
            path: The journal.
            command: Name of the command that writes such journals, for the error message.
            replay: Returns the state after the file's content, and the number of bytes in complete lines.

        Raises:
            BadInput: The path cannot be written, or another process holds the lock; and whatever ``replay`` raises.
        """
        self.path, self._file = path, _open_locked(path, command)
        try:
            self.past, whole = replay(path, path.read_bytes())
            os.ftruncate(self._file, whole)
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._file)

    def _write_event(self, event: Mapping[str, Any]) -> None:
        self._append(event)
        self.past.apply_event(event)

    def _append(self, event: Mapping[str, Any]) -> None:
        """Append a line and sync it to disk.

        Raises:
            BadInput: If the file cannot be written.
        """
        line = (json.dumps(event) + "\n").encode()
        with refuse_unwritable(self.path, RETRY_ADVICE):
            while line:
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)


def _open_locked(path: Path, command: str) -> int:
    """Open ``path`` for appending with an exclusive lock, which closing the file descriptor releases."""
    with refuse_unwritable(path, "another folder"):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
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


def replay_lines(path: Path, raw: bytes, take: Callable[[Any], None], right: str) -> int:
    """Call ``take`` with the content of every complete line; return the number of bytes in them.

    Args:
        path: Name of the file for error messages.
        raw: The file's content.
        take: Receives the parsed content; may raise what a wrong value raises.
        right: Advice for the user if a line is invalid.

    Raises:
        BadInput: A line is not JSON, or ``take`` rejects it.
    """
    whole = raw.rfind(b"\n") + 1
    for number, line in enumerate(raw[:whole].splitlines(), start=1):
        try:
            take(parse_json(line))
        except (MalformedJson, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise BadInput(f"{path}: line {number}", "a line that makes no sense", right) from error
    return whole
