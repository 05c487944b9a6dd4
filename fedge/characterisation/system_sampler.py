"""What the kernel says of the machine and of a tree of processes, read from ``/proc``."""

from __future__ import annotations

import contextlib
import math
import os
import re
import resource
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from fedge.characterisation.point_measurement import SensorTrace
from fedge.devices.sensing import sysfs_readings
from fedge.devices.sensing.control_files import ControlFiles
from fedge.powerd.machine import Machine
from fedge.types import Floats
from fedge.worker.host_counters import DISKSTATS
from fedge.worker.host_counters import parse_disk_read_bytes as disk_bytes

PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1e6
IDLE_COLUMNS = (3, 4)
"""The columns of ``/proc/stat`` in which a core does nothing, or waits for a disk."""
FIRST_GUEST_COLUMN = 8
"""From this column on what others count is counted again."""


def read_cpu_ticks(proc: Path) -> tuple[float, float]:
    """Ticks that all cores that are online were busy, and ticks in all, since the machine's start."""
    first = (proc / "stat").read_text("ascii").split("\n", 1)[0]
    ticks = [float(value) for value in first.split()[1:]][:FIRST_GUEST_COLUMN]
    total = sum(ticks)
    return total - sum(ticks[k] for k in IDLE_COLUMNS), total


def list_process_tree(pid: int, proc: Path) -> tuple[int, ...]:
    """A process and all below it; those that end meanwhile are left out."""
    found, todo = list[int](), [pid]
    while todo:
        at = todo.pop()
        found.append(at)
        with contextlib.suppress(OSError):
            for thread in (proc / str(at) / "task").iterdir():
                with contextlib.suppress(OSError):
                    todo += [int(child) for child in (thread / "children").read_text("ascii").split()]
    return tuple(found)


def read_resident_mb(pids: tuple[int, ...], proc: Path) -> float:
    """Resident memory of some processes, 1e6 bytes; a page that several share is counted for each of them."""
    pages = 0
    for pid in pids:
        with contextlib.suppress(OSError, IndexError, ValueError):
            pages += int((proc / str(pid) / "statm").read_text("ascii").split()[1])
    return pages * PAGE_MB


def read_storage_bytes(pids: tuple[int, ...], proc: Path) -> dict[int, float]:
    """What each process made a storage read so far, for those that may be looked at."""
    found: dict[int, float] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in (proc / str(pid) / "io").read_text("ascii").splitlines():
                if line.startswith("read_bytes:"):
                    found[pid] = float(line.split()[1])
    return found


@dataclass(frozen=True, slots=True)
class CpuWork:
    """Seconds of cores' work: the whole machine's, and that of this process with all that it saw the end of."""

    at_s: float
    all_s: float
    own_s: float

    @classmethod
    def read_now(cls, proc: Path = Path("/proc")) -> Self:
        """So far."""
        busy = read_cpu_ticks(proc)[0] / os.sysconf("SC_CLK_TCK")
        own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return cls(time.monotonic(), busy, sum(used.ru_utime + used.ru_stime for used in own))

    def other_cores_since(self, before: CpuWork) -> float:
        """How many cores others kept busy since then."""
        others_s = (self.all_s - before.all_s) - (self.own_s - before.own_s)
        return max(0.0, others_s / max(1e-9, self.at_s - before.at_s))


RAPL_FOLDER = "sys/class/powercap"
RAPL_PACKAGE = re.compile(r"intel-rapl:\d+")
"""A package; what follows a second colon is a part of one."""
RAPL_SOURCE = "RAPL, the processor's packages alone"


class PackageEnergyCounter:
    """Counters that wrap around at their range; to be read more often than that, which is minutes."""

    def __init__(self, zones: list[Path]) -> None:
        self._zones = zones
        self._range_uj = [int((zone / "max_energy_range_uj").read_text("ascii")) for zone in zones]
        self._last_uj = [self._read_uj(zone) for zone in zones]
        self._joules = 0.0

    @classmethod
    def try_open(cls, root: str = "/") -> Self | None:
        """The machine's counters; None where there are none, or this user may not read them."""
        folder = Path(root) / RAPL_FOLDER
        zones = sorted(zone for zone in folder.glob("intel-rapl:*") if RAPL_PACKAGE.fullmatch(zone.name))
        with contextlib.suppress(OSError, ValueError):
            return cls(zones) if zones else None
        return None

    def read_energy_j(self) -> float:
        """Since it was made."""
        for k, zone in enumerate(self._zones):
            now_uj = self._read_uj(zone)
            self._joules += (now_uj - self._last_uj[k]) % self._range_uj[k] / 1e6
            self._last_uj[k] = now_uj
        return self._joules

    @staticmethod
    def _read_uj(zone: Path) -> int:
        return int((zone / "energy_uj").read_text("ascii"))


JOIN_S = 5.0


@dataclass(frozen=True, slots=True)
class SystemSample:
    """The machine at one moment; NaN where nothing tells. What ends in ``_so_far`` only grows."""

    at_s: float
    busy_so_far: float
    """Ticks of all cores."""
    ticks_so_far: float
    memory_mb: float
    read_bytes_so_far: float
    joules_so_far: float
    temperature_c: float


@dataclass(eq=False)
class SystemSampler:
    """Makes looks. ``disk`` are the numbers of the block device under the images; without one, what the processes say.

    ``pid`` is the measuring program's, once it runs.
    """

    disk: str | None
    rapl: PackageEnergyCounter | None = None
    root: str = "/"
    now_s: Callable[[], float] = time.monotonic
    pid: int | None = None
    _read: dict[int, float] = field(default_factory=dict)
    """Bytes per process, also of those that ended."""

    def __post_init__(self) -> None:
        machine = Machine(self.root)
        self._files = ControlFiles(machine)
        self._proc = Path(self.root) / "proc"
        self._zones = sysfs_readings.find_temperature_readers(self._files, machine)

    def take_sample(self) -> SystemSample:
        """The machine now."""
        pids = () if self.pid is None else list_process_tree(self.pid, self._proc)
        busy, ticks = read_cpu_ticks(self._proc)
        hottest_c = max(sysfs_readings.read_temperatures_c(self._zones).values(), default=math.nan)
        return SystemSample(
            self.now_s(),
            busy_so_far=busy,
            ticks_so_far=ticks,
            memory_mb=read_resident_mb(pids, self._proc) or math.nan,
            read_bytes_so_far=self._total_read_bytes(pids),
            joules_so_far=math.nan if self.rapl is None else self.rapl.read_energy_j(),
            temperature_c=hottest_c,
        )

    def close(self) -> None:
        """Close the sensors' files."""
        self._files.close()

    def _total_read_bytes(self, pids: tuple[int, ...]) -> float:
        if self.disk is None:
            self._read.update(read_storage_bytes(pids, self._proc))
            return sum(self._read.values())
        lines = (self._proc / Path(DISKSTATS).name).read_text("ascii").splitlines()
        found = disk_bytes(self.disk, lines)
        return math.nan if found is None else found


class SamplingThread:
    """``with Looking(eyes, hz) as looking: ...`` and then ``looking.looks``, the first and last at the block's ends."""

    def __init__(self, eyes: SystemSampler, hz: float) -> None:
        self._eyes, self._period_s = eyes, 1.0 / hz
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="looking", daemon=True)
        self.looks: list[SystemSample] = []

    def __enter__(self) -> Self:
        self.looks.append(self._eyes.take_sample())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(JOIN_S)
        if error is None:
            self.looks.append(self._eyes.take_sample())
        self._eyes.close()

    def _run(self) -> None:
        begun_s, k = time.monotonic(), 0
        while True:
            k = max(k + 1, math.ceil((time.monotonic() - begun_s) / self._period_s))
            if self._stop.wait(max(0.0, begun_s + k * self._period_s - time.monotonic())):
                return
            with contextlib.suppress(OSError):  # a look that fails is a gap
                self.looks.append(self._eyes.take_sample())


def build_sensor_trace(looks: Sequence[SystemSample], begun_s: float) -> SensorTrace:
    """Element i is of the stretch that ends with look i + 1; times count from ``begun_s``."""
    at_s = _sample_column(looks, "at_s")
    span_s = np.maximum(np.diff(at_s), 1e-9)
    ticks = np.maximum(np.diff(_sample_column(looks, "ticks_so_far")), 1e-9)
    nothing = np.full(len(span_s), math.nan)
    return SensorTrace(
        at_s=at_s[1:] - begun_s,
        cpu_load=np.clip(np.diff(_sample_column(looks, "busy_so_far")) / ticks, 0.0, 1.0),
        gpu_load=nothing,
        memory_mb=_sample_column(looks, "memory_mb")[1:],
        disk_mb_per_s=np.diff(_sample_column(looks, "read_bytes_so_far")) / 1e6 / span_s,
        power_w=np.diff(_sample_column(looks, "joules_so_far")) / span_s,
        temperature_c=_sample_column(looks, "temperature_c")[1:],
    )


def counter_growth(looks: Sequence[SystemSample], name: str, start_s: float, end_s: float) -> float | None:
    """By how much a counter grew from one moment to another, between looks along a line; None where nothing tells."""
    ends = np.interp([start_s, end_s], _sample_column(looks, "at_s"), _sample_column(looks, name))
    grew = float(ends[1] - ends[0])
    return None if math.isnan(grew) else grew


def mean_cpu_load(looks: Sequence[SystemSample], start_s: float, end_s: float) -> float | None:
    """Mean load of all cores over a stretch, 0 to 1."""
    busy, ticks = (counter_growth(looks, name, start_s, end_s) for name in ("busy_so_far", "ticks_so_far"))
    return None if busy is None or not ticks else min(1.0, busy / ticks)


def peak_value(looks: Sequence[SystemSample], name: str, start_s: float, end_s: float) -> float | None:
    """The highest value of a stretch and of the looks about it; None where there is no sensor."""
    at_s, values = _sample_column(looks, "at_s"), _sample_column(looks, name)
    first, last = np.searchsorted(at_s, start_s, "right") - 1, np.searchsorted(at_s, end_s, "left")
    among = values[max(0, first) : last + 1]
    among = among[~np.isnan(among)]
    return float(among.max()) if len(among) else None


def _sample_column(looks: Sequence[SystemSample], name: str) -> Floats:
    return np.array([getattr(look, name) for look in looks], dtype=np.float64)
