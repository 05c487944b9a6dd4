"""Host counters at the two ends of an epoch: share of the data in the page cache, and bytes read from the disk."""

import math
from pathlib import Path
from typing import List, NamedTuple, Optional, Sequence

from fedge.worker import page_cache

DISKSTATS = "/proc/diskstats"
SECTOR = 512
"""Bytes per sector in the kernel's statistics, whatever the disk's own sector size."""


class HostCounters(NamedTuple):
    """Counters at one end of an epoch; NaN if they are not available.

    Attributes:
        resident: Share of the data set's pages in the page cache, 0 to 1.
        read_bytes: Bytes that the disk has read since boot.
    """

    resident: float
    read_bytes: float


def read_host_counters(paths: Sequence[str], disk: Optional[str]) -> HostCounters:
    """Read the counters.

    Args:
        paths: Files of the data set.
        disk: Device number of a block device, such as "8:0", or None.
    """
    share = page_cache.resident_share(paths) if paths else None
    read = None if disk is None else parse_disk_read_bytes(disk, _read_diskstats())
    return HostCounters(math.nan if share is None else share, math.nan if read is None else read)


def parse_disk_read_bytes(disk: str, lines: Sequence[str]) -> Optional[float]:
    """Return the bytes that a block device has read since boot.

    Args:
        disk: Device number, such as "8:0".
        lines: Lines of ``/proc/diskstats``.

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
