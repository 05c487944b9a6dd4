"""Carries coefficients to a board or a workload that was never measured, by data-sheet ratios and counted sizes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedge.costs.cost_profile import CostProfile
from fedge.physics.time_power_model import POWER_NAMES, TIME_NAMES, Coefficients
from fedge.types import DeviceSpec

_FIGURES = ("gpu_gflops", "mem_gbps", "cpu_score", "max_w")


def board_distance(a: DeviceSpec, b: DeviceSpec) -> float:
    """Distance of two boards in the logarithms of their data-sheet figures."""
    return math.hypot(*(math.log(_figure_value(a, name) / _figure_value(b, name)) for name in _FIGURES))


def find_nearest_profile(
    profiles: Sequence[CostProfile], device: DeviceSpec, specs: Mapping[str, DeviceSpec]
) -> CostProfile:
    """The profile of the board most like ``device``; ties go to the first."""
    return min(profiles, key=lambda profile: board_distance(specs[profile.device], device))


def scale_to_board(profile: CostProfile, of: DeviceSpec, device: DeviceSpec) -> CostProfile:
    """``profile``, made for the board ``of``, rescaled to ``device``.

    The GPU term follows peak GFLOP/s, the memory term bandwidth, everything on the CPU the core's speed and
    preprocessing the number of cores too; idle watts follow the idle power, busy watts what is left up to the largest.
    """
    cpu = of.cpu_score.value / device.cpu_score.value
    beta = math.exp(profile.coefficients.time[TIME_NAMES.index("prep_core_exponent")])
    cores = (max(of.cores) / max(device.cores)) ** beta
    seconds = {
        "gpu_s": of.gpu_gflops.value / device.gpu_gflops.value,
        "mem_s": of.mem_gbps.value / device.mem_gbps.value,
        "prep_s": cpu * cores,
        "launch_s": cpu,
        "host_s": cpu,
        "fixed_s": cpu,
    }
    idle = device.idle_w.value / of.idle_w.value
    busy = (device.max_w.value - device.idle_w.value) / (of.max_w.value - of.idle_w.value)
    watts = {name: idle if _is_idle(name) else busy for name in POWER_NAMES if name.endswith("_w")}
    return dataclasses.replace(
        profile,
        device=device.name,
        coefficients=Coefficients(
            profile.coefficients.time + _log_ratios(TIME_NAMES, seconds),
            profile.coefficients.power + _log_ratios(POWER_NAMES, watts),
        ),
        label="estimated",
        source=f"scaled from {of.name}'s {profile.workload} by data-sheet ratios ({profile.source})",
        time_mape=None,
        power_mape=None,
        evidence=None,
    )


def scale_to_workload(profile: CostProfile, workload: str, batch_size: int, time_ratio: float) -> CostProfile:
    """``profile`` as a guess for another workload whose every second is ``time_ratio`` times as long."""
    seconds = {name: time_ratio for name in TIME_NAMES if name.endswith("_s")}
    time = profile.coefficients.time + _log_ratios(TIME_NAMES, seconds)
    return dataclasses.replace(
        profile,
        workload=workload,
        batch_size=batch_size,
        coefficients=Coefficients(time, profile.coefficients.power),
        label="estimated",
        source=f"{profile.workload} on {profile.device}, time x {time_ratio:.2f} ({profile.source})",
        time_mape=None,
        power_mape=None,
        evidence=None,
    )


def _figure_value(spec: DeviceSpec, name: str) -> float:
    return float(getattr(spec, name).value)


def _is_idle(name: str) -> bool:
    return name == "static_w" or name.endswith("_idle_w")


def _log_ratios(
    names: tuple[str, ...], ratios: Mapping[str, float]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.log(np.array([ratios.get(name, 1.0) for name in names], dtype=np.float64))
