"""A machine with NVIDIA GPUs as a board whose one knob is their power limit, set through NVML (the extra ``gpu``).

A mode stands for a share s of the limits that were found, which are never exceeded: its GPU clock is nominal, s times
the card's highest clock, because the card itself picks the clock under a limit. Presets name the modes by their watts.
All cards of the machine get the same share.
"""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedge.atomic_files import try_lock
from fedge.devices.board_spec import HZ_PER_MHZ, KHZ_PER_MHZ
from fedge.devices.catalogue import GPU_WORKSTATION
from fedge.devices.sensing.energy_counters import MW_PER_W, NO_NVML, try_load_nvml
from fedge.devices.sensing.nvml_sensor import NvmlSensor
from fedge.errors import BadInput, BoardError
from fedge.json_reader import read_json
from fedge.powerd.machine import BOOT_ID, Machine
from fedge.powerd.powerd_client import PowerdError
from fedge.types import DeviceSpec, LabelledValue, PowerMode

logger = logging.getLogger(__name__)
LEVELS = 8
"""Limits on the ladder: each costs a probe of about a second, and neighbours differ by a tenth or less on cards whose
lowest limit is a third of the highest."""
READ_BACK_TOLERANCE = 0.005
"""Relative difference below which a limit that is read back is the one that was set: drivers may round it."""
SAVED_LIMITS = "gpu-limits.json"
LOCK_WAIT_S = 0.5
"""Seconds for which a lock is waited for: a program that only tries whether it may set the limits has it for less."""
GPU_KNOB = "gpu_hz"
UNKNOWN = LabelledValue(math.nan, "unknown", "no data sheet")
CPU_CLOCK_FILE = "/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"


@dataclass(frozen=True, slots=True)
class LimitLevel:
    """One value of the knob.

    Attributes:
        limits_mw: Power limit of each card.
    """

    clock_hz: int
    limits_mw: tuple[int, ...]


class GpuPowerLimits:
    """The cards' power limits, with the verbs of the power daemon that a board uses.

    Limits are written only under the lock on a file, so that no program undoes another's mode. Before a mode is set,
    the file gets the limits that were found: a process that was killed leaves them behind, and the next one of the same
    boot restores them. A reboot resets the cards itself.

    Raises:
        BoardError: The limits cannot be set, with the reason.
    """

    def __init__(self, nvml: Any, state_dir: Path) -> None:
        self._nvml, self._path = nvml, state_dir / SAVED_LIMITS
        self._lock: int | None = None
        try:
            self._cards = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
            if not self._cards:
                raise BoardError("there is no NVIDIA GPU")
            self.names = [_to_text(nvml.nvmlDeviceGetName(card)) for card in self._cards]
            self._ids = [_to_text(nvml.nvmlDeviceGetUUID(card)) for card in self._cards]
            lowest = [int(nvml.nvmlDeviceGetPowerManagementLimitConstraints(card)[0]) for card in self._cards]
            self.mem_mhz = float(nvml.nvmlDeviceGetMaxClockInfo(self._cards[0], nvml.NVML_CLOCK_MEM))
            top_mhz = int(nvml.nvmlDeviceGetMaxClockInfo(self._cards[0], nvml.NVML_CLOCK_SM))
            self._found = self._try_limits()
        except nvml.NVMLError as error:
            if getattr(error, "value", None) == nvml.NVML_ERROR_NO_PERMISSION:
                raise BoardError("this user may not set the GPUs' power limit, which needs root") from error
            raise BoardError(f"the GPUs' power limit cannot be set: {error}") from error
        self.levels = _build_ladder(self._found, lowest, top_mhz)

    def hold(self, name: str, seconds: float, token: str | None = None) -> Mapping[str, Any]:
        """Hold the cards for this process, or give them back as they were found (0 seconds)."""
        if seconds <= 0:
            self._release()
        elif self._lock is None:
            self._acquire(name)
        return {"token": GPU_WORKSTATION}

    def set_mode(self, mode: Mapping[str, int], token: str | None = None) -> Mapping[str, Any]:
        """Set the limits of the mode's nominal clock."""
        level = min(self.levels, key=lambda one: abs(one.clock_hz - mode[GPU_KNOB]))
        self._write(level.limits_mw)
        return self.get()

    def restore(self, token: str | None = None) -> Mapping[str, Any]:
        """Set the limits that were found."""
        self._write(tuple(self._found))
        return self.get()

    def get(self) -> Mapping[str, Any]:
        """Return the mode that is read back; limits of no level give a clock of no level."""
        try:
            now = self._read_limits()
        except self._nvml.NVMLError as error:
            raise PowerdError("failed", f"the GPUs' power limit cannot be read: {error}") from error
        errors = [max(abs(a - b) / b for a, b in zip(now, level.limits_mw, strict=True)) for level in self.levels]
        nearest = errors.index(min(errors))
        if errors[nearest] <= READ_BACK_TOLERANCE:
            return {"mode": {GPU_KNOB: self.levels[nearest].clock_hz}}
        return {"mode": {GPU_KNOB: round(self.levels[-1].clock_hz * sum(now) / sum(self._found))}}

    def close(self) -> None:
        """Do nothing: the file's lock ends with ``hold``."""

    def _read_limits(self) -> list[int]:
        return [int(self._nvml.nvmlDeviceGetPowerManagementLimit(card)) for card in self._cards]

    def _try_limits(self) -> list[int]:
        """Return the limits that were found; write those that are set, which shows whether this user may.

        While another program holds the cards, nothing is written, and that program's file says what it found.
        """
        try:
            lock = self._take_lock()
        except OSError as error:
            text = f"{self._path} cannot be written ({error.strerror}): setting the GPUs' power limit needs root"
            raise BoardError(text) from error
        try:
            saved, now = self._read_saved(), self._read_limits()
            if lock is not None:
                for card, limit_mw in zip(self._cards, now, strict=True):
                    self._nvml.nvmlDeviceSetPowerManagementLimit(card, limit_mw)
            elif not saved:
                raise BoardError(self._lock_refusal)
        finally:
            if lock is not None:
                os.close(lock)
        return [saved.get(name, limit_mw) for name, limit_mw in zip(self._ids, now, strict=True)]

    @property
    def _lock_refusal(self) -> str:
        return f"another program holds the GPUs ({self._path}): wait until it is done"

    def _take_lock(self) -> int | None:
        """Return the locked file, or None while another program holds the cards."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        taken = False
        try:
            taken = try_lock(lock, wait_s=LOCK_WAIT_S)
        finally:
            if not taken:
                os.close(lock)
        return lock if taken else None

    def _acquire(self, name: str) -> None:
        saved = {"boot": _read_boot_id(), "limits_mw": dict(zip(self._ids, self._found, strict=True))}
        text, lock = json.dumps(saved).encode("ascii"), None
        try:
            lock = self._take_lock()
            if lock is None:
                raise PowerdError("held", self._lock_refusal)
            os.pwrite(lock, text, 0)  # before anything is cut off: a killed program's limits may be in it
            os.ftruncate(lock, len(text))
            os.fsync(lock)
        except OSError as error:
            if lock is not None:
                os.close(lock)
            raise PowerdError("failed", f"{self._path} cannot be written ({error.strerror})") from error
        self._lock = lock
        logger.info("%s holds %s", name, " and ".join(self.names))

    def _release(self) -> None:
        if self._lock is None:
            return
        self._write(tuple(self._found))
        os.ftruncate(self._lock, 0)
        fcntl.flock(self._lock, fcntl.LOCK_UN)  # a data loader's workers, forked meanwhile, have the file open too
        os.close(self._lock)
        self._lock = None

    def _write(self, limits_mw: tuple[int, ...]) -> None:
        if self._lock is None:
            raise PowerdError("not-held", "the GPUs are not held: hold them before their power limit is set")
        faults = []
        for card, limit_mw, name in zip(self._cards, limits_mw, self.names, strict=True):
            try:
                self._nvml.nvmlDeviceSetPowerManagementLimit(card, limit_mw)
            except self._nvml.NVMLError as error:  # the others are set all the same: they have to be restored
                faults.append(f"{name}: {error}")
        if faults:
            raise PowerdError("failed", f"the GPUs' power limit was not set: {'; '.join(faults)}")

    def _read_saved(self) -> Mapping[str, int]:
        """Return the limits in the file of this boot, in milliwatts by card; empty without any."""
        with suppress(BadInput, KeyError, TypeError, ValueError, AttributeError):  # another program may be writing it
            saved = read_json(self._path, "milliwatts by card")
            if saved["boot"] == _read_boot_id():
                return {str(card): int(limit_mw) for card, limit_mw in saved["limits_mw"].items()}
        return {}


def open_power_limits(state_dir: Path) -> GpuPowerLimits:
    """Open the power limits of this machine's GPUs.

    Raises:
        BoardError: There is no GPU whose limit this user may set, with the reason.
    """
    nvml = try_load_nvml()
    if nvml is None:
        raise BoardError(NO_NVML)
    return GpuPowerLimits(nvml, state_dir)


def _build_ladder(found: list[int], lowest: list[int], top_mhz: int) -> tuple[LimitLevel, ...]:
    """Return the levels in rising order, the limits that were found last.

    Raises:
        BoardError: A card's limit is already the lowest possible.
    """
    least = max(low / limit for low, limit in zip(lowest, found, strict=True))
    shares = [least + (1.0 - least) * k / (LEVELS - 1) for k in range(LEVELS - 1)]
    by_clock = {
        round(top_mhz * share): tuple(
            max(low, round(limit * share / MW_PER_W) * MW_PER_W) for limit, low in zip(found, lowest, strict=True)
        )
        for share in shares
    } | {top_mhz: tuple(found)}
    if least >= 1.0 or len(set(by_clock.values())) < 2:
        raise BoardError("the GPUs' power limit is already the lowest that the card allows")
    return tuple(LimitLevel(mhz * int(HZ_PER_MHZ), limits) for mhz, limits in sorted(by_clock.items()))


def build_workstation_spec(limits: GpuPowerLimits, sensor: NvmlSensor, machine: Machine) -> DeviceSpec:
    """Return the spec: one value for every knob but the GPU's, and no figures of a data sheet."""
    clocks = tuple(level.clock_hz / HZ_PER_MHZ for level in limits.levels)
    cores, cpu_mhz = os.cpu_count() or 1, _read_cpu_mhz(machine)
    watts = [sum(level.limits_mw) / MW_PER_W for level in limits.levels]
    presets = {
        f"{power_w:g}W": PowerMode(cores, cpu_mhz, mhz, limits.mem_mhz)
        for power_w, mhz in zip(watts, clocks, strict=True)
    }
    ram_gb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    return DeviceSpec(
        name=GPU_WORKSTATION,
        title=", ".join(limits.names),
        cores=(cores,),
        cpu_mhz=(cpu_mhz,),
        gpu_mhz=clocks,
        mem_mhz=(limits.mem_mhz,),
        presets=presets | {"MAXN": presets[f"{watts[-1]:g}W"]},
        default_preset="MAXN",
        ram_gb=LabelledValue(ram_gb, "measured", "the kernel"),
        idle_w=UNKNOWN,
        max_w=LabelledValue(watts[-1], "estimated", "the power limit that was found"),
        gpu_gflops=UNKNOWN,
        mem_gbps=UNKNOWN,
        cpu_score=UNKNOWN,
        rails=sensor.rails,
        total_power=sensor.total_power,
        accelerators=(),
        jetpacks=(),
        sources={"gpu_mhz": "nominal: the share of the power limit that was found, times the card's highest clock"},
    )


def _read_cpu_mhz(machine: Machine) -> float:
    """Return the processor's highest clock; 1 where the kernel does not say, for it is no knob here."""
    with suppress(OSError, ValueError):
        return int(machine.read(CPU_CLOCK_FILE)) / KHZ_PER_MHZ
    return 1.0


def _read_boot_id() -> str:
    """Return the id of this boot; empty where the kernel gives none."""
    with suppress(OSError):
        return Path(BOOT_ID).read_text("ascii").strip()
    return ""


def _to_text(name: bytes | str) -> str:
    """Return a text of NVML, which older packages give as bytes."""
    return name.decode() if isinstance(name, bytes) else name
