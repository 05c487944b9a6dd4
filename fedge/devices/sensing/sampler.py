"""A thread that polls a power sensor, and the newest sample of a sensor that pushes its own."""

from __future__ import annotations

import logging
import math
import threading
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from typing import Self

from fedge.devices.sensing.energy_integral import GAP_PERIODS, integrate_energy, is_covered, join_windows
from fedge.errors import BadInput, SensorLost
from fedge.protocols import Clock, PowerSensor
from fedge.types import Energy, SensorSample

RATES_HZ = (1.0, 20.0)
DEFAULT_KEEP_S = 3600.0
MAX_MODE_CHANGES = 10_000
"""Number of latest mode changes whose times are kept."""
FOLLOWED_WINDOW_S = 60.0
"""Seconds of a window of a followed period: integrating 600 samples takes milliseconds, which delay no sample."""
PATIENCE_S = 1.0
"""Seconds beyond three sampling periods for which ``energy_between`` waits for the sample after its end: reading a slow
power monitor, or a busy board, delays a sample by less.
"""

logger = logging.getLogger(__name__)


class Sampler:
    """Samples a power sensor while it is entered as a context manager.

    The k-th sample is due k periods after the first, however long earlier ones took; missed samples are skipped. A
    failed read is a gap: the next one is tried as usual, and ``energy_between`` raises the error if no sample covers
    its period.

    Args:
        sensor: The sensor; if its ``interval_s`` is longer than a period, it is used as the period when gaps are
            judged.
        hz: Sampling rate, 1 to 20 Hz.
        keep_s: Seconds for which samples are kept.

    Raises:
        BadInput: The rate is out of range.
    """

    def __init__(self, sensor: PowerSensor, clock: Clock, hz: float = 10.0, keep_s: float = DEFAULT_KEEP_S) -> None:
        low, high = RATES_HZ
        if not low <= hz <= high:
            raise BadInput("sampling rate", f"{hz:g} Hz", f"{low:g} to {high:g} Hz")
        self._sensor, self._clock = sensor, clock
        self._tick_s = 1.0 / hz
        self.period_s = max(self._tick_s, float(getattr(sensor, "interval_s", 0.0)))
        """Seconds between distinct samples."""
        self._changed = threading.Condition()
        self._samples: deque[SensorSample] = deque(maxlen=max(2, math.ceil(keep_s * hz)))
        self._mode_changes: deque[float] = deque(maxlen=MAX_MODE_CHANGES)
        self._window_s = min(FOLLOWED_WINDOW_S, keep_s / 2)
        self._followed_s = math.inf
        self._past: list[Energy] = []
        """Energy since ``_followed_s`` in adjacent windows, each to the time of a sample."""
        self._error: Exception | None = None
        """Error of the last read that failed."""
        self._failing = False
        self._looked_s = -math.inf
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def total_power(self) -> str:
        """Formula of the rails that total power consists of."""
        return self._sensor.total_power

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise RuntimeError("this sampler is entered already; make one for each use")
        self._thread = threading.Thread(target=self._run, name="fedge-sampler", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(self._tick_s + PATIENCE_S)
        with self._changed:
            self._changed.notify_all()

    def record_mode_change(self, at_s: float | None = None) -> None:
        """Record a change of power mode at ``at_s`` (None: now); energies of periods that contain it report it."""
        with self._changed:
            self._mode_changes.append(self._clock.now_s() if at_s is None else at_s)

    def follow(self, start_s: float) -> None:
        """Integrate from ``start_s`` on as samples arrive, so that ``energy_between(start_s, ...)`` may come late.

        Samples are kept for ``keep_s`` only. Each call ends the one before. A day takes half a megabyte.
        """
        with self._changed:
            self._followed_s, self._past = start_s, []

    def energy_between(self, start_s: float, end_s: float) -> Energy:
        """Integrate energy over [start_s, end_s]; waits for a limited time for a sample at or after the end.

        Raises:
            SensorLost: No sample covers the period, or the sensor was lost more than three periods before its end and
                has not recovered.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._looked_s >= end_s or self._stop.is_set(), self._limit_s(end_s))
            samples, changes, error, failing = list(self._samples), list(self._mode_changes), self._error, self._failing
            past = [part for part in self._past if part.end_s < end_s] if start_s == self._followed_s else []
        seen_s = samples[-1].at_s if samples else -math.inf
        blind = failing and seen_s < end_s - GAP_PERIODS * self.period_s
        if error is not None and (blind or not is_covered(samples, start_s, end_s, self.period_s)):
            raise SensorLost(f"no power sample from {max(start_s, seen_s):.3f} to {end_s:.3f} s: {error}") from error
        return join_windows([*past, self._integrate(samples, past[-1].end_s if past else start_s, end_s, changes)])

    def samples(self) -> tuple[SensorSample, ...]:
        """Return the kept samples, the oldest first."""
        with self._changed:
            return tuple(self._samples)

    def samples_between(self, start_s: float, end_s: float) -> tuple[SensorSample, ...]:
        """Return the present samples in [start_s, end_s], with the nearest one before and after; does not wait."""
        kept = self.samples()
        at_s = attrgetter("at_s")
        first, after = bisect_left(kept, start_s, key=at_s), bisect_right(kept, end_s, key=at_s)
        return kept[max(0, first - 1) : after + 1]

    def _integrate(
        self, samples: Sequence[SensorSample], start_s: float, end_s: float, mode_changes: Sequence[float]
    ) -> Energy:
        return integrate_energy(
            samples,
            start_s=start_s,
            end_s=end_s,
            period_s=self.period_s,
            total_power=self.total_power,
            mode_changes=mode_changes,
        )

    def _integrate_followed(self) -> None:
        """Integrate the followed period up to the newest sample if a window is complete."""
        start_s, end_s = self._past[-1].end_s if self._past else self._followed_s, self._samples[-1].at_s
        if end_s - start_s >= self._window_s:
            self._past.append(self._integrate(list(self._samples), start_s, end_s, self._mode_changes))

    def _limit_s(self, end_s: float) -> float:
        return max(end_s - self._clock.now_s(), 0.0) + GAP_PERIODS * self.period_s + PATIENCE_S

    def _run(self) -> None:
        first_s, tick = self._clock.now_s(), 0
        while not self._stop.is_set():
            self._take_sample()
            tick = next_tick(tick, self._clock.now_s() - first_s, self._tick_s)
            self._clock.sleep_s(max(first_s + tick * self._tick_s - self._clock.now_s(), 0.0))

    def _take_sample(self) -> None:
        asked_s = self._clock.now_s()
        try:
            sample = self._sensor.read()
        except Exception as error:  # noqa: BLE001 -- edge of the thread: a failed read is a gap; the error is raised later
            with self._changed:
                if not self._failing:
                    logger.warning("power sensor lost: %s", error)
                self._error, self._failing, self._looked_s = error, True, asked_s
                self._changed.notify_all()
            return
        with self._changed:
            # A sensor that is slower than the sampling rate returns the same sample again.
            if not self._samples or sample.at_s > self._samples[-1].at_s:
                self._samples.append(sample)
                self._integrate_followed()
            self._failing, self._looked_s = False, max(self._looked_s, sample.at_s)
            self._changed.notify_all()


def next_tick(tick: int, elapsed_s: float, period_s: float) -> int:
    """Return the number of the next sample: ``tick + 1``, or the next one that is still due if that was missed."""
    return max(tick + 1, math.ceil(elapsed_s / period_s))


# Sensors that push their samples --------------------------------------------------------------------------------------


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
