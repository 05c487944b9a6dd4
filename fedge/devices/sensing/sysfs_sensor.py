"""The board's own sensors through sysfs: power by rail, temperatures, clocks, load and throttling.

The load of memory is not among them: ``/sys/kernel/debug/cactmon/mc_all`` (JetPack 6) and
``/sys/kernel/actmon_avg_activity/mc_all`` (before) count the memory controller's active cycles, but the count of a full
load is not documented, and public programs differ by a factor of 100. ``fedge devices record`` records both files.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedge.devices.sensing import choose_total_formula, evaluate_formula_w, rails_in_formula
from fedge.errors import SensorLost
from fedge.powerd.knobs import GPU_NODES
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
        self._zones = find_temperature_readers(self._files, machine)
        self._clocks = find_clock_readers(self._files, machine)
        self._counters = find_throttle_counters(self._files, machine)

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
                gpu_load=read_scaled(self._clocks.gpu_load, 1e3),
                cpu_mhz=read_fastest_mhz(self._clocks.policies),
                gpu_mhz=read_scaled(self._clocks.gpu, 1e6),
                mem_mhz=read_scaled(self._clocks.memory, 1e6),
                throttle_events=count_throttle_events(self._counters),
            )

    def close(self) -> None:
        """Close the files."""
        with self._turn:
            self._files.close()
            self._rail_files.close()

    def _temperatures_at(self, at_s: float) -> dict[str, float]:
        if self._temperatures is None or at_s >= self._temperatures[0] + self._every_s:
            self._temperatures = at_s, read_temperatures_c(self._zones)
        return self._temperatures[1]

    def _find_rails(self) -> dict[str, Callable[[], float]]:
        self._rail_files.close()
        self._rail_files = files = ControlFiles(self._machine)
        return {rail.label: build_rail_reader(files, rail) for rail in find_rails(self._machine)}

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


# Clocks, loads, temperatures and throttle counters --------------------------------------------------------------------


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
    """Return a fast reader of each thermal zone's temperature in thousandths of a degree Celsius, by type.

    If two zones have the same type, the folder's name is appended to the second.
    """
    found: dict[str, Callable[[], float]] = {}
    for folder in machine.glob(THERMAL_ZONES):
        name = text_or_none(machine, f"{folder}/type")
        if name:
            known = f"{name} ({folder.rsplit('/', 1)[-1]})" if name in found else name
            found[known] = files.number_reader(f"{folder}/temp")
    return found


def read_temperatures_c(zones: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """Read all zones, in degrees Celsius; cv0 to cv2 fail with EAGAIN while their engine is off, and are left out."""
    seen = {name: read_scaled(read, 1e3) for name, read in zones.items()}
    return keep_plausible_temperatures({name: at_c for name, at_c in seen.items() if at_c is not None})


def keep_plausible_temperatures(temperatures_c: Mapping[str, float]) -> dict[str, float]:
    """Remove temperatures of sensors that are off or report a constant."""
    low, high = PLAUSIBLE_C
    return {
        name: at_c
        for name, at_c in temperatures_c.items()
        if low < at_c < high and not name.startswith(CONSTANT_SENSOR_PREFIX)
    }


HARDWARE_MONITORS = "/sys/class/hwmon/hwmon*"
THROTTLE_MONITOR_NAME = "soctherm_oc"


def _find_monitors(machine: Machine, name: str) -> list[str]:
    """Return the folders of the hardware monitors of this name, whatever their driver."""
    return [path for path in machine.glob(HARDWARE_MONITORS) if text_or_none(machine, f"{path}/name") == name]


def find_throttle_counters(files: ControlFiles, machine: Machine) -> tuple[Callable[[], float], ...]:
    """Return fast readers of the event counters: under-voltage, average and instantaneous over-current; or ()."""
    return tuple(
        files.number_reader(path)
        for folder in _find_monitors(machine, THROTTLE_MONITOR_NAME)
        for path in machine.glob(f"{folder}/oc*_event_cnt")
    )


def count_throttle_events(readers: Sequence[Callable[[], float]]) -> int | None:
    """Return the sum of all counters.

    Returns:
        None if there are no counters or one cannot be read, since the sum would seem to decrease.
    """
    counts = [number_or_none(read) for read in readers]
    return int(sum(c for c in counts if c is not None)) if counts and None not in counts else None


# INA3221 power monitors, found by their rails' labels: iio on JetPack 4, hwmon from JetPack 5 on ----------------------


HWMON = "/sys/bus/i2c/drivers/ina3221/*/hwmon/hwmon*"
IIO = "/sys/bus/i2c/drivers/ina3221x/*/iio:device*"
SUM_CHANNEL = 7
"""Channel of the hwmon driver for the sum of shunt voltages, which is not a rail."""
_CHANNEL = re.compile(r"(?:in|rail_name_)(\d{1,2})(?:_label)?")


@dataclass(frozen=True, slots=True)
class PowerRail:
    """A rail and its files: ``(mW,)``, or ``(mV, mA)``, whose product is its power."""

    label: str
    files: tuple[str, ...]


def find_rails(machine: Machine) -> tuple[PowerRail, ...]:
    """List all connected rails in the order of chips and channels; repeated labels are left out."""
    folders = machine.glob(HWMON) or _find_monitors(machine, "ina3221")
    rails = [
        rail
        for folder in folders
        for path in machine.glob(f"{folder}/in*_label")
        if (rail := _hwmon_rail(machine, folder, path))
    ]
    for folder in machine.glob(IIO):
        paths = machine.glob(f"{folder}/rail_name_*")
        rails += [rail for path in paths if (rail := _iio_rail(machine, folder, path))]
    first: dict[str, PowerRail] = {}
    for rail in rails:
        first.setdefault(rail.label, rail)
    return tuple(first.values())


def build_rail_reader(files: ControlFiles, rail: PowerRail) -> Callable[[], float]:
    """Return a fast function that reads a rail's power in watts; it raises ``OSError`` or ``ValueError``."""
    first, *rest = (files.number_reader(path) for path in rail.files)
    if not rest:
        return lambda: first() / 1e3
    (second,) = rest
    return lambda: first() * second() / 1e6


def _hwmon_rail(machine: Machine, folder: str, path: str) -> PowerRail | None:
    channel, label = _parse_channel(path), text_or_none(machine, path)
    files = (f"{folder}/in{channel}_input", f"{folder}/curr{channel}_input")
    if channel in {None, SUM_CHANNEL} or not _is_connected(label) or not all(map(machine.exists, files)):
        return None
    return PowerRail(str(label), files)


def _iio_rail(machine: Machine, folder: str, path: str) -> PowerRail | None:
    channel, label = _parse_channel(path), text_or_none(machine, path)
    if channel is None or not _is_connected(label):
        return None
    power = f"{folder}/in_power{channel}_input"
    if machine.exists(power):
        return PowerRail(str(label), (power,))
    files = (f"{folder}/in_voltage{channel}_input", f"{folder}/in_current{channel}_input")
    return PowerRail(str(label), files) if all(map(machine.exists, files)) else None


def _parse_channel(path: str) -> int | None:
    found = _CHANNEL.fullmatch(path.rsplit("/", 1)[-1])
    return None if found is None else int(found[1])


def _is_connected(label: str | None) -> bool:
    return bool(label) and "NC" not in str(label) and "sum of shunt voltages" not in str(label).lower()


# Control files --------------------------------------------------------------------------------------------------------


MAX_ATTRIBUTE_BYTES = 4096
"""Maximum size of a sysfs attribute: one page."""


class ControlFile:
    """A file that is opened at the first read, and opened again if it was removed or replaced.

    Args:
        plain: True for an ordinary file, which can still be read after it was removed, where sysfs fails with ENODEV.
    """

    def __init__(self, path: Path, plain: bool) -> None:
        self._path, self._plain = str(path), plain
        self._file: int | None = None

    def __del__(self) -> None:
        self.close()

    def read(self) -> bytes:
        """Read the first page of the file; raises ``OSError``."""
        if self._file is None:
            return self._reopen()
        try:
            text = os.pread(self._file, MAX_ATTRIBUTE_BYTES, 0)
        except BlockingIOError:  # EAGAIN: the sensor is suspended, but the file is still valid
            raise
        except OSError:  # ENODEV: the driver was rebound, or a core was switched off and on
            return self._reopen()
        return self._reopen() if self._plain and not os.fstat(self._file).st_nlink else text

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _reopen(self) -> bytes:
        self.close()
        self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self._file, MAX_ATTRIBUTE_BYTES, 0)


class ControlFiles:
    """The open files of a sensor."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._held: list[ControlFile] = []

    def number_reader(self, path: str) -> Callable[[], float]:
        """Return a fast function that reads a number.

        A machine that overrides ``read`` is asked every time.

        Returns:
            A function that raises ``OSError`` if the file cannot be read and ``ValueError`` if it has no number.
        """
        if type(self._machine).read is not Machine.read:
            return lambda: float(self._machine.read(path))
        held = ControlFile(self._machine.path(path), plain=self._machine.root != "/")
        self._held.append(held)
        return lambda: float(held.read())

    def close(self) -> None:
        """Close all files."""
        for held in self._held:
            held.close()


def number_or_none(read: Callable[[], float]) -> float | None:
    """Return the result of ``read``, or None if the sensor cannot be read now."""
    try:
        return read()
    except (OSError, ValueError):
        return None


def text_or_none(machine: Machine, path: str) -> str | None:
    """Return the text of a file, or None if it cannot be read."""
    try:
        return machine.read(path)
    except OSError:
        return None
