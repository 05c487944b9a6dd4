"""A simulated clock for processes that share cores and a storage; it jumps to the next completion.

All work on cores proceeds at one rate. Its completion is therefore kept on a second clock that runs at this rate and
counts seconds of an undisturbed core; a change of the rate does not move any completion on it.
"""

from __future__ import annotations

import math
from enum import IntEnum
from heapq import heappop, heappush

from fedge.costs.input_pipeline.pipeline_model import HostCores
from fedge.costs.input_pipeline.resource_contention import compute_slowdown

_DONE = 1e-12
"""Seconds of remaining work below which it counts as done."""


class Activity(IntEnum):
    """Activity of a process: wait for another process, work on a core, read, or wait for the device."""

    WAITS = 0
    WORKS = 1
    READS = 2
    DEVICE = 3


class SimulationClock:
    """Simulated time of processes that share cores and a storage.

    Attributes:
        now_s: Simulated time in seconds.
        busy_s: Core seconds used until now, without the background.
    """

    def __init__(self, host: HostCores, served: float, most: int) -> None:
        """Start at time 0.

        Args:
            host: The cores.
            served: Readers that the storage serves at once (``resource_contention.count_served_readers``).
            most: Largest number of processes that are active at once.
        """
        self.now_s = 0.0
        self.busy_s = 0.0
        self._pace = [1.0, *(1.0 / compute_slowdown(host, count) for count in range(1, most + 1))]
        """Work done per second on a core, by the number of cores requested."""
        self._cores = [n * min(1.0, host.cores / max(n + host.background, 1.0)) for n in range(most + 1)]
        """Cores actually in use, by the number of cores requested."""
        self._spins, self._served = host.spins, served
        self._worked_s = 0.0
        self._works: list[tuple[float, int]] = []
        """Heap of (completion on the second clock, process)."""
        self._devices: list[tuple[float, int]] = []
        """Heap of (completion in simulated time, process)."""
        self._readers: list[int] = []
        """Readers in order of arrival."""
        self._unread_s: dict[int, float] = {}

    def begin(self, process: int, does: Activity, seconds: float) -> None:
        """Start an activity of a process.

        Args:
            process: Number of the process.
            does: The activity, which must not be ``WAITS``.
            seconds: Its duration without contention, in seconds.

        Raises:
            ValueError: The activity has no end of its own.
        """
        if does is Activity.WORKS:
            heappush(self._works, (self._worked_s + seconds, process))
        elif does is Activity.DEVICE:
            heappush(self._devices, (self.now_s + seconds, process))
        elif does is Activity.READS:
            self._readers.append(process)
            self._unread_s[process] = seconds
        else:
            raise ValueError(f"{does!r} has no end of its own")

    def advance_to_next_end(self) -> list[int]:
        """Advance to the next completion.

        Returns:
            The numbers of the processes that completed, ascending.

        Raises:
            RuntimeError: No process is active.
        """
        asked = len(self._works) + (len(self._devices) if self._spins else 0)
        pace, reading = self._pace[asked], self._list_served_readers()
        span_s = min((self._unread_s[k] / rate for k, rate in reading), default=math.inf)
        if self._works:
            span_s = min(span_s, (self._works[0][0] - self._worked_s) / pace)
        if self._devices:
            span_s = min(span_s, self._devices[0][0] - self.now_s)
        if span_s == math.inf:
            raise RuntimeError("every process waits for another one")
        self.now_s += span_s
        self._worked_s += span_s * pace
        self.busy_s += span_s * self._cores[asked]
        done = (
            _pop_done(self._works, self._worked_s)
            + _pop_done(self._devices, self.now_s)
            + self._advance_readers(reading, span_s)
        )
        return sorted(done) if len(done) > 1 else done

    def _list_served_readers(self) -> list[tuple[int, float]]:
        """Return the readers being served, with their rates relative to a single reader."""
        return [(k, min(1.0, self._served - place)) for place, k in enumerate(self._readers) if place < self._served]

    def _advance_readers(self, reading: list[tuple[int, float]], span_s: float) -> list[int]:
        """Advance the readers by a time span; return those that completed."""
        done = []
        for k, rate in reading:
            self._unread_s[k] -= span_s * rate
            if self._unread_s[k] <= _DONE:
                self._readers.remove(k)
                done.append(k)
        return done


def _pop_done(ends: list[tuple[float, int]], now_s: float) -> list[int]:
    """Pop all completed entries from a heap."""
    done = []
    while ends and ends[0][0] - now_s <= _DONE:
        done.append(heappop(ends)[1])
    return done
