"""The newest sample of a sensor that pushes its samples, from a process or service; an old one counts as a loss."""

from __future__ import annotations

import threading

from fedge.errors import SensorLost
from fedge.protocols import Clock
from fedge.types import SensorSample

FIRST_SAMPLE_LIMIT_S = 5.0
"""Seconds of wall time that the first sample may take; a default that allows for starting a process."""
MAX_MISSED_INTERVALS = 5
"""Intervals without a sample after which the sensor is lost, but at least ``MIN_STALE_S``; a default that tolerates a
briefly overloaded board.
"""
MIN_STALE_S = 2.0


class LatestSample:
    """Holds the newest sample for readers in other threads."""

    def __init__(self, source: str, clock: Clock, interval_s: float) -> None:
        self._source, self._clock = source, clock
        self._stale_s = max(MIN_STALE_S, MAX_MISSED_INTERVALS * interval_s)
        self._changed = threading.Condition()
        self._sample: SensorSample | None = None
        self._fault: str | None = None

    def put(self, sample: SensorSample) -> None:
        """Store a new sample."""
        with self._changed:
            self._sample, self._fault = sample, None
            self._changed.notify_all()

    def fail(self, fault: str) -> None:
        """Store a fault, which is raised to readers until the next sample."""
        with self._changed:
            self._sample, self._fault = None, fault
            self._changed.notify_all()

    def reset(self) -> None:
        """Discard sample and fault when the source restarts."""
        with self._changed:
            self._sample = self._fault = None

    def wait_for_sample(self, limit_s: float = FIRST_SAMPLE_LIMIT_S, after_s: float | None = None) -> SensorSample:
        """Return the newest sample, or wait for one that is newer than ``after_s``.

        Raises:
            SensorLost: There is a fault, no sample in time, or only an old one.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._find_sample(after_s) is not None or self._fault is not None, limit_s)
            sample, fault = self._find_sample(after_s), self._fault
        if fault is not None:
            raise SensorLost(f"{self._source}: {fault}")
        if sample is None:
            raise SensorLost(f"{self._source}: no sample within {limit_s:g} s; try it by hand")
        age_s = self._clock.now_s() - sample.at_s
        if age_s > self._stale_s:
            raise SensorLost(f"{self._source}: its last sample is {age_s:.1f} s old; it hangs, start it anew")
        return sample

    def _find_sample(self, after_s: float | None) -> SensorSample | None:
        newest = self._sample
        return newest if newest is None or after_s is None or newest.at_s > after_s else None
