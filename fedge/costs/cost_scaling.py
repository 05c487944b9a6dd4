"""Scale coefficients to a board or workload without measurements, by data-sheet ratios and workload sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedge.costs.cost_profile import CostProfile, load_calibrated_training
from fedge.errors import UnknownName
from fedge.physics.time_power_model import POWER_NAMES, TIME_NAMES, Coefficients
from fedge.types import DeviceSpec

_FIGURES = ("gpu_gflops", "mem_gbps", "cpu_score", "max_w")


def board_distance(a: DeviceSpec, b: DeviceSpec) -> float:
    """Return the Euclidean distance of two boards in the logarithms of their data-sheet figures."""
    return math.hypot(*(math.log(_figure_value(a, name) / _figure_value(b, name)) for name in _FIGURES))


def find_nearest_profile(
    profiles: Sequence[CostProfile], device: DeviceSpec, specs: Mapping[str, DeviceSpec]
) -> CostProfile:
    """Return the profile whose board is most similar to a device; the first wins a tie."""
    return min(profiles, key=lambda profile: board_distance(specs[profile.device], device))


def scale_to_board(profile: CostProfile, of: DeviceSpec, device: DeviceSpec) -> CostProfile:
    """Rescale a profile from the board ``of`` to another by data-sheet ratios, as an estimate without errors or
    evidence.

    The GPU term follows peak GFLOP/s, the memory term bandwidth, and all CPU terms the speed of a core; preprocessing
    also follows the number of cores. Idle power follows the boards' idle power, busy power the range between idle and
    maximum power.
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
    return profile.as_estimate(
        f"scaled from {of.name}'s {profile.workload} by data-sheet ratios ({profile.source})",
        device=device.name,
        coefficients=Coefficients(
            profile.coefficients.time + _log_ratios(TIME_NAMES, seconds),
            profile.coefficients.power + _log_ratios(POWER_NAMES, watts),
        ),
    )


def carry_to_board(profile: CostProfile, device: DeviceSpec, specs: Mapping[str, DeviceSpec]) -> CostProfile:
    """Return a board's own profile as it is, and that of another board scaled to it."""
    return profile if profile.device == device.name else scale_to_board(profile, specs[profile.device], device)


def scale_to_workload(profile: CostProfile, workload: str, batch_size: int, time_ratio: float) -> CostProfile:
    """Return a profile as an estimate for another workload: ``time_ratio`` scales all times, power stays."""
    seconds = {name: time_ratio for name in TIME_NAMES if name.endswith("_s")}
    time = profile.coefficients.time + _log_ratios(TIME_NAMES, seconds)
    return profile.as_estimate(
        f"{profile.workload} on {profile.device}, time x {time_ratio:.2f} ({profile.source})",
        workload=workload,
        batch_size=batch_size,
        coefficients=Coefficients(time, profile.coefficients.power),
    )


def _figure_value(spec: DeviceSpec, name: str) -> float:
    return float(getattr(spec, name).value)


def _is_idle(name: str) -> bool:
    return name == "static_w" or name.endswith("_idle_w")


def _log_ratios(
    names: tuple[str, ...], ratios: Mapping[str, float]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.log(np.array([ratios.get(name, 1.0) for name in names], dtype=np.float64))


def find_cost_profile(device: DeviceSpec, workload: str, specs: Mapping[str, DeviceSpec]) -> CostProfile:
    """Return the calibrated profile of a workload on a board, or an estimate scaled from the nearest calibrated board.

    Raises:
        UnknownName: No board has a profile of the workload.
    """
    profiles = [profile for profile in load_calibrated_training() if profile.device in specs]
    having = [profile for profile in profiles if profile.workload == workload]
    if not having:
        raise UnknownName("workload.cost", workload, tuple(sorted({profile.workload for profile in profiles})))
    own = next((profile for profile in having if profile.device == device.name), None)
    return own or carry_to_board(find_nearest_profile(having, device, specs), device, specs)
