"""Clocks and loads that a board shows: CPU, GPU found by its device-tree name, and memory where it can be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedge.devices.sensing.control_files import ControlFiles, number_or_none, text_or_none
from fedge.powerd.machine import Machine

CPU_POLICIES = "/sys/devices/system/cpu/cpufreq/policy*"
DEVFREQ = "/sys/class/devfreq/*"
GPU_NAMES = frozenset({"gpu", "gv11b", "gp10b", "ga10b", "gb10b"})
"""``of_node/name`` of the GPU: Nano and JetPack 6 ``gpu``, Xavier ``gv11b``, TX2 ``gp10b``, Orin ``ga10b``."""
MEMORY_CLOCKS = (
    "/sys/kernel/debug/bpmp/debug/clk/emc/rate",
    "/sys/kernel/debug/clk/emc/clk_rate",
    "/sys/kernel/debug/clk/override.emc/clk_rate",
    "/sys/class/devfreq/bwmgr/cur_freq",
)
"""Hz. TX2 to Orin; Nano; both below debugfs, which only root reads. The last is Thor's."""

Reader = Callable[[], float]


@dataclass(frozen=True, slots=True)
class ClockReaders:
    """Cheap ways to read a board's clocks; None or empty is what it does not show. Each call may raise ``OSError``."""

    policies: tuple[Reader, ...] = ()
    """kHz, one per CPU cluster."""
    gpu: Reader | None = None
    """Hz."""
    gpu_load: Reader | None = None
    """Tenths of a percent."""
    memory: Reader | None = None
    """Hz."""


def find_clock_readers(files: ControlFiles, machine: Machine) -> ClockReaders:
    """What the machine shows of its clocks to whoever runs this."""
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
    """The GPU's devfreq folder, found by the device's name in the device tree; None when there is none."""
    for folder in machine.glob(DEVFREQ):
        if text_or_none(machine, f"{folder}/device/of_node/name") in GPU_NAMES:
            return folder
    return None


def read_fastest_mhz(policies: Sequence[Reader]) -> float | None:
    """The fastest cluster's clock, MHz; a cluster whose cores are off shows none."""
    khz = [value for read in policies if (value := number_or_none(read)) is not None]
    return max(khz) / 1e3 if khz else None


def read_scaled(read: Reader | None, unit: float) -> float | None:
    """What ``read`` gives, in ``unit``; None when it cannot be read."""
    value = None if read is None else number_or_none(read)
    return None if value is None else value / unit


THERMAL_ZONES = "/sys/class/thermal/thermal_zone*"
CONSTANT_SENSOR_PREFIX = "PMIC"
"""How the name of a sensor begins that says 100 C at all times on boards up to Xavier, as their tegrastats logs show;
it would be the hottest."""
PLAUSIBLE_C = (-60.0, 200.0)
"""What lies outside is no temperature: a zone that is off says -256. Chosen by us."""


def find_temperature_readers(files: ControlFiles, machine: Machine) -> dict[str, Callable[[], float]]:
    """Per zone a cheap way to read its temperature, C; of two zones of one type the second gets its folder's name."""
    found: dict[str, Callable[[], float]] = {}
    for folder in machine.glob(THERMAL_ZONES):
        name = text_or_none(machine, f"{folder}/type")
        if name:
            known = f"{name} ({folder.rsplit('/', 1)[-1]})" if name in found else name
            found[known] = _celsius_reader(files.number_reader(f"{folder}/temp"))
    return found


def read_temperatures_c(zones: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """What the zones say now, C; cv0 to cv2 answer EAGAIN while their engine is off, and are left out."""
    seen = {name: number_or_none(read) for name, read in zones.items()}
    return keep_plausible_temperatures({name: at_c for name, at_c in seen.items() if at_c is not None})


def keep_plausible_temperatures(temperatures_c: Mapping[str, float]) -> dict[str, float]:
    """The temperatures that are some: not those of sensors that are off, or say the same at all times."""
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
    """Cheap ways to read the event counters: under-voltage, average and instantaneous over-current; () without any."""
    return tuple(
        files.number_reader(path)
        for folder in machine.glob(HARDWARE_MONITORS)
        if text_or_none(machine, f"{folder}/name") == THROTTLE_MONITOR_NAME
        for path in machine.glob(f"{folder}/oc*_event_cnt")
    )


def count_throttle_events(readers: Sequence[Callable[[], float]]) -> int | None:
    """All counters' sum; None when the board has none, or one cannot be read (the sum would seem to fall)."""
    counts = [number_or_none(read) for read in readers]
    return int(sum(c for c in counts if c is not None)) if counts and None not in counts else None
