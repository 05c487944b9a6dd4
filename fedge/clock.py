"""Clocks passed as arguments: simulated time for emulated fleets, monotonic time for real boards."""

from __future__ import annotations

import time


class SimulatedClock:
    """A clock that advances only when ``sleep_s`` is called."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        return self._now_s

    def sleep_s(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"a clock cannot go back: sleep of {seconds} s")
        self._now_s += seconds


class RealClock:
    """The operating system's monotonic clock."""

    def now_s(self) -> float:
        return time.monotonic()

    def sleep_s(self, seconds: float) -> None:
        time.sleep(seconds)
