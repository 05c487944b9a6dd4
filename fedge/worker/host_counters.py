"""What an epoch did to the machine, read at its two ends: the page cache's share of the data, bytes read."""

import math
from pathlib import Path
from typing import List, NamedTuple, Optional, Sequence

from fedge.worker import page_cache

DISKSTATS = "/proc/diskstats"
SECTOR = 512
"""Bytes of a sector in the kernel's statistics, whatever the disk's own."""


class HostCounters(NamedTuple):
    """At one end of an epoch; NaN where nothing tells."""

    resident: float
    read_bytes: float


def read_host_counters(paths: Sequence[str], disk: Optional[str]) -> HostCounters:
    """``paths`` are the data set's files, ``disk`` a block device's numbers ("8:0") or None."""
    share = page_cache.resident_share(paths) if paths else None
    read = None if disk is None else parse_disk_read_bytes(disk, _read_diskstats())
    return HostCounters(math.nan if share is None else share, math.nan if read is None else read)


def parse_disk_read_bytes(disk: str, lines: Sequence[str]) -> Optional[float]:
    """Bytes that a block device has read since the machine's start, by ``/proc/diskstats``; None where it is not in."""
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
