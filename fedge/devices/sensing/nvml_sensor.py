"""Power of this machine's NVIDIA GPUs, and of its processor where the kernel's RAPL counters can be read."""

from __future__ import annotations

import threading
from typing import Any

from fedge.devices.sensing.energy_counters import MJ_PER_J, MW_PER_W, NO_NVML, PackageEnergyCounter, try_load_nvml
from fedge.errors import SensorLost
from fedge.powerd.machine import Machine
from fedge.protocols import Clock
from fedge.types import SensorSample

PERCENT = 100.0
CPU_RAIL = "CPU"
LEAST_SPAN_S = 0.09
"""Seconds between two readings, a little less than ``interval_s``: counters rise in steps of tens of milliseconds, so
that the power over less time is none. With 0.04, readings beside the sampler change the energy of 3 s by up to 3 %.
"""


class NvmlSensor:
    """A ``PowerSensor`` with a rail for each card, and one for the processor's packages. Thread-safe.

    A card that counts its energy (Volta and later) gives the mean power since the last reading, at the middle of that
    time: NVML's own power is an average over the last second on many cards, which would blur a change of mode.

    Args:
        total_power: Ignored: the total is the sum of all rails.

    Raises:
        SensorLost: There is no card, or its power cannot be read.
    """

    name = "nvml"
    interval_s = 0.1

    def __init__(self, machine: Machine, clock: Clock, total_power: str | None = None) -> None:
        nvml = try_load_nvml()
        if nvml is None:
            raise SensorLost(NO_NVML)
        self._nvml, self._clock = nvml, clock
        try:
            count = nvml.nvmlDeviceGetCount()
            self._cards = {f"GPU{i}": nvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)}
        except nvml.NVMLError as error:
            raise SensorLost(f"the GPUs cannot be read: {error}") from error
        if not self._cards:
            raise SensorLost("there is no NVIDIA GPU")
        self._packages = PackageEnergyCounter.try_open(machine.root)
        self.rails = (*self._cards, *([CPU_RAIL] if self._packages is not None else []))
        self._turn = threading.Lock()
        self._last_s, self._last_j = self._clock.now_s(), self._read_energies_j()
        self._sample: SensorSample | None = None

    @property
    def total_power(self) -> str:
        """Formula of the total power."""
        return " + ".join(self.rails)

    def read(self) -> SensorSample:
        """Read all cards and the processor once, or return the last sample again within ``LEAST_SPAN_S``.

        Raises:
            SensorLost: A card or the processor cannot be read any more.
        """
        with self._turn:
            early_s = self._last_s + LEAST_SPAN_S - self._clock.now_s()
            if self._sample is None or early_s <= 0:
                self._clock.sleep_s(max(0.0, early_s))
                self._sample = self._take_sample()
            return self._sample

    def _take_sample(self) -> SensorSample:
        now_s, now_j = self._clock.now_s(), self._read_energies_j()
        span_s, before_j = now_s - self._last_s, self._last_j
        rails_w = {
            rail: max(0.0, (now_j[rail] - before_j[rail]) / span_s)
            if rail in now_j and rail in before_j
            else self._ask("PowerUsage", rail) / MW_PER_W
            for rail in self.rails
        }
        self._last_s, self._last_j = now_s, now_j
        return self._build_sample(now_s - span_s / 2 if now_j else now_s, rails_w)

    def close(self) -> None:
        """Do nothing: NVML stays open as long as the process."""

    def _build_sample(self, at_s: float, rails_w: dict[str, float]) -> SensorSample:
        nvml, first = self._nvml, next(iter(self._cards))
        load = self._try_ask("UtilizationRates", first)
        temperatures = {rail: self._try_ask("Temperature", rail, nvml.NVML_TEMPERATURE_GPU) for rail in self._cards}
        return SensorSample(
            at_s,
            sum(rails_w.values()),
            rails_w,
            temperatures_c={rail: float(t_c) for rail, t_c in temperatures.items() if t_c is not None},
            gpu_load=None if load is None else load.gpu / PERCENT,
            gpu_mhz=self._try_ask("ClockInfo", first, nvml.NVML_CLOCK_SM),
            mem_mhz=self._try_ask("ClockInfo", first, nvml.NVML_CLOCK_MEM),
        )

    def _read_energies_j(self) -> dict[str, float]:
        """Return the counted energy by rail; without the cards that do not count."""
        counted = {rail: self._try_ask("TotalEnergyConsumption", rail) for rail in self._cards}
        energies = {rail: millijoules / MJ_PER_J for rail, millijoules in counted.items() if millijoules is not None}
        if self._packages is not None:
            joules = self._packages.try_read_energy_j()
            if joules is None:
                raise SensorLost("the processor's energy (RAPL) cannot be read any more")
            energies[CPU_RAIL] = joules
        return energies

    def _ask(self, what: str, rail: str, *options: int) -> Any:
        try:
            return getattr(self._nvml, f"nvmlDeviceGet{what}")(self._cards[rail], *options)
        except self._nvml.NVMLError as error:
            raise SensorLost(f"{rail} cannot be read: {error}") from error

    def _try_ask(self, what: str, rail: str, *options: int) -> Any:
        try:
            return self._ask(what, rail, *options)
        except SensorLost:
            return None
