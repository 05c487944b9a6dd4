"""A thread that looks at a power sensor at a steady rate and keeps what it saw, for integrating any window."""

from __future__ import annotations

import logging
import math
import threading
from bisect import bisect_left, bisect_right
from collections import deque
from types import TracebackType
from typing import Self

from fedge.devices.sensing.energy_integral import GAP_PERIODS, integrate_energy, is_covered
from fedge.errors import BadInput, SensorLost
from fedge.protocols import Clock, PowerSensor
from fedge.types import Energy, SensorSample

RATES_HZ = (1.0, 20.0)
DEFAULT_KEEP_S = 3600.0
MAX_MODE_CHANGES = 10_000
"""The times of so many changes are kept."""
PATIENCE_S = 1.0
"""What ``window`` waits beyond three periods for the sample after its end. Chosen by us."""

logger = logging.getLogger(__name__)


class Sampler:
    """Samples ``sensor`` while it is entered: ``with Sampler(sensor, clock, 10) as s: ...; s.window(a, b)``.

    The k-th look is due k periods after the first, whatever the looks before took; looks that were missed are left
    out. A look that fails is a gap: the next one is tried as usual, and the error is raised by ``window`` where no
    sample covers it. ``keep_s`` bounds what is kept. ``hz`` is from 1 to 20; a sensor with an ``interval_s`` longer
    than a period is judged by that.
    """

    def __init__(self, sensor: PowerSensor, clock: Clock, hz: float = 10.0, keep_s: float = DEFAULT_KEEP_S) -> None:
        low, high = RATES_HZ
        if not low <= hz <= high:
            raise BadInput("sampling rate", f"{hz:g} Hz", f"{low:g} to {high:g} Hz")
        self._sensor, self._clock = sensor, clock
        self._tick_s = 1.0 / hz
        self.period_s = max(self._tick_s, float(getattr(sensor, "interval_s", 0.0)))
        """Seconds between samples that differ."""
        self._changed = threading.Condition()
        self._samples: deque[SensorSample] = deque(maxlen=max(2, math.ceil(keep_s * hz)))
        self._mode_changes: deque[float] = deque(maxlen=MAX_MODE_CHANGES)
        self._error: Exception | None = None
        """Of the last look that failed."""
        self._failing = False
        self._looked_s = -math.inf
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def total_power(self) -> str:
        """Which rails the watts are of."""
        return self._sensor.total_power

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise RuntimeError("this sampler is entered already; make one for each use")
        self._thread = threading.Thread(target=self._run, name="fedge-sampler", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(self._tick_s + PATIENCE_S)
        with self._changed:
            self._changed.notify_all()

    def record_mode_change(self, at_s: float | None = None) -> None:
        """The power mode was changed, now or at ``at_s``: windows around it say so."""
        with self._changed:
            self._mode_changes.append(self._clock.now_s() if at_s is None else at_s)

    def energy_between(self, start_s: float, end_s: float) -> Energy:
        """The energy of [start_s, end_s], on the clock's time; waits for one look at or after the end, for a while.

        Raises ``SensorLost``, with the sensor's own error where there is one, when no sample covers the window, and
        when the sensor was lost more than three periods before its end and is not back: nothing tells the rest.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._looked_s >= end_s or self._stop.is_set(), self._limit_s(end_s))
            samples, changes, error, failing = list(self._samples), list(self._mode_changes), self._error, self._failing
        seen_s = samples[-1].at_s if samples else -math.inf
        blind = failing and seen_s < end_s - GAP_PERIODS * self.period_s
        if error is not None and (blind or not is_covered(samples, start_s, end_s, self.period_s)):
            raise SensorLost(f"no power sample from {max(start_s, seen_s):.3f} to {end_s:.3f} s: {error}") from error
        return integrate_energy(
            samples,
            start_s=start_s,
            end_s=end_s,
            period_s=self.period_s,
            total_power=self.total_power,
            mode_changes=changes,
        )

    def samples_between(self, start_s: float, end_s: float) -> tuple[SensorSample, ...]:
        """The samples of [start_s, end_s] that are there now, with the nearest one before and after; waits for none."""
        with self._changed:
            kept = list(self._samples)
        first, after = bisect_left(kept, start_s, key=_at_s), bisect_right(kept, end_s, key=_at_s)
        return tuple(kept[max(0, first - 1) : after + 1])

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
        except Exception as error:  # noqa: BLE001 -- the thread's edge: a failed look is a gap, and the error is kept
            with self._changed:
                if not self._failing:
                    logger.warning("power sensor lost: %s", error)
                self._error, self._failing, self._looked_s = error, True, asked_s
                self._changed.notify_all()
            return
        with self._changed:
            # A sensor with samples of its own pace says the same one again.
            if not self._samples or sample.at_s > self._samples[-1].at_s:
                self._samples.append(sample)
            self._failing, self._looked_s = False, max(self._looked_s, sample.at_s)
            self._changed.notify_all()


def _at_s(sample: SensorSample) -> float:
    return sample.at_s


def next_tick(tick: int, elapsed_s: float, period_s: float) -> int:
    """The number of the next look: the one after ``tick``, or the next that is still to come when that was missed."""
    return max(tick + 1, math.ceil(elapsed_s / period_s))
