"""An emulated board: takes power modes, meters work on the fleet's clock, warms up, heats, throttles and rests.

Temperature follows one thermal mass: dT/dt = (T_ambient + R P - T) / tau, with R such that the board's largest power
settles ``HEADROOM_C`` above the ambient air (estimated), and the passive trip point of the boards' own thermal zones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from fedge.devices.truth import Surface
from fedge.types import DeviceSpec, Measurement, PowerMode, Workload

WARM_UP_STEPS = 1.5
"""Extra steps' worth of time that a round's first minibatches cost (autotuning, caches; estimated)."""
SWITCH_S = 0.05
"""What a change of mode takes in the middle of the work: writing the clocks and their settling (estimated)."""
NOISE_TIME_SD = 0.008
NOISE_POWER_SD = 0.010
"""Run-to-run noise of a long measurement (the tables' smoothness residuals: 0.4-0.8 % time, 0.8-1.2 % power)."""
JITTER_SD = 0.03
"""Noise of a single minibatch's time and power on top (estimated); averages out over the steps."""
OUTLIER_CHANCE = 0.01
OUTLIER_SLOWDOWN = (1.15, 1.5)
"""Rarely something else runs on the board (19 to 48 of 4,368 measured rows lie more than 25 % off, both ways)."""
HEADROOM_C = 45.0
TAU_S = 240.0
TRIP_C = 97.0
THROTTLED_SLOWDOWN = 1.25
THROTTLED_POWER = 0.8


@dataclass(frozen=True, slots=True)
class Thermal:
    """The board's thermal mass: kelvin per watt and ambient temperature."""

    kelvin_per_w: float
    ambient_c: float

    def after(self, temperature_c: float, power_w: float, seconds: float) -> float:
        """Temperature after ``seconds`` at ``power_w``."""
        settled_c = self.ambient_c + self.kelvin_per_w * power_w
        return settled_c + (temperature_c - settled_c) * math.exp(-seconds / TAU_S)

    def seconds_until(self, limit_c: float, temperature_c: float, power_w: float) -> float:
        """Seconds at ``power_w`` until ``limit_c`` is reached; infinite when it never is."""
        settled_c = self.ambient_c + self.kelvin_per_w * power_w
        if temperature_c >= limit_c:
            return 0.0
        if settled_c <= limit_c:
            return math.inf
        return TAU_S * math.log((settled_c - temperature_c) / (settled_c - limit_c))


def thermal_of(spec: DeviceSpec, ambient_c: float) -> Thermal:
    """The thermal mass of a board of this kind (estimated)."""
    return Thermal(HEADROOM_C / spec.max_w.value, ambient_c)


class EmulatedBoard:
    """A ``fedge.interfaces.Device`` on the fleet's virtual time; ``rng`` fixes its noise."""

    def __init__(
        self, spec: DeviceSpec, surface: Surface, thermal: Thermal, temperature_c: float, rng: np.random.Generator
    ) -> None:
        self.spec = spec
        self.surface = surface
        self.thermal = thermal
        self.temperature_c = temperature_c
        self.mode = top_mode(surface)
        """A board is found in its fastest mode."""
        self._rng = rng
        self._worked: PowerMode | None = None
        """The mode of the round's work so far."""

    def idle_w(self, mode: PowerMode) -> float:
        return float(self.surface.idle_w[self.surface.row(mode)])

    @contextmanager
    def in_mode(self, mode: PowerMode) -> Iterator[None]:
        self.surface.row(mode)
        found, self.mode = self.mode, mode
        try:
            yield
        finally:
            self.mode = found

    def rest(self, seconds: float, mode: PowerMode) -> None:
        """Let the board idle, and cool, in ``mode``."""
        self.temperature_c = self.thermal.after(self.temperature_c, self.idle_w(mode), seconds)

    def measure(
        self, workload: Workload, steps: int, work: Callable[[int], object], limit_s: float | None = None
    ) -> Measurement:
        row = self.surface.row(self.mode)
        jitter_sd = JITTER_SD / math.sqrt(steps)
        step_s = float(self.surface.step_s[row]) * self._noise(math.hypot(NOISE_TIME_SD, jitter_sd))
        power_w = float(self.surface.power_w[row]) * self._noise(math.hypot(NOISE_POWER_SD, jitter_sd))
        if self._rng.random() < OUTLIER_CHANCE:
            step_s *= self._rng.uniform(*OUTLIER_SLOWDOWN)
        warm_up_s = WARM_UP_STEPS * step_s if self._worked is None else 0.0
        switch_s = SWITCH_S if self._worked not in (None, self.mode) else None
        self._worked = self.mode
        planned = Measurement(self.mode, steps, step_s, power_w, warm_up_s=warm_up_s, switch_s=switch_s)
        cut = self._cut(planned, limit_s)
        error = JITTER_SD / math.sqrt(cut.steps)
        done = replace(cut, time_se_log=error, power_se_log=error)
        work(done.steps)
        return self._heated(done)

    def _cut(self, planned: Measurement, limit_s: float | None) -> Measurement:
        """As many of the minibatches as fit in ``limit_s``, heat considered, at least one."""
        if limit_s is None:
            return planned
        few, many = 1, planned.steps + 1
        while many - few > 1:
            middle = (few + many) // 2
            fits = self._hot_s(replace(planned, steps=middle)) <= limit_s
            few, many = (middle, many) if fits else (few, middle)
        return replace(planned, steps=few)

    def _noise(self, sd_log: float) -> float:
        return math.exp(sd_log * self._rng.standard_normal())

    def _cool_s(self, planned: Measurement) -> float:
        """Seconds of the work before the trip point is reached."""
        until_s = self.thermal.seconds_until(TRIP_C, self.temperature_c, planned.power_w)
        return min(planned.work_s, until_s)

    def _hot_s(self, planned: Measurement) -> float:
        """Seconds of the work with what is throttled of it."""
        cool_s = self._cool_s(planned)
        return cool_s + (planned.work_s - cool_s) * THROTTLED_SLOWDOWN

    def _heated(self, planned: Measurement) -> Measurement:
        """The measurement after heating; past the trip point the rest of the work runs throttled."""
        power_w, cool_s, total_s = planned.power_w, self._cool_s(planned), self._hot_s(planned)
        hot_s, hot_w = total_s - cool_s, planned.power_w * THROTTLED_POWER
        mean_w = (cool_s * power_w + hot_s * hot_w) / total_s
        tripped_c = self.thermal.after(self.temperature_c, power_w, cool_s)
        end_c = min(self.thermal.after(tripped_c, hot_w, hot_s), TRIP_C) if hot_s > 0 else tripped_c
        peak_c = max(self.temperature_c, tripped_c)
        self.temperature_c = end_c
        slowed = total_s / planned.work_s
        return replace(
            planned,
            step_s=slowed * planned.step_s,
            power_w=mean_w,
            peak_c=peak_c,
            throttled=hot_s > 0,
            warm_up_s=slowed * planned.warm_up_s,
            switch_s=None if planned.switch_s is None else slowed * planned.switch_s,
        )


def top_mode(surface: Surface) -> PowerMode:
    """MAXN, or the nearest to it that the surface holds (a measured table may lack some modes)."""
    share = surface.modes.knobs / surface.modes.knobs.max(axis=0)
    return surface.modes[int(np.argmax(share.sum(axis=1)))]
