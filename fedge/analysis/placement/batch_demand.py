"""Demand of one batch of an instance on a board without contention: seconds of engine, memory and GPU, and joules.

fixed    seconds that occupy the engine without computing (launches)
compute  FLOP / the attained speed
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
    """Seconds and joules of one batch, as the module's head defines them."""

    batch_size: int
    fixed_s: float
    compute_s: float
    memory_s: float
    fallback_s: float
    joules: float
    """Energy above idle; waiting for others adds nothing."""
    bandwidth_share: float

    def uncontended_s(self, corner: float) -> float:
        """Return the seconds of a batch when nothing else runs."""
        return self.fixed_s + rounded_roofline_s(self.compute_s, self.memory_s, corner) + self.fallback_s


NO_DEMAND = InstanceDemand(1, fixed_s=0.0, compute_s=1.0, memory_s=0.0, fallback_s=0.0, joules=0.0, bandwidth_share=0.0)
"""Placeholder where there is no instance; its time must be positive and is otherwise arbitrary."""


def rounded_roofline_s(compute_s: float, memory_s: float, corner: float) -> float:
    """Return the roofline time with its corner rounded off, in seconds."""
    return float((compute_s**corner + memory_s**corner) ** (1.0 / corner))


def compute_demand(board: PlacementBoard, network: NetworkCost, instance: Instance) -> InstanceDemand:
    """Return the demand of a batch of ``instance`` on ``board``.

    Raises:
        KeyError: For an accelerator or precision that the board does not have.
    """
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
    """Return the same from a network that is split already.

    Args:
        board: The board, for its bandwidth and corner.
        parts: The work that the accelerator runs itself, and the work that falls back.
        accelerator: The accelerator.
        speed: Its speed in the instance's precision.
        batch_size: Samples per batch.
    """
    # A DLA loadable of consecutive operators is one launch (batch_s); kernels launched singly count one each.
    fixed_s = speed.batch_s + speed.launch_s * parts.launches
    compute_s = batch_size * parts.flop / speed.flop_per_s
    grown = 1.0 + batch_size / accelerator.spill_batch
    moved = speed.bytes_scale * (parts.weight_bytes + batch_size * parts.activation_bytes * grown)
    fallback_s, fallback_j = _compute_fallback(board, parts, batch_size)
    memory_s = moved / (board.bandwidth * accelerator.bandwidth_share)
    # Cores that wait for memory stay active and draw full power.
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
    """Return seconds and joules on the GPU of one batch."""
    if not parts.fallback_launches or board.fallback is None:
        return 0.0, 0.0
    place: GpuFallback = board.fallback
    moved = place.speed.bytes_scale * (parts.fallback_weight_bytes + batch_size * parts.fallback_activation_bytes)
    compute_s = batch_size * parts.fallback_flop / place.speed.flop_per_s
    fixed_s = place.speed.launch_s * parts.fallback_launches + place.switch_s * parts.switches
    work_s = rounded_roofline_s(compute_s, moved / board.bandwidth, board.corner)
    return fixed_s + work_s, place.full_w * work_s + board.memory_j * moved
