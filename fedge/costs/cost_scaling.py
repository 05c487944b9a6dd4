"""FLOP and bytes per step of the known workloads, counted by the rules in ``workloads.yaml``.

Scale coefficients to a board or workload without measurements, by data-sheet ratios and workload sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from types import MappingProxyType

import numpy as np

from fedge.costs.cost_profile import CostProfile, load_calibrated_training, load_user_profiles, load_yaml
from fedge.errors import UnknownName
from fedge.physics.time_power_model import POWER_NAMES, TIME_NAMES, Coefficients
from fedge.types import DeviceSpec, Loading

SIZE_EXPONENT = 0.5
"""Exponent of step time over size. It is below 1 because launches, loading and small kernels do not grow with FLOP and
bytes; between the calibrated workloads of one board, 0.5 halves the error of proportional scaling."""


@dataclass(frozen=True, slots=True)
class WorkloadSize:
    """Size of a workload's training step.

    Attributes:
        network: Name of the network, whatever data it is trained on.
        image_mpixel: Megapixels of a stored image; matters only for inline loading.
    """

    name: str
    description: str
    batch_size: int
    gflop_per_step: float
    gbyte_per_step: float
    source: str
    network: str = ""
    mixed: bool = False
    loading: Loading = "workers"
    image_mpixel: float = 0.25


@lru_cache(maxsize=1)
def load_workload_sizes() -> Mapping[str, WorkloadSize]:
    """Load the sizes of the known training workloads by name."""
    entries = load_yaml(resources.files("fedge.costs") / "workloads.yaml")
    return MappingProxyType({name: WorkloadSize(name=name, **fields) for name, fields in entries.items()})


def list_priced_workloads() -> tuple[str, ...]:
    """Return the training workloads that have a cost: the known ones, then those of the user's profiles."""
    own = {profile.workload for profile in load_user_profiles() if profile.kind == "train"}
    return (*load_workload_sizes(), *sorted(own - load_workload_sizes().keys()))


def size_distance(a: WorkloadSize, b: WorkloadSize) -> float:
    """Return the Euclidean distance of two workloads in log GFLOP and log GB per step."""
    return math.hypot(
        math.log(a.gflop_per_step / b.gflop_per_step),
        math.log(a.gbyte_per_step / b.gbyte_per_step),
    )


def size_ratio(wanted: WorkloadSize, known: WorkloadSize) -> float:
    """Return the geometric mean of the GFLOP ratio and the GB ratio of two workloads."""
    flop, byte = wanted.gflop_per_step / known.gflop_per_step, wanted.gbyte_per_step / known.gbyte_per_step
    return math.sqrt(flop * byte)


@dataclass(frozen=True, slots=True)
class ForwardSize:
    """Size of a workload's forward pass.

    Attributes:
        sample_mb: MB of activations moved per sample.
        weights_mb: MB of weights read per batch.
        network: Name of the network, whatever data it is applied to.
    """

    name: str
    gflop: float
    sample_mb: float
    weights_mb: float
    source: str
    network: str = ""


@lru_cache(maxsize=1)
def load_forward_sizes() -> Mapping[str, ForwardSize]:
    """Load the forward passes of the known workloads by name."""
    entries = load_yaml(resources.files("fedge.costs") / "forward.yaml")
    return MappingProxyType({name: ForwardSize(name=name, **fields) for name, fields in entries.items()})


def forward_size_of_batch(size: ForwardSize, batch_size: int) -> WorkloadSize:
    """Return the size of inferring one batch, comparable with that of a training step."""
    gbyte = (batch_size * size.sample_mb + size.weights_mb) / 1e3
    return WorkloadSize(
        size.name,
        description="inference",
        batch_size=batch_size,
        gflop_per_step=batch_size * size.gflop,
        gbyte_per_step=gbyte,
        source=size.source,
    )


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
