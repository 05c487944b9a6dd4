"""Which board, in which mode, suits a workload: every board's modes priced, held against limits, and ranked.

Times and powers come from calibrated profiles where there are any, else by data-sheet ratios or by layers; every offer
says which. Limits are held against what is expected: an estimated board may still miss them by its error.
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
"""What boards and their modes are ranked by: the epoch's seconds, its joules, or their product."""


@dataclass(frozen=True, slots=True)
class BoardLimits:
    """What a board must hold: watts while it works, and seconds for an epoch; None for no limit."""

    power_w: float | None = None
    epoch_s: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class BoardSelectionRequest:
    """What is to be done: minibatches of a network, so many samples in an epoch, within limits, and what ranks."""

    work: Workload
    network: NetworkCost | None
    """Its layers, where they are known."""
    samples: int
    limits: BoardLimits = BoardLimits()
    aim: RankingObjective = "time"


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """What a training step needs and what a board leaves for it; ``batch_size`` is the largest that fits, 0 for none.

    ``need_mb`` is None for inference, and where the network's layers are not known.
    """

    need_mb: float | None
    allowed_mb: float
    batch_size: int | None
    label: Label = "estimated"

    @property
    def fits(self) -> bool:
        """Whether it fits, as far as is known."""
        return self.need_mb is None or self.need_mb <= self.allowed_mb


@dataclass(frozen=True, slots=True)
class BoardOffer:
    """A board's best mode for an epoch of a workload, and why it is offered or left out."""

    board: str
    mode: PowerMode
    epoch_s: float
    energy_j: float
    power_w: float
    memory: MemoryFit
    label: Label
    """Of time and power."""
    source: str
    broken: tuple[str, ...] = ()
    """Limits that no mode of the board holds; the mode is then the one that comes closest."""

    @property
    def is_suitable(self) -> bool:
        """Whether every limit holds and the step fits into memory."""
        return not self.broken and self.memory.fits

    @property
    def ranking_values(self) -> dict[RankingObjective, float]:
        """What offers are ranked by; less is better."""
        return {"time": self.epoch_s, "energy": self.energy_j, "both": self.epoch_s * self.energy_j}


def rank_boards(
    boards: Sequence[DeviceSpec],
    specs: Mapping[str, DeviceSpec],
    job: BoardSelectionRequest,
    allowed_mb: Callable[[DeviceSpec], float],
) -> tuple[BoardOffer, ...]:
    """Each board's best mode for an epoch: those that suit first, each group the best first.

    ``specs`` are all boards that anything is known of, ``allowed_mb`` says what a board leaves for training.
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
    """What a minibatch costs: as calibrated, at another batch size moved by its layers, or by its layers alone."""
    if work.kind == "train" and work.name in load_workload_sizes():
        return rescale_to_batch_size(find_cost_profile(spec, work.name, specs), work, spec, specs)
    return _find_inference_cost(spec, work, specs) or estimate_network_cost(spec, work, specs)


def _find_inference_cost(spec: DeviceSpec, work: Workload, specs: Mapping[str, DeviceSpec]) -> CostProfile | None:
    """What was measured of inference on this board, at this batch size or between others; None where it was not."""
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
    """The best of the modes within the limits; where there is none, the one that breaks them least, and what it breaks.

    ``seconds`` and ``watts`` are of shape (n,). How far a limit is broken counts as a ratio.
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
    """The largest batch size below ``above`` whose step fits, by halving; 0 where not even one sample's does."""
    fitting, failing = 0, above
    while failing - fitting > 1:
        middle = (fitting + failing) // 2
        if needed(middle).memory_mb <= allowed_mb:
            fitting = middle
        else:
            failing = middle
    return fitting


def filter_suitable(found: Sequence[BoardOffer]) -> tuple[BoardOffer, ...]:
    """The offers that hold every limit."""
    return tuple(offer for offer in found if offer.is_suitable)
