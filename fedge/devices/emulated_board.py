"""An emulated board: sets modes and measures work in simulated time, with warm-up, heating and throttling.

A board with an inference service trains between the service's batches, which are emulated on the same clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Protocol

import numpy as np

from fedge.devices.mode_surface import ModeSurface
from fedge.devices.thermal_model import TRIP_C, ThermalModel
from fedge.types import DeviceSpec, LabelledValue, Measurement, Modes, PowerMode, ServiceUse, Workload

WARM_UP_STEPS = 1.5
"""Extra time of the first steps of a round (autotuning, caches), in steps; estimated."""
MODE_SWITCH_S = 0.05
"""Seconds that studies in columns, which price no single change, take for one during the work; estimated."""
NOISE_TIME_SD = 0.008
NOISE_POWER_SD = 0.010
"""Run-to-run noise of a long measurement; smoothness residuals of the measured tables are 0.4-0.8 % in time and 0.8-1.2
% in power.
"""
JITTER_SD = 0.03
"""Additional noise of a single step's time and power, which averages out over steps; estimated."""
OUTLIER_CHANCE = 0.01
OUTLIER_SLOWDOWN = (1.15, 1.5)
"""Rare slow-down by another process; 19 to 48 of 4,368 measured rows differ by more than 25 %, in both directions."""
THROTTLED_SLOWDOWN = 1.25
THROTTLED_POWER = 0.8


@dataclass(frozen=True, slots=True)
class SharedWork:
    """Training that shares the board with an inference service.

    Attributes:
        step_s: Seconds per step without the service.
        warm_up_s: Extra seconds of the first step.
        hot_after_s: Seconds after which throttling slows everything by ``THROTTLED_SLOWDOWN``.
        limit_s: Time limit in seconds; at least one step is run. None for no limit.
    """

    mode: PowerMode
    steps: int
    step_s: float
    warm_up_s: float
    hot_after_s: float
    limit_s: float | None


@dataclass(frozen=True, slots=True)
class SharedWorkResult:
    """Result of training beside an inference service.

    Attributes:
        train_s: Seconds of training within it.
        other_w: Mean power outside training, in watts.
    """

    steps: int
    seconds: float
    train_s: float
    other_w: float
    use: ServiceUse


class ServiceEmulator(Protocol):
    """An inference service on an emulated board."""

    def idle_w(self, mode: PowerMode, idle_w: float) -> float:
        """Return the power of a board that serves but does not train, given its idle power, in watts."""
        ...

    def expected_w(self, mode: PowerMode, train_w: float) -> float:
        """Return the expected power of training and serving, given that of training alone, in watts."""
        ...

    def run_work(self, stretch: SharedWork) -> SharedWorkResult:
        """Train and serve alternately."""
        ...


class EmulatedBoard:
    """A ``fedge.protocols.Device`` in simulated time.

    Args:
        beside: Emulated inference service, or None.
    """

    def __init__(
        self,
        spec: DeviceSpec,
        surface: ModeSurface,
        thermal: ThermalModel,
        temperature_c: float,
        rng: np.random.Generator,
        beside: ServiceEmulator | None = None,
    ) -> None:
        self.spec = spec
        self.surface = surface
        self.thermal = thermal
        self.temperature_c = temperature_c
        self.mode = find_top_mode(surface)
        """Initially the fastest mode."""
        self._rng = rng
        self._beside = beside
        self._worked: PowerMode | None = None
        """Mode of the last work in this round."""

    def idle_w(self, mode: PowerMode) -> float:
        idle_w = float(self.surface.idle_w[self.surface.find_row(mode)])
        return idle_w if self._beside is None else self._beside.idle_w(mode, idle_w)

    @contextmanager
    def use_mode(self, mode: PowerMode) -> Iterator[None]:
        self.surface.find_row(mode)
        found, self.mode = self.mode, mode
        try:
            yield
        finally:
            self.mode = found

    def idle_for(self, seconds: float, mode: PowerMode) -> None:
        """Let the board idle in ``mode`` for ``seconds``, which cools it."""
        self.temperature_c = self.thermal.temperature_after_c(self.temperature_c, self.idle_w(mode), seconds)

    def measure(
        self, workload: Workload, steps: int, work: Callable[[int], object], limit_s: float | None = None
    ) -> Measurement:
        row = self.surface.find_row(self.mode)
        jitter_sd = JITTER_SD / math.sqrt(steps)
        step_s = float(self.surface.step_s[row]) * self._draw_noise_factor(math.hypot(NOISE_TIME_SD, jitter_sd))
        power_w = float(self.surface.power_w[row]) * self._draw_noise_factor(math.hypot(NOISE_POWER_SD, jitter_sd))
        if self._rng.random() < OUTLIER_CHANCE:
            step_s *= self._rng.uniform(*OUTLIER_SLOWDOWN)
        warm_up_s = WARM_UP_STEPS * step_s if self._worked is None else 0.0
        switch_s = None if self._worked in (None, self.mode) else mode_change_s(self._worked, self.mode)
        self._worked = self.mode
        # The stall is that of the training alone: requests that are served between two steps do not lengthen it.
        stall_s = 0.0 if self.surface.stall_share is None else float(self.surface.stall_share[row]) * step_s
        planned = Measurement(
            self.mode, steps, step_s, power_w, warm_up_s=warm_up_s, switch_s=switch_s, stall_s=stall_s
        )
        if self._beside is not None:
            return self._measure_with_service(self._beside, planned, work, limit_s)
        cut = self._cut_to_limit(planned, limit_s)
        error = JITTER_SD / math.sqrt(cut.steps)
        done = replace(cut, time_se_log=error, power_se_log=error)
        work(done.steps)
        return self._apply_heat(done)

    def _measure_with_service(
        self, beside: ServiceEmulator, planned: Measurement, work: Callable[[int], object], limit_s: float | None
    ) -> Measurement:
        """Run planned training beside the service; throttling slows both."""
        before_s = planned.switch_s or 0.0
        mixed_w = beside.expected_w(planned.mode, planned.power_w)
        hot_after_s = max(0.0, self.thermal.seconds_until(TRIP_C, self.temperature_c, mixed_w) - before_s)
        left_s = None if limit_s is None else limit_s - before_s
        stretch = SharedWork(
            planned.mode,
            steps=planned.steps,
            step_s=planned.step_s,
            warm_up_s=planned.warm_up_s,
            hot_after_s=hot_after_s,
            limit_s=left_s,
        )
        played = beside.run_work(stretch)
        longer = played.seconds / (played.steps * planned.step_s + planned.warm_up_s)
        error = JITTER_SD / math.sqrt(played.steps)
        seen = replace(
            planned,
            steps=played.steps,
            step_s=planned.step_s * longer,
            warm_up_s=planned.warm_up_s * longer,
            power_w=_mean_power_w(planned.power_w, played),
            time_se_log=error,
            power_se_log=error,
            service=played.use,
        )
        work(seen.steps)
        cool_s = min(seen.work_s, before_s + hot_after_s)
        return self._apply_throttling(seen, cool_s, seen.work_s)

    def _cut_to_limit(self, planned: Measurement, limit_s: float | None) -> Measurement:
        """Reduce the steps to those that fit into ``limit_s`` including throttling, at least one."""
        if limit_s is None:
            return planned
        few, many = 1, planned.steps + 1
        while many - few > 1:
            middle = (few + many) // 2
            fits = self._hot_s(replace(planned, steps=middle)) <= limit_s
            few, many = (middle, many) if fits else (few, middle)
        return replace(planned, steps=few)

    def _draw_noise_factor(self, sd_log: float) -> float:
        return math.exp(sd_log * self._rng.standard_normal())

    def _cool_s(self, planned: Measurement) -> float:
        """Return the seconds of work before the trip point is reached."""
        until_s = self.thermal.seconds_until(TRIP_C, self.temperature_c, planned.power_w)
        return min(planned.work_s, until_s)

    def _hot_s(self, planned: Measurement) -> float:
        """Return the seconds of work including throttling."""
        cool_s = self._cool_s(planned)
        return cool_s + (planned.work_s - cool_s) * THROTTLED_SLOWDOWN

    def _apply_heat(self, planned: Measurement) -> Measurement:
        """Heat the board; the work after the trip point is throttled."""
        return self._apply_throttling(planned, self._cool_s(planned), self._hot_s(planned))

    def _apply_throttling(self, planned: Measurement, cool_s: float, total_s: float) -> Measurement:
        """Stretch a measurement to ``total_s`` seconds, throttled after ``cool_s``; update the temperature."""
        power_w = planned.power_w
        hot_s, hot_w = total_s - cool_s, planned.power_w * THROTTLED_POWER
        mean_w = (cool_s * power_w + hot_s * hot_w) / total_s
        tripped_c = self.thermal.temperature_after_c(self.temperature_c, power_w, cool_s)
        end_c = min(self.thermal.temperature_after_c(tripped_c, hot_w, hot_s), TRIP_C) if hot_s > 0 else tripped_c
        peak_c = max(self.temperature_c, tripped_c)
        self.temperature_c = end_c
        slowed = total_s / planned.work_s
        return replace(
            planned,
            step_s=slowed * planned.step_s,
            stall_s=slowed * planned.stall_s,
            power_w=mean_w,
            peak_c=peak_c,
            throttled=hot_s > 0,
            warm_up_s=slowed * planned.warm_up_s,
            switch_s=None if planned.switch_s is None else slowed * planned.switch_s,
        )


def _mean_power_w(train_w: float, played: SharedWorkResult) -> float:
    """Return the mean power of training and serving, in watts."""
    return (played.train_s * train_w + (played.seconds - played.train_s) * played.other_w) / played.seconds


def find_top_mode(surface: ModeSurface) -> PowerMode:
    """Return MAXN, or the mode of the surface that is nearest to it (a measured table may lack modes)."""
    return _find_top_mode(surface.modes)


@lru_cache(maxsize=64)
def _find_top_mode(modes: Modes) -> PowerMode:
    share = modes.knobs / modes.knobs.max(axis=0)
    return modes[int(np.argmax(share.sum(axis=1)))]


# Time of a change of power mode, by knob; `fedge board-check` measures it on a real board -----------------------------


_ORIN_NANO = "arXiv 2606.16106: median on an Orin Nano, taken for every board"
SWITCH_S: Mapping[str, LabelledValue] = MappingProxyType(
    {
        "cores": LabelledValue(0.005, "estimated", "our choice per core: no length is published for a Jetson"),
        "cpu_mhz": LabelledValue(0.001, "estimated", _ORIN_NANO),
        "gpu_mhz": LabelledValue(0.005, "estimated", _ORIN_NANO),
        "mem_mhz": LabelledValue(0.008, "estimated", _ORIN_NANO),
    }
)
"""Seconds of a new value of each knob, for ``cores`` of every core that goes on or off line. Knobs change one after the
other, as fedge-powerd writes them. The clocks are measured, but by others on one board: estimated for all others. With
5 ms a core, a change of eight cores and all clocks takes about 50 ms; with 20 ms, boards with a service missed its
latency in every third round with a probe.

References:
    arXiv 2606.16106 with the author's data (dankang21/jetson-latency-lab, Orin Nano, L4T 36): time from the write until
    a new clock takes effect, median of 150 to 200 changes.
"""


def mode_change_s(before: PowerMode, after: PowerMode) -> float:
    """Return the seconds of a change of mode; 0 between equal modes."""
    clocks = (name for name in ("cpu_mhz", "gpu_mhz", "mem_mhz") if getattr(before, name) != getattr(after, name))
    return abs(after.cores - before.cores) * SWITCH_S["cores"].value + sum(SWITCH_S[name].value for name in clocks)
