"""What the kernel says of the machine and of a tree of processes, read from ``/proc``."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1e6
IDLE = (3, 4)
"""The columns of ``/proc/stat`` in which a core does nothing, or waits for a disk."""
GUEST = 8
"""From this column on what others count is counted again."""


def cpu_times(proc: Path) -> tuple[float, float]:
    """Ticks that all cores that are online were busy, and ticks in all, since the machine's start."""
    first = (proc / "stat").read_text("ascii").split("\n", 1)[0]
    ticks = [float(value) for value in first.split()[1:]][:GUEST]
    total = sum(ticks)
    return total - sum(ticks[k] for k in IDLE), total


def tree(pid: int, proc: Path) -> tuple[int, ...]:
    """A process and all below it; those that end meanwhile are left out."""
    found, todo = list[int](), [pid]
    while todo:
        at = todo.pop()
        found.append(at)
        with contextlib.suppress(OSError):
            for thread in (proc / str(at) / "task").iterdir():
                with contextlib.suppress(OSError):
                    todo += [int(child) for child in (thread / "children").read_text("ascii").split()]
    return tuple(found)


def resident_mb(pids: tuple[int, ...], proc: Path) -> float:
    """Resident memory of some processes, 1e6 bytes; a page that several share is counted for each of them."""
    pages = 0
    for pid in pids:
        with contextlib.suppress(OSError, IndexError, ValueError):
            pages += int((proc / str(pid) / "statm").read_text("ascii").split()[1])
    return pages * PAGE_MB


def read_bytes(pids: tuple[int, ...], proc: Path) -> dict[int, float]:
    """What each process made a storage read so far, for those that may be looked at."""
    found: dict[int, float] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in (proc / str(pid) / "io").read_text("ascii").splitlines():
                if line.startswith("read_bytes:"):
                    found[pid] = float(line.split()[1])
    return found


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds of cores' work: the whole machine's, and that of this process with all that it saw the end of."""

    at_s: float
    all_s: float
    own_s: float

    @classmethod
    def now(cls, proc: Path = Path("/proc")) -> Self:
        """So far."""
        busy = cpu_times(proc)[0] / os.sysconf("SC_CLK_TCK")
        own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return cls(time.monotonic(), busy, sum(used.ru_utime + used.ru_stime for used in own))

    def others_since(self, before: Work) -> float:
        """How many cores others kept busy since then."""
        others_s = (self.all_s - before.all_s) - (self.own_s - before.own_s)
        return max(0.0, others_s / max(1e-9, self.at_s - before.at_s))
