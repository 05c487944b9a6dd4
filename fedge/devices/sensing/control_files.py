"""A control file that is read again and again: kept open and read from its start, which makes a look cheap."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from fedge.powerd.machine import Machine

MAX_ATTRIBUTE_BYTES = 4096
"""Bytes of a sysfs attribute: one page."""


class ControlFile:
    """One file, opened at the first look; a file that is gone or was replaced is opened again by its name.

    ``plain``: it is an ordinary file, which can still be read after it was removed, where sysfs says ENODEV.
    """

    def __init__(self, path: Path, plain: bool) -> None:
        self._path, self._plain = str(path), plain
        self._file: int | None = None

    def __del__(self) -> None:
        self.close()

    def read(self) -> bytes:
        """The file's first page as it is now; raises ``OSError``."""
        if self._file is None:
            return self._reopen()
        try:
            text = os.pread(self._file, MAX_ATTRIBUTE_BYTES, 0)
        except BlockingIOError:  # EAGAIN: the sensor is asleep, the file is still the right one
            raise
        except OSError:  # ENODEV: the driver was bound anew, or a core went off and on
            return self._reopen()
        return self._reopen() if self._plain and not os.fstat(self._file).st_nlink else text

    def close(self) -> None:
        """Give the file back; reading opens it again."""
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
        """A cheap way to read a number; the call raises ``OSError``, and ``ValueError`` for what is no number.

        A machine with a way of reading of its own is asked every time.
        """
        if type(self._machine).read is not Machine.read:
            return lambda: float(self._machine.read(path))
        held = ControlFile(self._machine.path(path), plain=self._machine.root != "/")
        self._held.append(held)
        return lambda: float(held.read())

    def close(self) -> None:
        """Give all files back."""
        for held in self._held:
            held.close()


def number_or_none(read: Callable[[], float]) -> float | None:
    """What ``read`` gives; None for a sensor that cannot be read now."""
    try:
        return read()
    except (OSError, ValueError):
        return None


def text_or_none(machine: Machine, path: str) -> str | None:
    """A file's text; None when it cannot be read."""
    try:
        return machine.read(path)
    except OSError:
        return None
