"""The seam between a rig and the kind of machine it stands on: what can be set there, and who meters its power."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedge.characterisation.point_measurement import SensorTrace
from fedge.characterisation.sweep_plan import SweepPoint
from fedge.devices.board_spec import build_board_spec, mode_to_wire
from fedge.devices.jetson_board import CLOCK_TOLERANCE, BoardLease
from fedge.devices.local_board import (
    BoardLocation,
    LocalBoard,
    describe_board,
    find_board_spec,
    open_local_board,
    parse_identity,
)
from fedge.errors import BoardError, SensorLost
from fedge.powerd.powerd_client import SOCKET, PowerdClient, PowerdError
from fedge.types import DeviceSpec, PowerMode, SensorSample


@dataclass(frozen=True, slots=True)
class SensorSummary:
    """A stretch of time by the machine's own sensors; None where it has none."""

    energy_j: float | None = None
    gpu_load: float | None = None
    temperature_c: float | None = None
    throttled: bool = False


class MachineSession(Protocol):
    """A machine that is set for a point."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was odd about the setting."""
        ...

    def summarise_sensors(self, start_s: float, end_s: float) -> SensorSummary:
        """The stretch between two moments of the monotonic clock."""
        ...

    def complete_trace(self, strip: SensorTrace, begun_s: float) -> SensorTrace:
        """A strip with what the machine's own sensors saw; its times count from ``begun_s``."""
        ...


class HostMachine(Protocol):
    """A kind of machine."""

    @property
    def title(self) -> str:
        """The machine in words."""
        ...

    @property
    def maxn(self) -> PowerMode | None:
        """Its top mode; None where modes cannot be set."""
        ...

    @property
    def meter(self) -> str | None:
        """What its own watts are of; None where it has no sensor of its own."""
        ...

    @property
    def software(self) -> dict[str, str]:
        """What the figures depend on beside Python's packages."""
        ...

    def refusal_reason(self, point: SweepPoint) -> str | None:
        """Why the point's mode or clocks cannot be set; None where they can."""
        ...

    def hold(self, point: SweepPoint) -> AbstractContextManager[MachineSession]:
        """Set the machine for a point, and put back what was found at the end; raises ``BoardError``."""
        ...


LOCK_MIN = "lock-min"
"""What the daemon must be allowed beside modes, so that clocks do not fall below the mode's."""


class JetsonMachine:
    """A board with a power daemon. Raises ``BoardError`` when that does not answer."""

    def __init__(self, place: BoardLocation) -> None:
        self._place = place
        self._described: Mapping[str, Any] = describe_board(place)
        self._identity = parse_identity(self._described)
        catalogued = find_board_spec(place, self._identity, self._described)
        self.spec: DeviceSpec = build_board_spec(catalogued, self._described, catalogued.total_power)

    @property
    def title(self) -> str:
        """The board's name in the catalogue."""
        return self.spec.title

    @property
    def maxn(self) -> PowerMode | None:
        """Every knob at the top of what the daemon allows."""
        return self.spec.maxn

    @property
    def meter(self) -> str | None:
        """Which rails the watts are of."""
        return f"{self._place.sensor}: {self.spec.total_power}"

    @property
    def software(self) -> dict[str, str]:
        """The board and its L4T."""
        return {"machine": self.spec.name, "l4t": self._identity.l4t}

    def refusal_reason(self, point: SweepPoint) -> str | None:
        """A mode that the board does not have, and pinned clocks where the daemon may not pin them."""
        if point.mode is not None:
            allowed = self._described["allowed"]
            for knob, value in mode_to_wire(point.mode, self._described["knobs"]).items():
                if value not in allowed[knob]:
                    return (
                        f"mode {point.mode}: this board has no {knob} {value}; it has {_format_allowed(allowed[knob])}"
                    )
        if not point.dvfs and LOCK_MIN not in self._described["extras"]:
            return (
                f'dvfs: false needs "{LOCK_MIN}" among "extras" in the power daemon\'s file (docs/powerd.md); '
                "add it and restart fedge-powerd, or set dvfs: true"
            )
        return None

    @contextmanager
    def hold(self, point: SweepPoint) -> Iterator[JetsonSession]:
        """The board for this point alone, sampled."""
        with (
            open_local_board(self._place) as here,
            closing(PowerdClient(self._place.power_socket)) as power,
            BoardLease(lambda: PowerdClient(self._place.power_socket), self._place.holder) as lease,
        ):
            wished = self._set_mode(point, power, lease.token)
            here.sampler.record_mode_change()
            yield JetsonSession(here, power, wished)

    def _set_mode(self, point: SweepPoint, power: PowerdClient, token: str) -> dict[str, int]:
        """The knobs as they should stay, in the daemon's units."""
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
        """What was lost, and whether the board is still in its mode."""
        return (*self.lost_notes, *self._list_mode_notes())

    def summarise_sensors(self, start_s: float, end_s: float) -> SensorSummary:
        """By the board's sampler, the trapezoid rule over its samples."""
        try:
            energy = self.here.sampler.energy_between(start_s, end_s)
        except SensorLost as error:
            self.lost_notes += (f"power was lost: {error}",)
            return SensorSummary()
        loads = [one.gpu_load for one in self.here.sampler.samples_between(start_s, end_s) if one.gpu_load is not None]
        return SensorSummary(
            energy.energy_j, sum(loads) / len(loads) if loads else None, energy.peak_c, energy.throttled
        )

    def complete_trace(self, strip: SensorTrace, begun_s: float) -> SensorTrace:
        """With watts, GPU load and the hottest sensor, each from the sample nearest in time."""
        if not len(strip.at_s):
            return strip
        samples = self.here.sampler.samples_between(begun_s, begun_s + float(strip.at_s[-1]))
        if not samples:
            return strip
        at_s = np.array([one.at_s for one in samples])
        nearest = [samples[int(np.abs(at_s - begun_s - at).argmin())] for at in strip.at_s]
        return replace(
            strip,
            gpu_load=np.array([_nan_if_none(one.gpu_load) for one in nearest]),
            power_w=np.array([one.total_w for one in nearest]),
            temperature_c=np.array([_nan_if_none(_hottest_c(one)) for one in nearest]),
        )

    def _list_mode_notes(self) -> tuple[str, ...]:
        try:
            now = self.power.get()
        except PowerdError as error:
            return (f"whether the mode was held is not known: {error}",)
        if all(
            abs(now["mode"].get(knob, value) - value) <= CLOCK_TOLERANCE * value for knob, value in self.wished.items()
        ):
            return ()
        return (
            f"the board left its mode: it is now at {now['mode']}; {now.get('stopped') or 'something else set it'}",
        )


def _hottest_c(sample: SensorSample) -> float | None:
    return sample.hottest_c


def _nan_if_none(value: float | None) -> float:
    return math.nan if value is None else value


def _format_allowed(values: list[int]) -> str:
    head = ", ".join(map(str, values[:12]))
    return head if len(values) <= 12 else f"{head}, ... up to {values[-1]}"


logger = logging.getLogger(__name__)
GOVERNOR_FILES = "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"
AVAILABLE_GOVERNORS = "scaling_available_governors"
PINNED_GOVERNOR = "performance"
"""The governor under which clocks stay at their top; what a processor does above it by itself (boost) stays its own."""
SCALING_GOVERNORS = ("schedutil", "ondemand", "conservative", "powersave")
"""Governors under which they follow the load, the usual one first; Intel's and AMD's drivers call theirs powersave."""


@dataclass(frozen=True, slots=True)
class LinuxMachine:
    """``strict``: a plan that compares clocks pinned and not is refused where this cannot be set; else it is noted."""

    root: str = "/"
    strict: bool = False
    socket: str = SOCKET

    @property
    def title(self) -> str:
        """Processor and cores that are online."""
        return f"{_processor_name(Path(self.root))}, {os.cpu_count()} cores"

    @property
    def maxn(self) -> PowerMode | None:
        """None: there are no modes."""
        return None

    @property
    def meter(self) -> str | None:
        """None: what is metered is metered from beside."""
        return None

    @property
    def software(self) -> dict[str, str]:
        """The kernel, and the processor."""
        return {"machine": self.title, "kernel": platform.release()}

    def refusal_reason(self, point: SweepPoint) -> str | None:
        """A mode always, and clocks that cannot be set as asked where the plan compares them."""
        if point.mode is not None:
            return (
                f"mode {point.mode} cannot be set: no power daemon listens at {self.socket}, which a Jetson has; "
                "leave mode out"
            )
        lack = self._governor_refusal(point.dvfs)
        return None if lack is None or not self.strict else f"dvfs: {str(point.dvfs).lower()} cannot be had: {lack}"

    @contextmanager
    def hold(self, point: SweepPoint) -> Iterator[LinuxSession]:
        """Set the governor where that is needed and can be."""
        lack = self._governor_refusal(point.dvfs)
        if lack is not None:
            yield LinuxSession((f"clocks are as found: {lack}",))
            return
        files = self._list_governor_files()
        found = [(file, file.read_text("ascii").strip()) for file in files]
        wished = self._choose_governor(point.dvfs, files)
        try:
            _write_governors([(file, wished) for file, now in found if wished is not None and now != wished])
            yield LinuxSession()
        finally:
            _restore_governors(found)

    def _list_governor_files(self) -> list[Path]:
        return sorted(Path(self.root).glob(GOVERNOR_FILES))

    def _governor_refusal(self, dvfs: bool) -> str | None:
        """Why clocks cannot be as wished; None where they are, or can be set so."""
        files = self._list_governor_files()
        if not files:
            return "this machine shows no clock governor"
        now = {file.read_text("ascii").strip() for file in files}
        wished = self._choose_governor(dvfs, files)
        if wished is None or now == {wished}:
            return None
        if not all(os.access(file, os.W_OK) for file in files):
            return f"the clocks' governor is {', '.join(sorted(now))} and only root may set it to {wished}"
        return None

    def _choose_governor(self, dvfs: bool, files: Sequence[Path]) -> str | None:
        """The governor to be set; None where the present ones will do."""
        now = {file.read_text("ascii").strip() for file in files}
        if not dvfs:
            return PINNED_GOVERNOR
        if PINNED_GOVERNOR not in now:
            return None
        with contextlib.suppress(OSError):
            there = (files[0].parent / AVAILABLE_GOVERNORS).read_text("ascii").split()
            return next((name for name in SCALING_GOVERNORS if name in there), SCALING_GOVERNORS[0])
        return SCALING_GOVERNORS[0]


@dataclass(frozen=True, slots=True)
class LinuxSession:
    """An ordinary machine during a point; it has no sensors of its own."""

    notes: tuple[str, ...] = ()

    def summarise_sensors(self, start_s: float, end_s: float) -> SensorSummary:
        """Nothing."""
        return SensorSummary()

    def complete_trace(self, strip: SensorTrace, begun_s: float) -> SensorTrace:
        """The strip itself."""
        return strip


def _write_governors(wished: Sequence[tuple[Path, str]]) -> None:
    for file, governor in wished:
        try:
            file.write_text(governor)
        except OSError as error:
            raise BoardError(f"{file} cannot be set to {governor}: {error.strerror}") from error


def _restore_governors(found: Sequence[tuple[Path, str]]) -> None:
    for file, governor in found:
        try:
            if file.read_text("ascii").strip() != governor:
                file.write_text(governor)
        except OSError as error:  # the point is measured; the next one sets what it needs
            logger.warning("%s could not be put back to %s: %s", file, governor, error)


def _processor_name(root: Path) -> str:
    with contextlib.suppress(OSError):
        for line in (root / "proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.lower().startswith(("model name", "hardware")):
                return " ".join(line.partition(":")[2].split())
    return platform.machine()
