"""Readers of clocks, loads, temperatures and throttle counters in sysfs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedge.devices.sensing.control_files import ControlFiles, number_or_none, text_or_none
from fedge.powerd.knobs import GPU_NODES
from fedge.powerd.machine import Machine

CPU_POLICIES = "/sys/devices/system/cpu/cpufreq/policy*"
DEVFREQ = "/sys/class/devfreq/*"
MEMORY_CLOCKS = (
    "/sys/kernel/debug/bpmp/debug/clk/emc/rate",
    "/sys/kernel/debug/clk/emc/clk_rate",
    "/sys/kernel/debug/clk/override.emc/clk_rate",
    "/sys/class/devfreq/bwmgr/cur_freq",
)
"""Files with the memory clock in Hz, of TX2 to Orin, Nano, and Thor (the last). Those below debugfs are readable by
root only.
"""

Reader = Callable[[], float]


@dataclass(frozen=True, slots=True)
class ClockReaders:
    """Fast readers of a board's clocks, None or empty if the board does not show them. Each may raise ``OSError``.

    Attributes:
        policies: Clock of each CPU cluster in kHz.
        gpu: GPU clock in Hz.
        gpu_load: GPU load in tenths of a percent.
        memory: Memory clock in Hz.
    """

    policies: tuple[Reader, ...] = ()
    gpu: Reader | None = None
    gpu_load: Reader | None = None
    memory: Reader | None = None


def find_clock_readers(files: ControlFiles, machine: Machine) -> ClockReaders:
    """Find the clocks that the current user can read."""
    gpu = find_gpu_folder(machine)
    policies = tuple(files.number_reader(f"{folder}/scaling_cur_freq") for folder in machine.glob(CPU_POLICIES))
    memory = next(
        (read for path in MEMORY_CLOCKS if number_or_none(read := files.number_reader(path)) is not None), None
    )
    if gpu is None:
        return ClockReaders(policies, memory=memory)
    load = f"{gpu}/device/load"
    return ClockReaders(
        policies,
        files.number_reader(f"{gpu}/cur_freq"),
        files.number_reader(load) if machine.exists(load) else None,
        memory,
    )


def find_gpu_folder(machine: Machine) -> str | None:
    """Return the GPU's devfreq folder, found by its name in the device tree, or None."""
    for folder in machine.glob(DEVFREQ):
        if text_or_none(machine, f"{folder}/device/of_node/name") in GPU_NODES:
            return folder
    return None


def read_fastest_mhz(policies: Sequence[Reader]) -> float | None:
    """Return the clock of the fastest CPU cluster in MHz, or None; a cluster whose cores are off has none."""
    khz = [value for read in policies if (value := number_or_none(read)) is not None]
    return max(khz) / 1e3 if khz else None


def read_scaled(read: Reader | None, unit: float) -> float | None:
    """Return the value of ``read`` divided by ``unit``, or None if it cannot be read."""
    value = None if read is None else number_or_none(read)
    return None if value is None else value / unit


THERMAL_ZONES = "/sys/class/thermal/thermal_zone*"
CONSTANT_SENSOR_PREFIX = "PMIC"
"""Prefix of the name of a sensor that always reports 100 C on boards up to Xavier, as their tegrastats logs show; it
would be the hottest.
"""
PLAUSIBLE_C = (-60.0, 200.0)
"""Range of plausible temperatures; a zone that is off reports -256."""


def find_temperature_readers(files: ControlFiles, machine: Machine) -> dict[str, Callable[[], float]]:
    """Return a fast reader of each thermal zone's temperature in degrees Celsius, by type.

    If two zones have the same type, the folder's name is appended to the second.
    """
    found: dict[str, Callable[[], float]] = {}
    for folder in machine.glob(THERMAL_ZONES):
        name = text_or_none(machine, f"{folder}/type")
        if name:
            known = f"{name} ({folder.rsplit('/', 1)[-1]})" if name in found else name
            found[known] = _celsius_reader(files.number_reader(f"{folder}/temp"))
    return found


def read_temperatures_c(zones: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """Read all zones, in degrees Celsius; cv0 to cv2 fail with EAGAIN while their engine is off, and are left out."""
    seen = {name: number_or_none(read) for name, read in zones.items()}
    return keep_plausible_temperatures({name: at_c for name, at_c in seen.items() if at_c is not None})


def keep_plausible_temperatures(temperatures_c: Mapping[str, float]) -> dict[str, float]:
    """Remove temperatures of sensors that are off or report a constant."""
    low, high = PLAUSIBLE_C
    return {
        name: at_c
        for name, at_c in temperatures_c.items()
        if low < at_c < high and not name.startswith(CONSTANT_SENSOR_PREFIX)
    }


def _celsius_reader(millis: Callable[[], float]) -> Callable[[], float]:
    return lambda: millis() / 1e3


HARDWARE_MONITORS = "/sys/class/hwmon/hwmon*"
THROTTLE_MONITOR_NAME = "soctherm_oc"


def find_throttle_counters(files: ControlFiles, machine: Machine) -> tuple[Callable[[], float], ...]:
    """Return fast readers of the event counters: under-voltage, average and instantaneous over-current; or ()."""
    return tuple(
        files.number_reader(path)
        for folder in machine.glob(HARDWARE_MONITORS)
        if text_or_none(machine, f"{folder}/name") == THROTTLE_MONITOR_NAME
        for path in machine.glob(f"{folder}/oc*_event_cnt")
    )


def count_throttle_events(readers: Sequence[Callable[[], float]]) -> int | None:
    """Return the sum of all counters.

    Returns:
        None if there are no counters or one cannot be read, since the sum would seem to decrease.
    """
    counts = [number_or_none(read) for read in readers]
    return int(sum(c for c in counts if c is not None)) if counts and None not in counts else None
