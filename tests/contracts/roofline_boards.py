"""A made-up board with constants of its own, two networks, and the tables that it would give."""

import numpy as np

from fedge.analysis.roofline.board_constants import (
    BoardConstants,
    NetworkEfficiency,
    activation_intensity,
    compute_rooflines,
)
from fedge.analysis.roofline.roofline_model import batch_energy_j, build_roofline_batch, compute_batch_times
from fedge.costs.layers.network_cost import LayerCost, NetworkCost
from fedge.devices.catalogue import find
from fedge.modes import build_grid
from fedge.types import DeviceSpec, Modes, ProfileTable

SPEC: DeviceSpec = find("agx-orin")
VALUES = {
    "tau_f": 3e-13, "tau_m": 9e-12, "gpu_overlap": 2.0, "kernel_s": 9e-6, "launch_s": 8e-5, "launch_mem_share": 0.06,
    "launch_core_share": 0.07, "sample_s": 3e-4, "sample_core_exponent": 1.5, "stage_overlap": 3.0, "copy_s": 2e-4,
    "fixed_s": 3e-3, "static_w": 11.0, "core_w": 1.0, "host_w": 0.6, "gpu_w": 3.5, "mem_w": 1.3, "eps_f": 5e-12,
    "eps_m": 1e-10, "flop_floor": 1.0, "launch_j": 2e-5, "sample_j": 2e-2, "cpu_exponent": 1.4, "gpu_exponent": 2.0,
    "mem_exponent": 1.2,
}  # fmt: skip
"""Near those of an AGX Orin."""


def network(name: str, gflop: float, sample_mb: float, weights_mb: float, layers: int) -> NetworkCost:
    each = LayerCost(
        "layer", "conv", 1e9 * gflop / layers, 0.5e6 * sample_mb / layers, 0.5e6 * sample_mb / layers,
        1e6 * weights_mb / layers,
    )  # fmt: skip
    return NetworkCost(name, (3, 224, 224), (each,) * layers, "made up")


LIGHT, HEAVY = network("light", 0.45, 81.0, 22.0, 190), network("heavy", 8.2, 235.0, 102.0, 174)
NETWORKS = {"light": LIGHT, "heavy": HEAVY}
TRUTH = BoardConstants(
    SPEC.name,
    SPEC.maxn,
    VALUES,
    (
        NetworkEfficiency(
            "light", activation_intensity(LIGHT), {"tau_f": 4.0, "tau_m": 1.3, "eps_f": 0.6, "sample_j": 1.2}
        ),
        NetworkEfficiency(
            "heavy", activation_intensity(HEAVY), {"tau_f": 0.9, "tau_m": 1.0, "eps_f": 1.5, "sample_j": 0.9}
        ),
    ),
    0.03,
    0.03,
    "calibrated",
    "made up",
)


def modes() -> Modes:
    return build_grid(SPEC, (4, 8, 12), (729.6, 1344.0, 2201.6), (318.75, 726.75, 1300.5), (665.6, 2133.0, 3199.0))


def table(name: str, batch_size: int, rng: np.random.Generator | None = None, noise: float = 0.01) -> ProfileTable:
    """What the board takes and draws, with noise where a generator is given."""
    at = modes()
    lines, batch = (
        compute_rooflines(TRUTH, at, activation_intensity(NETWORKS[name])),
        build_roofline_batch(NETWORKS[name], batch_size),
    )
    seconds = compute_batch_times(lines, batch).total_s
    watts = batch_energy_j(lines, batch, seconds) / seconds
    if rng is not None:
        seconds = seconds * np.exp(rng.normal(0.0, noise, len(seconds)))
        watts = watts * np.exp(rng.normal(0.0, noise, len(watts)))
    return ProfileTable(SPEC.name, name, batch_size, at, seconds, watts, "0" * 64, f"{name}.csv")


def tables(rng: np.random.Generator | None = None, sizes: tuple[int, ...] = (1, 4, 16, 64)) -> list[ProfileTable]:
    return [table(name, size, rng) for name in NETWORKS for size in sizes]
