"""Page cache of given files: measure the share of their pages in memory, drop them, or read them in."""

import contextlib
import ctypes
import math
import mmap
import os
from pathlib import Path
from typing import Any, Iterable, List, NamedTuple, Optional, Sequence

import numpy as np

PAGE = mmap.PAGESIZE
CHUNK = 1 << 20
DISKSTATS = "/proc/diskstats"
SECTOR = 512
"""Bytes per sector in the kernel's statistics, whatever the disk's own sector size."""


def resident_share(paths: Sequence[str]) -> Optional[float]:
    """Return the share of the files' pages in the page cache, from ``mincore``.

    Returns:
        A share from 0 to 1. None if it is unknown: no files, empty ones, or one of another user that cannot be written,
        for which the kernel (5.2 and later) reports all pages as resident.

    Raises:
        OSError: A file cannot be opened.
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


def drop(paths: Iterable[str]) -> None:
    """Write the files out and ask the kernel to drop their pages; needs only the right to read them.

    Pages that another process has mapped stay.

    Raises:
        OSError: A file cannot be opened.
    """
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # a storage that is mounted for reading alone has nothing to write out
                os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def fill(paths: Iterable[str]) -> None:
    """Read every file once, which fills the page cache.

    Raises:
        OSError: A file cannot be read.
    """
    for path in paths:
        with Path(path).open("rb", buffering=0) as file:
            while file.read(CHUNK):
                pass


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
    """Count an open file's resident pages, which reads none of them; None if the kernel does not report it."""
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


class HostCounters(NamedTuple):
    """Counters at one end of an epoch; NaN if they are not available.

    Attributes:
        resident: Share of the data set's pages in the page cache, 0 to 1.
        read_bytes: Bytes that the disk has read since boot.
    """

    resident: float
    read_bytes: float


def read_host_counters(paths: Sequence[str], disk: Optional[str]) -> HostCounters:
    """Read the counters."""
    share = resident_share(paths) if paths else None
    read = None if disk is None else parse_disk_read_bytes(disk, _read_diskstats())
    return HostCounters(math.nan if share is None else share, math.nan if read is None else read)


def parse_disk_read_bytes(disk: str, lines: Sequence[str]) -> Optional[float]:
    """Return the bytes that a block device has read since boot.

    ``disk`` is its device number, such as "8:0".

    Returns:
        Bytes, or None if the device is not listed.
    """
    wanted = disk.split(":")
    for line in lines:
        fields = line.split()
        if fields[:2] == wanted and len(fields) > 5:
            return float(int(fields[5]) * SECTOR)
    return None


def _read_diskstats() -> List[str]:
    try:
        return Path(DISKSTATS).read_text(encoding="ascii").splitlines()
    except OSError:
        return []
