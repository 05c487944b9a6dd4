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

from fedge.costs.from_layers import network_cost, rescaled
from fedge.costs.inference import inference_cost
from fedge.costs.profiles import cost_of
from fedge.costs.record import CostProfile, load_inference
from fedge.costs.workloads import load_workloads
from fedge.errors import BadInput
from fedge.layers.network import NetworkCost
from fedge.memory.need import StepNeed, need
from fedge.modes import grid
from fedge.physics.model import power_w, step_s
from fedge.rounds.candidates import above_floor
from fedge.types import DeviceSpec, Floats, Label, Modes, PowerMode, Workload

Aim = Literal["time", "energy", "both"]
"""What boards and their modes are ranked by: the epoch's seconds, its joules, or their product."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a board must hold: watts while it works, and seconds for an epoch; None for no limit."""

    power_w: float | None = None
    epoch_s: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """What is to be done: minibatches of a network, so many samples in an epoch, within limits, and what ranks."""

    work: Workload
    network: NetworkCost | None
    """Its layers, where they are known."""
    samples: int
    limits: Limits = Limits()
    aim: Aim = "time"


@dataclass(frozen=True, slots=True)
class Memory:
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
class Offer:
    """A board's best mode for an epoch of a workload, and why it is offered or left out."""

    board: str
    mode: PowerMode
    epoch_s: float
    energy_j: float
    power_w: float
    memory: Memory
    label: Label
    """Of time and power."""
    source: str
    broken: tuple[str, ...] = ()
    """Limits that no mode of the board holds; the mode is then the one that comes closest."""

    @property
    def suits(self) -> bool:
        """Whether every limit holds and the step fits into memory."""
        return not self.broken and self.memory.fits

    @property
    def worth(self) -> dict[Aim, float]:
        """What offers are ranked by; less is better."""
        return {"time": self.epoch_s, "energy": self.energy_j, "both": self.epoch_s * self.energy_j}


def offers(
    boards: Sequence[DeviceSpec],
    specs: Mapping[str, DeviceSpec],
    job: Job,
    allowed_mb: Callable[[DeviceSpec], float],
) -> tuple[Offer, ...]:
    """Each board's best mode for an epoch: those that suit first, each group the best first.

    ``specs`` are all boards that anything is known of, ``allowed_mb`` says what a board leaves for training.
    """
    found = [_offer(spec, specs, job, allowed_mb(spec)) for spec in boards]
    return tuple(sorted(found, key=lambda offer: (not offer.suits, offer.worth[job.aim], offer.board)))


def _offer(spec: DeviceSpec, specs: Mapping[str, DeviceSpec], job: Job, allowed_mb: float) -> Offer:
    cost = price_of(spec, job.work, specs)
    every = grid(spec)
    modes = Modes(every.knobs[above_floor(every)])
    seconds = math.ceil(job.samples / job.work.batch_size) * step_s(cost.coefficients, spec.maxn, modes)
    watts = power_w(cost.coefficients, spec.maxn, modes)
    row, broken = best_row(seconds, watts, job.limits, job.aim)
    return Offer(
        spec.name,
        modes[row],
        float(seconds[row]),
        float(seconds[row] * watts[row]),
        float(watts[row]),
        _memory(spec, job, allowed_mb),
        cost.label,
        cost.source,
        broken,
    )


def price_of(spec: DeviceSpec, work: Workload, specs: Mapping[str, DeviceSpec]) -> CostProfile:
    """What a minibatch costs: as calibrated, at another batch size moved by its layers, or by its layers alone."""
    if work.kind == "train" and work.name in load_workloads():
        return rescaled(cost_of(spec, work.name, specs), work, spec, specs)
    return _inferred(spec, work, specs) or network_cost(spec, work, specs)


def _inferred(spec: DeviceSpec, work: Workload, specs: Mapping[str, DeviceSpec]) -> CostProfile | None:
    """What was measured of inference on this board, at this batch size or between others; None where it was not."""
    if work.kind == "train" or not any((p.device, p.workload) == (spec.name, work.name) for p in load_inference()):
        return None
    try:
        return inference_cost(spec, work.name, work.batch_size, specs)
    except BadInput:  # too far from every batch size that was measured
        return None


def best_row(seconds: Floats, watts: Floats, limits: Limits, aim: Aim) -> tuple[int, tuple[str, ...]]:
    """The best of the modes within the limits; where there is none, the one that breaks them least, and what it breaks.

    ``seconds`` and ``watts`` are of shape (n,). How far a limit is broken counts as a ratio.
    """
    over = np.maximum(1.0, watts / (limits.power_w or np.inf)) * np.maximum(1.0, seconds / (limits.epoch_s or np.inf))
    worth: dict[Aim, Floats] = {"time": seconds, "energy": seconds * watts, "both": seconds * seconds * watts}
    within: NDArray[np.bool_] = over <= over.min()
    row = int(np.flatnonzero(within)[np.argmin(worth[aim][within])])
    return row, _broken(float(seconds[row]), float(watts[row]), limits)


def _broken(seconds: float, watts: float, limits: Limits) -> tuple[str, ...]:
    held = (("power", watts, limits.power_w, "W"), ("epoch", seconds, limits.epoch_s, "s"))
    return tuple(
        f"{name} {value:,.{0 if value >= 100 else 2}f} {unit} above {limit:,.6g} {unit}"
        for name, value, limit, unit in held
        if limit is not None and value > limit
    )


def _memory(spec: DeviceSpec, job: Job, allowed_mb: float) -> Memory:
    work, network = job.work, job.network
    if network is None or work.kind == "infer":
        return Memory(None, allowed_mb, None)
    asked = need(network, spec, work.batch_size)
    largest = work.batch_size
    if asked.memory_mb > allowed_mb:
        largest = _largest(lambda size: need(network, spec, size), work.batch_size, allowed_mb)
    return Memory(asked.memory_mb, allowed_mb, largest, asked.label)


def _largest(needed: Callable[[int], StepNeed], above: int, allowed_mb: float) -> int:
    """The largest batch size below ``above`` whose step fits, by halving; 0 where not even one sample's does."""
    fitting, failing = 0, above
    while failing - fitting > 1:
        middle = (fitting + failing) // 2
        if needed(middle).memory_mb <= allowed_mb:
            fitting = middle
        else:
            failing = middle
    return fitting


def suiting(found: Sequence[Offer]) -> tuple[Offer, ...]:
    """The offers that hold every limit."""
    return tuple(offer for offer in found if offer.suits)
