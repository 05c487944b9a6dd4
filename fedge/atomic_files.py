"""Files that are replaced as a whole, so that a reader never sees a part, and locks between processes."""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedge.errors import BadInput


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path that becomes ``path`` at the end of the context, once its content is on the disk.

    The folder is created. After an error ``path`` is unchanged and the temporary file is gone.

    Raises:
        OSError: The file or its folder cannot be written; it names a file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}.part")
    try:
        yield part
        with part.open("rb") as handle:
            os.fsync(handle.fileno())
        part.replace(path)
    except OSError as error:
        if error.filename is None and error.errno is not None:  # of a write, as on a full disk
            error.filename = str(path)
        raise
    finally:
        part.unlink(missing_ok=True)


def probe_folder(folder: Path) -> None:
    """Write a file without a name to a folder, or to the nearest one above it that exists; nothing of it stays.

    Permissions alone do not tell: root ignores them, and some file systems take no files from anyone.

    Raises:
        OSError: Files cannot be written there, or one of the folders above is a file.
    """
    existing = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
    tempfile.TemporaryFile(dir=existing).close()


def write_text(path: Path, text: str) -> None:
    """Replace a file by UTF-8 text, with line ends as they are."""
    with replace_file(path) as part:
        part.write_text(text, encoding="utf-8", newline="")


def sync_folder(folder: Path) -> None:
    """Sync a folder, because a new file's name is on disk only after its folder has been synced."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def sync_tree(folder: Path) -> None:
    """Sync a folder with all files and folders in it."""
    for path in (*folder.rglob("*"), folder):
        _sync(path, os.O_RDONLY)


def _sync(path: Path, flags: int) -> None:
    opened = os.open(path, flags)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


# Locks ----------------------------------------------------------------------------------------------------------------


logger = logging.getLogger(__name__)

POLL_S = 0.1
"""Interval at which a lock that is waited for is tried."""


def try_lock(fd: int, *, shared: bool = False, wait_s: float = 0.0) -> bool:
    """Lock an open file until it is closed; return whether no other process holds it, or none after ``wait_s``.

    Raises:
        OSError: The file system has no locks.
    """
    end_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end_s:
                return False
            time.sleep(POLL_S)
        else:
            return True


class FileLock:
    """The lock on the file ``path``, held until ``release``, garbage collection or the end of the process.

    On a file system without locks a warning is logged and writing goes on without one.
    """

    def __init__(self, path: Path, what: str, wait_s: float = 0.0) -> None:
        """Take the lock.

        ``what`` names the locked thing in error texts, such as "a store".

        Raises:
            BadInput: Another process holds the lock for longer than ``wait_s``, or the file cannot be written.
        """
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise BadInput(str(path), str(error.strerror), "a folder that this user may write to") from error
        self._end = weakref.finalize(self, os.close, fd)
        try:
            is_own = try_lock(fd) or _wait_for_lock(fd, path, wait_s)
        except OSError as error:
            logger.warning("%s cannot be locked (%s): nothing keeps two writers apart", path, error.strerror)
            is_own = True
        if not is_own:
            got = f"{what} that process {_read_owner(fd)} is writing"
            self.release()
            raise BadInput(str(path.parent), got, "one writer at a time: wait until it is done, or end it")
        _write_owner(fd)

    def release(self) -> None:
        """Release the lock; further calls do nothing."""
        self._end()


def is_locked(path: Path) -> bool | None:
    """Return whether a process holds the lock on ``path``; None if nobody can tell, as on a file system without locks.

    A missing file is not locked.
    """
    try:
        with path.open("rb") as file:
            return not try_lock(file.fileno(), shared=True)
    except FileNotFoundError:
        return False
    except OSError:
        return None


def _wait_for_lock(fd: int, path: Path, wait_s: float) -> bool:
    """Try to lock an open file for ``wait_s`` seconds; return whether that succeeded."""
    if wait_s <= 0:
        return False
    logger.warning("%s: process %s is still writing; waiting up to %g s for its end", path, _read_owner(fd), wait_s)
    return try_lock(fd, wait_s=wait_s)


def _read_owner(fd: int) -> str:
    """Return the number of the process that locked an open file."""
    return os.pread(fd, 64, 0).decode("ascii", "replace").strip() or "(unknown)"


def _write_owner(fd: int) -> None:
    """Write the process number for error texts; a full disk may prevent it."""
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    except OSError:
        logger.debug("the lock's owner could not be written", exc_info=True)
