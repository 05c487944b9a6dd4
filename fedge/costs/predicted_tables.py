"""Tables of a board that a cost profile predicts, and the grid of modes that they are predicted for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedge.costs.cost_profile import CostProfile
from fedge.modes import build_grid
from fedge.physics import time_power_model
from fedge.types import DeviceSpec, Modes, ProfileTable

FULCRUM_GRID = (
    (4.0, 8.0, 12.0),
    (422.4, 729.6, 1036.8, 1344.0, 1651.2, 1958.4, 2201.6),
    (114.75, 318.75, 522.75, 726.75, 930.75, 1134.75, 1300.5),
    (665.6, 2133.0, 3199.0),
)
"""The 441 modes of AGX Orin among which Fulcrum (arXiv 2509.20205) chooses: cores, CPU, GPU and memory MHz."""
MAX_KNOB_VALUES = (4, 7, 7, 3)
"""Number of values per knob (cores, CPU, GPU, memory clock) in the planning grid, evenly spaced.

A default of about the size of Fulcrum's grid; a finer grid takes longer to plan.
"""


def build_planning_modes(spec: DeviceSpec) -> Modes:
    """Return the modes considered for planning: Fulcrum's grid for its board, otherwise a thinned grid."""
    knobs = (tuple(map(float, spec.cores)), spec.cpu_mhz, spec.gpu_mhz, spec.mem_mhz)
    if all(set(wanted) <= set(known) for wanted, known in zip(FULCRUM_GRID, knobs, strict=True)):
        chosen: list[tuple[float, ...]] = list(FULCRUM_GRID)
    else:
        chosen = [_thin_values(values, most) for values, most in zip(knobs, MAX_KNOB_VALUES, strict=True)]
    cores, *clocks = chosen
    return build_grid(spec, tuple(map(int, cores)), *clocks)


def predict_table(spec: DeviceSpec, modes: Modes, profile: CostProfile) -> ProfileTable:
    """Predict step time and power of the modes with a cost profile, as a table."""
    return ProfileTable(
        spec.name,
        workload=profile.workload,
        batch_size=profile.batch_size,
        modes=modes,
        step_s=time_power_model.compute_step_s(profile.coefficients, spec.maxn, modes),
        power_w=time_power_model.compute_power_w(profile.coefficients, spec.maxn, modes),
        sha256=profile.evidence.sha256 if profile.evidence else "",
        path=profile.source,
        label=profile.label,
    )


def _thin_values(values: Sequence[float], most: int) -> tuple[float, ...]:
    ordered = sorted(values)
    if len(ordered) <= most:
        return tuple(ordered)
    # Counted from the top, because the lowest value of a knob is hardly ever useful.
    chosen = np.linspace(len(ordered) - 1, 0, most + 1).round().astype(int)[:-1]
    return tuple(ordered[i] for i in sorted(chosen))
