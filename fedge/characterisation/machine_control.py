"""The machines that points are measured on: which modes and clocks can be set, and what sensors and ``/proc`` tell.

A machine has a ``title`` for users, its top mode ``maxn`` (None where modes cannot be set), the name of its power
``meter`` (None without one), and the ``software`` versions that measurements depend on besides Python packages.
``hold`` configures it for a point, yields its session, and restores the original setting on exit.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import platform
import resource
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import numpy as np

from fedge.characterisation.point_measurement import SensorTrace
from fedge.characterisation.sweep_plan import SweepPoint
from fedge.confidence_interval import mean_of_known
from fedge.devices.board_spec import build_board_spec, mode_to_wire
from fedge.devices.jetson_board import CLOCK_TOLERANCE, BoardLease
from fedge.devices.local_board import (
    BoardLocation,
    LocalBoard,
    describe_board,
    find_board_spec,
    open_local_board,
    parse_identity,
    read_processor_name,
)
from fedge.devices.sensing import sysfs_sensor
from fedge.devices.sensing.energy_counters import PackageEnergyCounter
from fedge.devices.sensing.sysfs_sensor import ControlFiles
from fedge.errors import BoardError, SensorLost
from fedge.powerd.machine import Machine
from fedge.powerd.powerd_client import SOCKET, PowerdClient, PowerdError
from fedge.types import Floats, PowerMode
from fedge.worker.page_cache import DISKSTATS
from fedge.worker.page_cache import parse_disk_read_bytes as disk_bytes

LOCK_MIN = "lock-min"
"""Permission that the daemon must grant in addition to modes, so that clocks do not fall below those of the mode."""


class JetsonMachine:
    """A board with a power daemon.

    Raises:
        BoardError: The daemon does not answer, or the board is unknown.
    """

    def __init__(self, place: BoardLocation) -> None:
        self._place = place
        self._described: Mapping[str, Any] = describe_board(place)
        identity = parse_identity(self._described)
        catalogued = find_board_spec(place, identity, self._described)
        self.spec = spec = build_board_spec(catalogued, self._described, catalogued.total_power)
        self.title: str = spec.title
        self.maxn: PowerMode | None = spec.maxn
        self.meter: str | None = f"{place.sensor}: {spec.total_power}"
        self.software = {"machine": spec.name, "l4t": identity.l4t}

    def refusal_reason(self, point: SweepPoint) -> str | None:
        """Return why the point's mode or clocks cannot be set, or None if they can."""
        if point.mode is not None:
            allowed = self._described["allowed"]
            for knob, value in mode_to_wire(point.mode, self._described["knobs"]).items():
                if value not in allowed[knob]:
                    has = _format_allowed(allowed[knob])
                    return f"mode {point.mode}: this board has no {knob} {value}; it has {has}"
        if not point.dvfs and LOCK_MIN not in self._described["extras"]:
            return (
                f'dvfs: false needs "{LOCK_MIN}" among "extras" in the power daemon\'s file '
                "(docs/reference/powerd.md); add it and restart fedge-powerd, or set dvfs: true"
            )
        return None

    @contextmanager
    def hold(self, point: SweepPoint) -> Iterator[JetsonSession]:
        with (
            open_local_board(self._place) as here,
            closing(PowerdClient(self._place.power_socket)) as power,
            BoardLease(lambda: PowerdClient(self._place.power_socket), self._place.holder) as lease,
        ):
            wished = self._set_mode(point, power, lease.token)
            here.sampler.record_mode_change()
            yield JetsonSession(here, power, wished)

    def _set_mode(self, point: SweepPoint, power: PowerdClient, token: str) -> dict[str, int]:
        """Set the point's mode; return the knobs that should hold, in the daemon's units."""
        try:
            now: dict[str, int] = power.get()["mode"]
            wished = now if point.mode is None else mode_to_wire(point.mode, self._described["knobs"])
            if point.mode is not None or not point.dvfs:
                power.set_mode(wished, token=token, lock_min=not point.dvfs)
        except PowerdError as error:
            raise BoardError(f"the power mode could not be set: {error}") from error
        return wished


@dataclass(slots=True)
class JetsonSession:
    """A board during a point."""

    here: LocalBoard
    power: PowerdClient
    wished: Mapping[str, int]
    lost_notes: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Deviations from the requested setting."""
        try:
            now = self.power.get()
        except PowerdError as error:
            return (*self.lost_notes, f"whether the mode was held is not known: {error}")
        found = now["mode"]
        if all(abs(found.get(knob, value) - value) <= CLOCK_TOLERANCE * value for knob, value in self.wished.items()):
            return self.lost_notes
        reason = now.get("stopped") or "something else set it"
        return (*self.lost_notes, f"the board left its mode: it is now at {found}; {reason}")

    def summarise_sensors(self, start_s: float, end_s: float) -> dict[str, Any]:
        """Return the fields of ``EpochSummary`` that the board's own sensors know of an interval.

        Its ends are times of the monotonic clock, in seconds.
        """
        try:
            energy = self.here.sampler.energy_between(start_s, end_s)
        except SensorLost as error:
            self.lost_notes += (f"power was lost: {error}",)
            return {}
        loads = [one.gpu_load for one in self.here.sampler.samples_between(start_s, end_s)]
        found = {"energy_j": energy.energy_j, "gpu_load": mean_of_known(loads), "temperature_c": energy.peak_c}
        return {name: value for name, value in found.items() if value is not None} | {"throttled": energy.throttled}

    def complete_trace(self, strip: SensorTrace, begun_s: float) -> SensorTrace:
        """Add the board's own sensors to a trace, whose times count from ``begun_s`` of the monotonic clock."""
        if not len(strip.at_s):
            return strip
        samples = self.here.sampler.samples_between(begun_s, begun_s + float(strip.at_s[-1]))
        if not samples:
            return strip
        at_s = np.array([one.at_s for one in samples])
        nearest = [samples[int(np.abs(at_s - begun_s - at).argmin())] for at in strip.at_s]
        return replace(
            strip,
            gpu_load=np.array([one.gpu_load for one in nearest], dtype=np.float64),  # None becomes NaN
            power_w=np.array([one.total_w for one in nearest]),
            temperature_c=np.array([one.hottest_c for one in nearest], dtype=np.float64),
        )


def _format_allowed(values: list[int]) -> str:
    head = ", ".join(map(str, values[:12]))
    return head if len(values) <= 12 else f"{head}, ... up to {values[-1]}"


logger = logging.getLogger(__name__)
GOVERNOR_FILES = "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"
AVAILABLE_GOVERNORS = "scaling_available_governors"
PINNED_GOVERNOR = "performance"
"""The governor that keeps clocks at their nominal maximum; boost above it remains up to the processor."""
SCALING_GOVERNORS = ("schedutil", "ondemand", "conservative", "powersave")
"""Governors that let clocks follow the load, the usual one first; the drivers of Intel and AMD call theirs
powersave."""


@dataclass(frozen=True, slots=True)
class LinuxMachine:
    """A Linux machine without power modes.

    Attributes:
        root: Root of the file system, for tests.
        strict: Refuse points whose clock governor cannot be set, since the plan compares pinned and scaling clocks;
            else only note it.
        socket: Where the power daemon would listen, for messages.
    """

    root: str = "/"
    strict: bool = False
    socket: str = SOCKET
    maxn: ClassVar[PowerMode | None] = None
    meter: ClassVar[str | None] = None

    @property
    def title(self) -> str:
        return f"{read_processor_name(Path(self.root))}, {os.cpu_count()} cores"

    @property
    def software(self) -> dict[str, str]:
        return {"machine": self.title, "kernel": platform.release()}

    def refusal_reason(self, point: SweepPoint) -> str | None:
        """Return why the point's mode or clocks cannot be set, or None if they can."""
        if point.mode is not None:
            lack = f"no power daemon listens at {self.socket}, which a Jetson has"
            return f"mode {point.mode} cannot be set: {lack}; leave mode out"
        reason = self._governor_refusal(point.dvfs)
        return None if reason is None or not self.strict else f"dvfs: {str(point.dvfs).lower()} cannot be had: {reason}"

    @contextmanager
    def hold(self, point: SweepPoint) -> Iterator[LinuxSession]:
        lack = self._governor_refusal(point.dvfs)
        if lack is not None:
            yield LinuxSession((f"clocks are as found: {lack}",))
            return
        found = self._read_governors()
        wished = _choose_governor(point.dvfs, found)
        try:
            for file, now in found.items():
                if wished is not None and now != wished:
                    _write_governor(file, wished)
            yield LinuxSession()
        finally:
            _restore_governors(found)

    def _governor_refusal(self, dvfs: bool) -> str | None:
        """Return why clocks cannot be as requested, or None if they are or can be set so."""
        found = self._read_governors()
        if not found:
            return "this machine shows no clock governor"
        now, wished = set(found.values()), _choose_governor(dvfs, found)
        if wished is None or now == {wished} or all(os.access(file, os.W_OK) for file in found):
            return None
        return f"the clocks' governor is {', '.join(sorted(now))} and only root may set it to {wished}"

    def _read_governors(self) -> dict[Path, str]:
        return {file: file.read_text("ascii").strip() for file in sorted(Path(self.root).glob(GOVERNOR_FILES))}


def _choose_governor(dvfs: bool, found: Mapping[Path, str]) -> str | None:
    """Return the governor to set, or None if the present ones suffice."""
    if not dvfs:
        return PINNED_GOVERNOR
    if PINNED_GOVERNOR not in found.values():
        return None
    with contextlib.suppress(OSError):
        there = (next(iter(found)).parent / AVAILABLE_GOVERNORS).read_text("ascii").split()
        return next((name for name in SCALING_GOVERNORS if name in there), SCALING_GOVERNORS[0])
    return SCALING_GOVERNORS[0]


@dataclass(frozen=True, slots=True)
class LinuxSession:
    """A Linux machine during a point; it has no sensors of its own."""

    notes: tuple[str, ...] = ()

    def summarise_sensors(self, start_s: float, end_s: float) -> dict[str, Any]:
        return {}

    def complete_trace(self, strip: SensorTrace, begun_s: float) -> SensorTrace:
        return strip


HostMachine = JetsonMachine | LinuxMachine
MachineSession = JetsonSession | LinuxSession


def _write_governor(file: Path, wished: str) -> None:
    try:
        file.write_text(wished)
    except OSError as error:
        raise BoardError(f"{file} cannot be set to {wished}: {error.strerror}") from error


def _restore_governors(found: Mapping[Path, str]) -> None:
    for file, governor in found.items():
        try:
            if file.read_text("ascii").strip() != governor:
                file.write_text(governor)
        except OSError as error:  # not fatal: the point is measured, and the next one sets its own governor
            logger.warning("%s could not be put back to %s: %s", file, governor, error)


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
