"""What one batch of an instance asks of a board when it is alone: seconds of its engine, of memory, of the GPU; joules.

fixed    seconds that hold the engine without computing (launches)
compute  FLOP / the speed that is reached
memory   bytes / the bandwidth that the accelerator can draw; bytes per sample grow by 1 + b / spill batch
fallback seconds on the GPU for operators that the accelerator does not run
alone    T = fixed + (compute^n + memory^n)^(1/n) + fallback, n the board's corner
"""

from __future__ import annotations

from dataclasses import dataclass

from fedge.analysis.placement.accelerators import Accelerator, GpuFallback, Instance, PlacementBoard, PrecisionSpeed
from fedge.analysis.placement.dla_support import NetworkSplit, split_network
from fedge.costs.layers.network_cost import NetworkCost


@dataclass(frozen=True, slots=True)
class InstanceDemand:
    """Seconds and joules of one batch, as this file's head defines them."""

    batch_size: int
    fixed_s: float
    compute_s: float
    memory_s: float
    fallback_s: float
    joules: float
    """Above idle; what is waited for costs nothing more."""
    bandwidth_share: float

    def uncontended_s(self, corner: float) -> float:
        """Seconds of a batch when nothing else runs."""
        return self.fixed_s + rounded_roofline_s(self.compute_s, self.memory_s, corner) + self.fallback_s


NO_DEMAND = InstanceDemand(1, fixed_s=0.0, compute_s=1.0, memory_s=0.0, fallback_s=0.0, joules=0.0, bandwidth_share=0.0)
"""Stands where there is no instance: any demand that takes time does."""


def rounded_roofline_s(compute_s: float, memory_s: float, corner: float) -> float:
    """The roofline with its corner rounded off."""
    return float((compute_s**corner + memory_s**corner) ** (1.0 / corner))


def compute_demand(board: PlacementBoard, network: NetworkCost, instance: Instance) -> InstanceDemand:
    """What a batch of ``instance`` asks of ``board``; raises ``KeyError`` for what the board does not have."""
    accelerator = board.accelerator(instance.accelerator)
    parts = split_network(network, accelerator.supported)
    return compute_split_demand(
        board,
        parts=parts,
        accelerator=accelerator,
        speed=accelerator.speed(instance.precision),
        batch_size=instance.batch_size,
    )


def compute_split_demand(
    board: PlacementBoard, parts: NetworkSplit, accelerator: Accelerator, speed: PrecisionSpeed, batch_size: int
) -> InstanceDemand:
    """The same from a network that is split already."""
    # A loadable of operators that follow each other is one launch; where kernels are launched singly, each counts.
    fixed_s = speed.batch_s + speed.launch_s * parts.launches
    compute_s = batch_size * parts.flop / speed.flop_per_s
    grown = 1.0 + batch_size / accelerator.spill_batch
    moved = speed.bytes_scale * (parts.weight_bytes + batch_size * parts.activation_bytes * grown)
    fallback_s, fallback_j = _compute_fallback(board, parts, batch_size)
    memory_s = moved / (board.bandwidth * accelerator.bandwidth_share)
    # Cores that wait for memory are awake: they draw what they draw at work.
    working_j = accelerator.full_w * rounded_roofline_s(compute_s, memory_s, board.corner)
    return InstanceDemand(
        batch_size=batch_size,
        fixed_s=fixed_s,
        compute_s=compute_s,
        memory_s=memory_s,
        fallback_s=fallback_s,
        joules=accelerator.waiting_w * fixed_s + working_j + board.memory_j * moved + fallback_j,
        bandwidth_share=accelerator.bandwidth_share,
    )


def _compute_fallback(board: PlacementBoard, parts: NetworkSplit, batch_size: int) -> tuple[float, float]:
    """Seconds and joules on the GPU of one batch."""
    if not parts.fallback_launches or board.fallback is None:
        return 0.0, 0.0
    place: GpuFallback = board.fallback
    moved = place.speed.bytes_scale * (parts.fallback_weight_bytes + batch_size * parts.fallback_activation_bytes)
    compute_s = batch_size * parts.fallback_flop / place.speed.flop_per_s
    fixed_s = place.speed.launch_s * parts.fallback_launches + place.switch_s * parts.switches
    work_s = rounded_roofline_s(compute_s, moved / board.bandwidth, board.corner)
    return fixed_s + work_s, place.full_w * work_s + board.memory_j * moved
