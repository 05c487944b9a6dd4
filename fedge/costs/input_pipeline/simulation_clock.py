"""A virtual clock for processes that share cores and a storage: it jumps to the moment at which the next one is done.

Everything that works on a core goes equally fast, so its end is kept as a moment of a second clock, which runs at that
pace: when the pace changes, no end does. That clock counts the seconds of an undisturbed core.
"""

from __future__ import annotations

import math
from enum import IntEnum
from heapq import heappop, heappush

from fedge.costs.input_pipeline.pipeline_model import HostCores
from fedge.costs.input_pipeline.resource_contention import compute_slowdown

_DONE = 1e-12
"""Seconds; what is left of a piece of work when it counts as done."""


class Activity(IntEnum):
    """What a process does: waits for another, works on a core, reads, or waits for the device."""

    WAITS = 0
    WORKS = 1
    READS = 2
    DEVICE = 3


class SimulationClock:
    """``served`` readers are served at once (``contention``); ``most`` processes at most are doing something."""

    def __init__(self, host: HostCores, served: float, most: int) -> None:
        self.now_s = 0.0
        self.busy_s = 0.0
        """Seconds of cores that were busy until now, without the background."""
        self._pace = [1.0, *(1.0 / compute_slowdown(host, count) for count in range(1, most + 1))]
        """Seconds of work that are done in a second, by how many cores are asked for."""
        self._cores = [n * min(1.0, host.cores / max(n + host.background, 1.0)) for n in range(most + 1)]
        """Of these, how many there are."""
        self._spins, self._served = host.spins, served
        self._worked_s = 0.0
        self._works: list[tuple[float, int]] = []
        """Heap of (moment of the second clock at which it is done, process)."""
        self._devices: list[tuple[float, int]] = []
        """Heap of (moment at which it is done, process)."""
        self._readers: list[int] = []
        """In the order in which they came."""
        self._unread_s: dict[int, float] = {}

    def begin(self, process: int, does: Activity, seconds: float) -> None:
        """``process`` does something from now on that takes ``seconds`` if nobody stands in its way."""
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
        """Go to the moment at which the next process is done; which ones are, by their numbers.

        Raises ``RuntimeError`` when nobody does anything.
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
        """Who is being served, and how fast, beside one who reads alone."""
        return [(k, min(1.0, self._served - place)) for place, k in enumerate(self._readers) if place < self._served]

    def _advance_readers(self, reading: list[tuple[int, float]], span_s: float) -> list[int]:
        """Let them read for so long; who is done."""
        done = []
        for k, rate in reading:
            self._unread_s[k] -= span_s * rate
            if self._unread_s[k] <= _DONE:
                self._readers.remove(k)
                done.append(k)
        return done


def _pop_done(ends: list[tuple[float, int]], now_s: float) -> list[int]:
    """Take off a heap what is done."""
    done = []
    while ends and ends[0][0] - now_s <= _DONE:
        done.append(heappop(ends)[1])
    return done
