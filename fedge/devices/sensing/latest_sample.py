"""Samples that come by themselves, from a process or a service: the newest one is kept, and an old one is a loss."""

from __future__ import annotations

import threading

from fedge.errors import SensorLost
from fedge.protocols import Clock
from fedge.types import SensorSample

FIRST_SAMPLE_LIMIT_S = 5.0
"""Real seconds that the first sample may take. Chosen by us."""
MAX_MISSED_INTERVALS = 5
"""So many intervals without a sample are a loss, but not less than ``MIN_STALE_S``. Chosen by us."""
MIN_STALE_S = 2.0


class LatestSample:
    """Holds the newest sample for readers of another thread; ``source`` names where they come from."""

    def __init__(self, source: str, clock: Clock, interval_s: float) -> None:
        self._source, self._clock = source, clock
        self._stale_s = max(MIN_STALE_S, MAX_MISSED_INTERVALS * interval_s)
        self._changed = threading.Condition()
        self._sample: SensorSample | None = None
        self._fault: str | None = None

    def put(self, sample: SensorSample) -> None:
        """A sample came."""
        with self._changed:
            self._sample, self._fault = sample, None
            self._changed.notify_all()

    def fail(self, fault: str) -> None:
        """What came was no sample, or nothing will come any more: say so to whoever reads."""
        with self._changed:
            self._sample, self._fault = None, fault
            self._changed.notify_all()

    def reset(self) -> None:
        """Forget what came: the source starts anew."""
        with self._changed:
            self._sample = self._fault = None

    def wait_for_sample(self, limit_s: float = FIRST_SAMPLE_LIMIT_S) -> SensorSample:
        """The newest sample, waiting up to ``limit_s`` for the first; raises ``SensorLost``."""
        with self._changed:
            self._changed.wait_for(lambda: self._sample is not None or self._fault is not None, limit_s)
            sample, fault = self._sample, self._fault
        if fault is not None:
            raise SensorLost(f"{self._source}: {fault}")
        if sample is None:
            raise SensorLost(f"{self._source}: no sample within {limit_s:g} s; try it by hand")
        age_s = self._clock.now_s() - sample.at_s
        if age_s > self._stale_s:
            raise SensorLost(f"{self._source}: its last sample is {age_s:.1f} s old; it hangs, start it anew")
        return sample
