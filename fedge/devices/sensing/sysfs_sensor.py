"""The board's own sensors through sysfs: power by rail, temperatures, clocks, load and throttling."""

from __future__ import annotations

import threading
from collections.abc import Callable

from fedge.devices.sensing import ina3221, sysfs_readings
from fedge.devices.sensing.control_files import ControlFiles
from fedge.devices.sensing.power_formula import choose_total_formula, evaluate_formula_w, rails_in_formula
from fedge.errors import SensorLost
from fedge.powerd.machine import Machine
from fedge.protocols import Clock
from fedge.types import SensorSample

NO_RAILS = (
    "looked for INA3221 channels below /sys/bus/i2c/drivers/ina3221 and ina3221x; check that this is a Jetson "
    "and that its ina3221 driver is bound (ls /sys/bus/i2c/drivers), or choose another sensor"
)


TEMPERATURE_INTERVAL_S = 1.0
"""Least seconds between temperature reads: temperatures change slowly, and on newer boards each read calls the
firmware.
"""


class SysfsSensor:
    """A ``PowerSensor`` that reads sysfs, without root. Thread-safe.

    The rails of total power are required; anything else that cannot be read is left out of a sample. Files stay open.

    Raises:
        SensorLost: The board has no power rails.
    """

    interval_s = 0.0
    """Zero, because every read takes a new sample."""

    def __init__(
        self,
        machine: Machine,
        clock: Clock,
        total_power: str | None = None,
        temperatures_every_s: float = TEMPERATURE_INTERVAL_S,
    ) -> None:
        self._machine, self._clock = machine, clock
        self._turn = threading.Lock()
        """Held during a read, which may open and close files that another thread reads."""
        self._files, self._rail_files = ControlFiles(machine), ControlFiles(machine)
        self._rails = self._find_rails()
        self._total = choose_total_formula(self._rails, total_power, NO_RAILS)
        self._wanted = total_power
        self._every_s = temperatures_every_s
        self._temperatures: tuple[float, dict[str, float]] | None = None
        """Time of the last temperature read, and its result."""
        self._zones = sysfs_readings.find_temperature_readers(self._files, machine)
        self._clocks = sysfs_readings.find_clock_readers(self._files, machine)
        self._counters = sysfs_readings.find_throttle_counters(self._files, machine)

    @property
    def total_power(self) -> str:
        return self._total

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user on what this board does not show, and why; empty if nothing is missing."""
        lacking = {
            f"its rails are {', '.join(self._rails)}: the total is {self._total}, not {self._wanted}": (
                self._wanted not in {None, self._total}
            ),
            "no memory clock: it lies in /sys/kernel/debug, which only root can read": self._clocks.memory is None,
            "no GPU found below /sys/class/devfreq: no GPU clock, no GPU load": self._clocks.gpu is None,
            "no thermal zone": not self._zones,
            "no over-current counters (hwmon soctherm_oc): throttling is not seen": not self._counters,
        }
        return tuple(note for note, true in lacking.items() if true)

    def read(self) -> SensorSample:
        """Take a sample.

        Raises:
            SensorLost: A rail of total power cannot be read.
        """
        with self._turn:
            at_s = self._clock.now_s()
            rails_w, total_w = self._read_power()
            return SensorSample(
                at_s=at_s,
                total_w=total_w,
                rails_w=rails_w,
                temperatures_c=self._temperatures_at(at_s),
                gpu_load=sysfs_readings.read_scaled(self._clocks.gpu_load, 1e3),
                cpu_mhz=sysfs_readings.read_fastest_mhz(self._clocks.policies),
                gpu_mhz=sysfs_readings.read_scaled(self._clocks.gpu, 1e6),
                mem_mhz=sysfs_readings.read_scaled(self._clocks.memory, 1e6),
                throttle_events=sysfs_readings.count_throttle_events(self._counters),
            )

    def close(self) -> None:
        """Close the files."""
        with self._turn:
            self._files.close()
            self._rail_files.close()

    def _temperatures_at(self, at_s: float) -> dict[str, float]:
        if self._temperatures is None or at_s >= self._temperatures[0] + self._every_s:
            self._temperatures = at_s, sysfs_readings.read_temperatures_c(self._zones)
        return self._temperatures[1]

    def _find_rails(self) -> dict[str, Callable[[], float]]:
        self._rail_files.close()
        self._rail_files = files = ControlFiles(self._machine)
        return {rail.label: ina3221.build_rail_reader(files, rail) for rail in ina3221.find_rails(self._machine)}

    def _read_power(self) -> tuple[dict[str, float], float]:
        """Return power by rail and in total, in watts; after an error, search again, since hwmonN may have changed."""
        for find_rails in (None, self._find_rails):
            self._rails = self._rails if find_rails is None else find_rails()
            rails_w, faults = _read_rails(self._rails)
            total_w = evaluate_formula_w(self._total, rails_w)
            if total_w is not None:
                return rails_w, total_w
        missing = [rail for rail in rails_in_formula(self._total) if rail not in rails_w]
        why = "; ".join(f"{rail}: {faults.get(rail, 'its channel is gone')}" for rail in missing)
        raise SensorLost(
            f"the total {self._total} cannot be read ({why}); check the board's power monitor (dmesg | grep ina3221), "
            "or start again with the rails that are left"
        )


def _read_rails(rails: dict[str, Callable[[], float]]) -> tuple[dict[str, float], dict[str, str]]:
    """Return power in watts of the rails that can be read, and errors of the others."""
    watts, faults = {}, {}
    for label, read in rails.items():
        try:
            watts[label] = read()
        except (OSError, ValueError) as error:
            faults[label] = str(error)
    return watts, faults
