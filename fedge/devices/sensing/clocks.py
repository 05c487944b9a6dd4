"""Clocks and loads that a board shows: CPU, GPU found by its device-tree name, and memory where it can be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedge.devices.sensing.held import Files, number_or_none, text_or_none
from fedge.powerd.machine import Machine

POLICIES = "/sys/devices/system/cpu/cpufreq/policy*"
DEVFREQ = "/sys/class/devfreq/*"
GPU_NAMES = frozenset({"gpu", "gv11b", "gp10b", "ga10b", "gb10b"})
"""``of_node/name`` of the GPU: Nano and JetPack 6 ``gpu``, Xavier ``gv11b``, TX2 ``gp10b``, Orin ``ga10b``."""
MEMORY = (
    "/sys/kernel/debug/bpmp/debug/clk/emc/rate",
    "/sys/kernel/debug/clk/emc/clk_rate",
    "/sys/kernel/debug/clk/override.emc/clk_rate",
    "/sys/class/devfreq/bwmgr/cur_freq",
)
"""Hz. TX2 to Orin; Nano; both below debugfs, which only root reads. The last is Thor's."""

Reader = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Clocks:
    """Cheap ways to read a board's clocks; None or empty is what it does not show. Each call may raise ``OSError``."""

    policies: tuple[Reader, ...] = ()
    """kHz, one per CPU cluster."""
    gpu: Reader | None = None
    """Hz."""
    gpu_load: Reader | None = None
    """Tenths of a percent."""
    memory: Reader | None = None
    """Hz."""


def clocks_of(files: Files, machine: Machine) -> Clocks:
    """What the machine shows of its clocks to whoever runs this."""
    gpu = gpu_folder(machine)
    policies = tuple(files.number(f"{folder}/scaling_cur_freq") for folder in machine.glob(POLICIES))
    memory = next((read for path in MEMORY if number_or_none(read := files.number(path)) is not None), None)
    if gpu is None:
        return Clocks(policies, memory=memory)
    load = f"{gpu}/device/load"
    return Clocks(
        policies, files.number(f"{gpu}/cur_freq"), files.number(load) if machine.exists(load) else None, memory
    )


def gpu_folder(machine: Machine) -> str | None:
    """The GPU's devfreq folder, found by the device's name in the device tree; None when there is none."""
    for folder in machine.glob(DEVFREQ):
        if text_or_none(machine, f"{folder}/device/of_node/name") in GPU_NAMES:
            return folder
    return None


def fastest_mhz(policies: Sequence[Reader]) -> float | None:
    """The fastest cluster's clock, MHz; a cluster whose cores are off shows none."""
    khz = [value for read in policies if (value := number_or_none(read)) is not None]
    return max(khz) / 1e3 if khz else None


def scaled(read: Reader | None, unit: float) -> float | None:
    """What ``read`` gives, in ``unit``; None when it cannot be read."""
    value = None if read is None else number_or_none(read)
    return None if value is None else value / unit
