"""One process at a time for a run or a store: a lock on a file that tells who has it, and ends with that process."""

from __future__ import annotations

import fcntl
import logging
import os
import weakref
from pathlib import Path

from fedge.errors import BadInput

logger = logging.getLogger(__name__)


class FileLock:
    """The lock on the file ``path``, held until ``release``, until this is forgotten, or until the process ends.

    ``what`` is locked, in the words of the message: ``BadInput`` when another one holds it, or where the file cannot be
    written. A file system that knows no locks is written to without one, with a warning.
    """

    def __init__(self, path: Path, what: str) -> None:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise BadInput(str(path), str(error.strerror), "a folder that this user may write to") from error
        self._end = weakref.finalize(self, os.close, fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(fd, 64, 0).decode("ascii", "replace").strip()
            self.release()
            got = f"{what} that process {owner or '(unknown)'} is writing"
            raise BadInput(str(path.parent), got, "one writer at a time: wait until it is done, or end it") from error
        except OSError as error:
            logger.warning("%s cannot be locked (%s): nothing keeps two writers apart", path, error.strerror)
        _write_owner(fd)

    def release(self) -> None:
        """Let others write; more than once does nothing."""
        self._end()


def _write_owner(fd: int) -> None:
    """For the message alone: a full disk may keep it from being said."""
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    except OSError:
        logger.debug("the lock's owner could not be written", exc_info=True)
