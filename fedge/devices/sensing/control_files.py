"""Control files that are read repeatedly: kept open and read from the start, which is faster than reopening."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from fedge.powerd.machine import Machine

MAX_ATTRIBUTE_BYTES = 4096
"""Maximum size of a sysfs attribute: one page."""


class ControlFile:
    """A file that is opened at the first read, and opened again if it was removed or replaced.

    Args:
        plain: True for an ordinary file, which can still be read after it was removed, where sysfs fails with ENODEV.
    """

    def __init__(self, path: Path, plain: bool) -> None:
        self._path, self._plain = str(path), plain
        self._file: int | None = None

    def __del__(self) -> None:
        self.close()

    def read(self) -> bytes:
        """Read the first page of the file; raises ``OSError``."""
        if self._file is None:
            return self._reopen()
        try:
            text = os.pread(self._file, MAX_ATTRIBUTE_BYTES, 0)
        except BlockingIOError:  # EAGAIN: the sensor is suspended, but the file is still valid
            raise
        except OSError:  # ENODEV: the driver was rebound, or a core was switched off and on
            return self._reopen()
        return self._reopen() if self._plain and not os.fstat(self._file).st_nlink else text

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _reopen(self) -> bytes:
        self.close()
        self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self._file, MAX_ATTRIBUTE_BYTES, 0)


class ControlFiles:
    """The open files of a sensor."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._held: list[ControlFile] = []

    def number_reader(self, path: str) -> Callable[[], float]:
        """Return a fast function that reads a number.

        A machine that overrides ``read`` is asked every time.

        Returns:
            A function that raises ``OSError`` if the file cannot be read and ``ValueError`` if it has no number.
        """
        if type(self._machine).read is not Machine.read:
            return lambda: float(self._machine.read(path))
        held = ControlFile(self._machine.path(path), plain=self._machine.root != "/")
        self._held.append(held)
        return lambda: float(held.read())

    def close(self) -> None:
        """Close all files."""
        for held in self._held:
            held.close()


def number_or_none(read: Callable[[], float]) -> float | None:
    """Return the result of ``read``, or None if the sensor cannot be read now."""
    try:
        return read()
    except (OSError, ValueError):
        return None


def text_or_none(machine: Machine, path: str) -> str | None:
    """Return the text of a file, or None if it cannot be read."""
    try:
        return machine.read(path)
    except OSError:
        return None
