"""The page cache as far as some files go: what share of their pages it holds, dropping them from it, filling it."""

import contextlib
import ctypes
import mmap
import os
from pathlib import Path
from typing import Any, Callable, Iterable, Optional, Sequence

import numpy as np

PAGE = mmap.PAGESIZE
CHUNK = 1 << 20


def ignore_file_progress(done: int) -> None:
    """Hears how many files are done, and does nothing about it."""


def resident_share(paths: Sequence[str]) -> Optional[float]:
    """The share (0 to 1) of the files' pages that is in the page cache, by ``mincore``.

    None where nothing tells: no files, empty ones, or one that belongs to somebody else and cannot be written, of which
    the kernel (5.2 and later) says that all of it is there. Raises ``OSError`` for a file that cannot be opened.
    """
    libc = _load_libc()
    held = pages = 0
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            found = os.fstat(handle)
            if os.geteuid() not in (0, found.st_uid) and not os.access(path, os.W_OK):
                return None
            some = _count_resident_pages(libc, handle, found.st_size)
        finally:
            os.close(handle)
        if some is None:
            return None
        held, pages = held + some, pages + _count_pages(found.st_size)
    return held / pages if pages else None


def drop(paths: Iterable[str], told: Callable[[int], None] = ignore_file_progress) -> None:
    """Ask the kernel to forget the files' pages, written out first: no right is needed but that to read them.

    Pages that another process has mapped stay. Raises ``OSError`` for a file that cannot be opened.
    """
    for done, path in enumerate(paths):
        handle = os.open(path, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # a storage that is mounted for reading alone has nothing to write out
                os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)
        told(done + 1)


def fill(paths: Iterable[str], told: Callable[[int], None] = ignore_file_progress) -> None:
    """Read every file once; raises ``OSError`` for one that cannot be read."""
    for done, path in enumerate(paths):
        with Path(path).open("rb", buffering=0) as file:
            while file.read(CHUNK):
                pass
        told(done + 1)


def _count_pages(size: int) -> int:
    return -(-size // PAGE)


def _load_libc() -> Any:
    libc: Any = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [ctypes.c_longlong]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    return libc


def _count_resident_pages(libc: Any, handle: int, size: int) -> Optional[int]:
    """How many pages of an open file are in the cache; mapping it reads none. None where the kernel does not say."""
    if size == 0:
        return 0
    at = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, handle, 0)
    if at in (None, ctypes.c_void_p(-1).value):
        return None
    try:
        states = np.zeros(_count_pages(size), np.uint8)
        if libc.mincore(at, size, states.ctypes.data) != 0:
            return None
        return int((states & 1).sum())  # the other bits say nothing
    finally:
        libc.munmap(at, size)
