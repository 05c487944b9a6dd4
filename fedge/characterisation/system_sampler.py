"""Samples of the machine and of a process tree, read from ``/proc`` and the processor's energy counters."""

from __future__ import annotations

import contextlib
import math
import os
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
from fedge.devices.sensing import sysfs_sensor
from fedge.devices.sensing.energy_counters import PackageEnergyCounter
from fedge.devices.sensing.sysfs_sensor import ControlFiles
from fedge.powerd.machine import Machine
from fedge.types import Floats
from fedge.worker.page_cache import DISKSTATS
from fedge.worker.page_cache import parse_disk_read_bytes as disk_bytes

PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1e6
IDLE_COLUMNS = (3, 4)
"""Columns of ``/proc/stat`` that count idle time and waiting for a disk."""
FIRST_GUEST_COLUMN = 8
"""From this column on, time is counted that earlier columns already include."""


def read_cpu_ticks(proc: Path) -> tuple[float, float]:
    """Return the busy ticks and all ticks of the online cores since boot."""
    first = (proc / "stat").read_text("ascii").split("\n", 1)[0]
    ticks = [float(value) for value in first.split()[1:]][:FIRST_GUEST_COLUMN]
    total = sum(ticks)
    return total - sum(ticks[k] for k in IDLE_COLUMNS), total


def list_process_tree(pid: int, proc: Path) -> tuple[int, ...]:
    """Return a process and its descendants; processes that end meanwhile are left out."""
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
    """Return the resident memory of processes in MB (1e6 bytes); a shared page counts once per process."""
    pages = 0
    for pid in pids:
        with contextlib.suppress(OSError, IndexError, ValueError):
            pages += int((proc / str(pid) / "statm").read_text("ascii").split()[1])
    return pages * PAGE_MB


def read_storage_bytes(pids: tuple[int, ...], proc: Path) -> dict[int, float]:
    """Return the bytes that each process, if this user may inspect it, has read from storage so far."""
    found: dict[int, float] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in (proc / str(pid) / "io").read_text("ascii").splitlines():
                if line.startswith("read_bytes:"):
                    found[pid] = float(line.split()[1])
    return found


@dataclass(frozen=True, slots=True)
class CpuWork:
    """Core-seconds of work so far: of the whole machine, and of this process with its terminated children."""

    at_s: float
    all_s: float
    own_s: float

    @classmethod
    def read_now(cls) -> Self:
        """Read the present values."""
        busy = read_cpu_ticks(Path("/proc"))[0] / os.sysconf("SC_CLK_TCK")
        own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return cls(time.monotonic(), busy, sum(used.ru_utime + used.ru_stime for used in own))

    def other_cores_since(self, before: CpuWork) -> float:
        """Return the mean number of cores that other programs kept busy since ``before``."""
        others_s = (self.all_s - before.all_s) - (self.own_s - before.own_s)
        return max(0.0, others_s / max(1e-9, self.at_s - before.at_s))


RAPL_SOURCE = "RAPL, the processor's packages alone"
JOIN_S = 5.0


@dataclass(frozen=True, slots=True)
class SystemSample:
    """The machine at one moment; NaN where there is no source. Fields ending in ``_so_far`` are counters."""

    at_s: float
    busy_so_far: float
    """Busy ticks of all cores."""
    ticks_so_far: float
    memory_mb: float
    read_bytes_so_far: float
    joules_so_far: float
    temperature_c: float


@dataclass(eq=False)
class SystemSampler:
    """Takes samples of the machine and of the measuring program.

    Attributes:
        disk: Numbers of the block device that holds the images, such as "8:1"; None: reads are counted per process.
        pid: Process id of the measuring program once it runs.
    """

    disk: str | None
    rapl: PackageEnergyCounter | None = None
    root: str = "/"
    now_s: Callable[[], float] = time.monotonic
    pid: int | None = None
    _read: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        machine = Machine(self.root)
        self._files = ControlFiles(machine)
        self._proc = Path(self.root) / "proc"
        self._zones = sysfs_sensor.find_temperature_readers(self._files, machine)

    def take_sample(self) -> SystemSample:
        """Take a sample now."""
        pids = () if self.pid is None else list_process_tree(self.pid, self._proc)
        busy, ticks = read_cpu_ticks(self._proc)
        hottest_c = max(sysfs_sensor.read_temperatures_c(self._zones).values(), default=math.nan)
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
    """Samples in the background: ``with SamplingThread(sampler, hz) as sampling: ...``, then read ``sampling.looks``.

    The first and the last sample are taken at the ends of the block.
    """

    def __init__(self, sampler: SystemSampler, hz: float) -> None:
        self._sampler, self._period_s = sampler, 1.0 / hz
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="looking", daemon=True)
        self.samples: list[SystemSample] = []

    def __enter__(self) -> Self:
        self.samples.append(self._sampler.take_sample())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(JOIN_S)
        if error is None:
            self.samples.append(self._sampler.take_sample())
        self._sampler.close()

    def _run(self) -> None:
        begun_s, k = time.monotonic(), 0
        while True:
            k = max(k + 1, math.ceil((time.monotonic() - begun_s) / self._period_s))
            if self._stop.wait(max(0.0, begun_s + k * self._period_s - time.monotonic())):
                return
            with contextlib.suppress(OSError):  # a failed sample leaves a gap
                self.samples.append(self._sampler.take_sample())


def build_sensor_trace(samples: Sequence[SystemSample], begun_s: float) -> SensorTrace:
    """Build a trace of n elements, its times from ``begun_s``, from n + 1 samples in time order.

    Rates in element i are means over the interval that ends with sample i + 1.
    """
    at_s = _sample_column(samples, "at_s")
    span_s = np.maximum(np.diff(at_s), 1e-9)
    ticks = np.maximum(np.diff(_sample_column(samples, "ticks_so_far")), 1e-9)
    nothing = np.full(len(span_s), math.nan)
    return SensorTrace(
        at_s=at_s[1:] - begun_s,
        cpu_load=np.clip(np.diff(_sample_column(samples, "busy_so_far")) / ticks, 0.0, 1.0),
        gpu_load=nothing,
        memory_mb=_sample_column(samples, "memory_mb")[1:],
        disk_mb_per_s=np.diff(_sample_column(samples, "read_bytes_so_far")) / 1e6 / span_s,
        power_w=np.diff(_sample_column(samples, "joules_so_far")) / span_s,
        temperature_c=_sample_column(samples, "temperature_c")[1:],
    )


def counter_growth(samples: Sequence[SystemSample], name: str, start_s: float, end_s: float) -> float | None:
    """Return the growth of a counter over an interval of the samples' clock, or None if there is no source.

    Values are interpolated linearly between samples.
    """
    ends = np.interp([start_s, end_s], _sample_column(samples, "at_s"), _sample_column(samples, name))
    return none_if_nan(ends[1] - ends[0])


def none_if_nan(value: float) -> float | None:
    """Return a number, or None for NaN."""
    return None if math.isnan(value) else float(value)


def mean_cpu_load(samples: Sequence[SystemSample], start_s: float, end_s: float) -> float | None:
    """Return the mean load of all cores over an interval, from 0 to 1, or None if it is not known."""
    busy, ticks = (counter_growth(samples, name, start_s, end_s) for name in ("busy_so_far", "ticks_so_far"))
    return None if busy is None or not ticks else min(1.0, busy / ticks)


def peak_value(samples: Sequence[SystemSample], name: str, start_s: float, end_s: float) -> float | None:
    """Return the maximum of a field over an interval and its adjacent samples, or None if there is no sensor."""
    at_s, values = _sample_column(samples, "at_s"), _sample_column(samples, name)
    first, last = np.searchsorted(at_s, start_s, "right") - 1, np.searchsorted(at_s, end_s, "left")
    among = values[max(0, first) : last + 1]
    among = among[~np.isnan(among)]
    return float(among.max()) if len(among) else None


def _sample_column(samples: Sequence[SystemSample], name: str) -> Floats:
    return np.array([getattr(sample, name) for sample in samples], dtype=np.float64)
