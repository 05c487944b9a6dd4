"""Select the board and mode for a workload: estimate every board's modes, compare them with limits, and rank them.

Times and powers come from calibrated profiles if there are any, else from data-sheet ratios or layers; every offer says
which. Limits apply to expected values: an estimated board may still miss them by the error of its estimate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedge.costs.cost_lookup import find_cost_profile
from fedge.costs.cost_profile import CostProfile, load_calibrated_inference
from fedge.costs.inference_cost import estimate_inference_cost
from fedge.costs.layer_estimate import estimate_network_cost, rescale_to_batch_size
from fedge.costs.layers.network_cost import NetworkCost
from fedge.costs.memory.step_need import StepNeed, predict_step_need
from fedge.costs.workload_sizes import load_workload_sizes
from fedge.decisions.candidate_modes import mask_above_floor
from fedge.errors import BadInput
from fedge.modes import build_grid
from fedge.physics.time_power_model import compute_power_w, compute_step_s
from fedge.types import DeviceSpec, Floats, Label, Modes, PowerMode, Workload

RankingObjective = Literal["time", "energy", "both"]
"""The objective that ranks boards and modes: an epoch's seconds, its joules, or their product."""


@dataclass(frozen=True, slots=True)
class BoardLimits:
    """Limits on a board: power while it works in watts, and time of an epoch in seconds; None for no limit."""

    power_w: float | None = None
    epoch_s: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class BoardSelectionRequest:
    """The workload to select a board for.

    Attributes:
        work: The workload with its batch size.
        network: Costs of the network's layers, if known.
        samples: Samples of an epoch.
        limits: Limits on the boards.
        aim: The objective that ranks.
    """

    work: Workload
    network: NetworkCost | None
    """Costs of the network's layers, if known."""
    samples: int
    limits: BoardLimits = BoardLimits()
    aim: RankingObjective = "time"


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """Memory of a training step compared with the memory that a board leaves for it.

    Attributes:
        need_mb: Memory of a step in MB; None for inference, and for networks with unknown layers.
        allowed_mb: Memory available for training, in MB.
        batch_size: The largest batch size that fits, 0 for none, None if unknown.
        label: Source of ``need_mb``.
    """

    need_mb: float | None
    allowed_mb: float
    batch_size: int | None
    label: Label = "estimated"

    @property
    def fits(self) -> bool:
        """Whether the step fits, or its memory is unknown."""
        return self.need_mb is None or self.need_mb <= self.allowed_mb


@dataclass(frozen=True, slots=True)
class BoardOffer:
    """A board's best mode for an epoch of a workload, and why it is suitable or not."""

    board: str
    mode: PowerMode
    epoch_s: float
    energy_j: float
    power_w: float
    memory: MemoryFit
    label: Label
    """Source of time and power."""
    source: str
    broken: tuple[str, ...] = ()
    """Limits that no mode of the board keeps; the mode is then the closest one."""

    @property
    def is_suitable(self) -> bool:
        """Whether every limit is kept and the step fits into memory."""
        return not self.broken and self.memory.fits

    @property
    def ranking_values(self) -> dict[RankingObjective, float]:
        """The value of each ranking objective; less is better."""
        return {"time": self.epoch_s, "energy": self.energy_j, "both": self.epoch_s * self.energy_j}


def rank_boards(
    boards: Sequence[DeviceSpec],
    specs: Mapping[str, DeviceSpec],
    job: BoardSelectionRequest,
    allowed_mb: Callable[[DeviceSpec], float],
) -> tuple[BoardOffer, ...]:
    """Return each board's best mode for an epoch, suitable boards first, each group by the objective.

    Args:
        boards: The boards to compare.
        specs: All known boards, from which estimates are scaled.
        job: The workload, limits and objective.
        allowed_mb: Returns the memory that a board leaves for training, in MB.
    """
    found = [_build_offer(spec, specs, job, allowed_mb(spec)) for spec in boards]
    return tuple(sorted(found, key=lambda offer: (not offer.is_suitable, offer.ranking_values[job.aim], offer.board)))


def _build_offer(
    spec: DeviceSpec, specs: Mapping[str, DeviceSpec], job: BoardSelectionRequest, allowed_mb: float
) -> BoardOffer:
    cost = estimate_step_cost(spec, job.work, specs)
    every = build_grid(spec)
    modes = Modes(every.knobs[mask_above_floor(every)])
    seconds = math.ceil(job.samples / job.work.batch_size) * compute_step_s(cost.coefficients, spec.maxn, modes)
    watts = compute_power_w(cost.coefficients, spec.maxn, modes)
    row, broken = find_best_row(seconds, watts, job.limits, job.aim)
    return BoardOffer(
        spec.name,
        mode=modes[row],
        epoch_s=float(seconds[row]),
        energy_j=float(seconds[row] * watts[row]),
        power_w=float(watts[row]),
        memory=_estimate_memory_fit(spec, job, allowed_mb),
        label=cost.label,
        source=cost.source,
        broken=broken,
    )


def estimate_step_cost(spec: DeviceSpec, work: Workload, specs: Mapping[str, DeviceSpec]) -> CostProfile:
    """Return the cost of a step: calibrated, rescaled from another batch size, or estimated from the layers."""
    if work.kind == "train" and work.name in load_workload_sizes():
        return rescale_to_batch_size(find_cost_profile(spec, work.name, specs), work, spec, specs)
    return _find_inference_cost(spec, work, specs) or estimate_network_cost(spec, work, specs)


def _find_inference_cost(spec: DeviceSpec, work: Workload, specs: Mapping[str, DeviceSpec]) -> CostProfile | None:
    """Return the inference cost measured on this board, at this batch size or between others, or None."""
    if work.kind == "train" or not any(
        (p.device, p.workload) == (spec.name, work.name) for p in load_calibrated_inference()
    ):
        return None
    try:
        return estimate_inference_cost(spec, work.name, work.batch_size, specs)
    except BadInput:  # too far from every batch size that was measured
        return None


def find_best_row(
    seconds: Floats, watts: Floats, limits: BoardLimits, aim: RankingObjective
) -> tuple[int, tuple[str, ...]]:
    """Return the best mode within the limits, or, if there is none, the closest one and the limits that it breaks.

    Args:
        seconds: Seconds of an epoch by mode, shape (n,).
        watts: Watts by mode, shape (n,).
        limits: The limits. Their excess is measured as a ratio, and ratios of both limits are multiplied.
        aim: The objective among the modes within the limits.
    """
    over = np.maximum(1.0, watts / (limits.power_w or np.inf)) * np.maximum(1.0, seconds / (limits.epoch_s or np.inf))
    worth: dict[RankingObjective, Floats] = {
        "time": seconds,
        "energy": seconds * watts,
        "both": seconds * seconds * watts,
    }
    within: NDArray[np.bool_] = over <= over.min()
    row = int(np.flatnonzero(within)[np.argmin(worth[aim][within])])
    return row, _describe_broken_limits(float(seconds[row]), float(watts[row]), limits)


def _describe_broken_limits(seconds: float, watts: float, limits: BoardLimits) -> tuple[str, ...]:
    held = (("power", watts, limits.power_w, "W"), ("epoch", seconds, limits.epoch_s, "s"))
    return tuple(
        f"{name} {value:,.{0 if value >= 100 else 2}f} {unit} above {limit:,.6g} {unit}"
        for name, value, limit, unit in held
        if limit is not None and value > limit
    )


def _estimate_memory_fit(spec: DeviceSpec, job: BoardSelectionRequest, allowed_mb: float) -> MemoryFit:
    work, network = job.work, job.network
    if network is None or work.kind == "infer":
        return MemoryFit(None, allowed_mb, None)
    asked = predict_step_need(network, spec, work.batch_size)
    largest = work.batch_size
    if asked.memory_mb > allowed_mb:
        largest = _find_largest_batch(lambda size: predict_step_need(network, spec, size), work.batch_size, allowed_mb)
    return MemoryFit(asked.memory_mb, allowed_mb, largest, asked.label)


def _find_largest_batch(needed: Callable[[int], StepNeed], above: int, allowed_mb: float) -> int:
    """Return the largest batch size below ``above`` whose step fits, by bisection; 0 if not even one sample fits."""
    fitting, failing = 0, above
    while failing - fitting > 1:
        middle = (fitting + failing) // 2
        if needed(middle).memory_mb <= allowed_mb:
            fitting = middle
        else:
            failing = middle
    return fitting


def filter_suitable(found: Sequence[BoardOffer]) -> tuple[BoardOffer, ...]:
    """Return the offers that keep every limit and fit into memory."""
    return tuple(offer for offer in found if offer.is_suitable)
