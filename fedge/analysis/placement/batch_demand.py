"""Demand of one batch of an instance on a board without contention: seconds of engine, memory and GPU, and joules.

fixed    seconds that occupy the engine without computing (launches)
compute  FLOP / the attained speed
memory   bytes / the bandwidth that the accelerator can draw; bytes per sample grow by 1 + b / spill batch
fallback seconds on the GPU for operators that the accelerator does not run
alone    T = fixed + (compute^n + memory^n)^(1/n) + fallback, n the board's corner

A DLA runs the operators of NVIDIA's lists itself; the others fall back to the GPU, at the cost of switching. Parameters
may exclude more (kernels above 32, say), and only TensorRT knows the real fallback when it builds the engine: an
estimate.

References:
    TensorRT, "DLA Supported Layers and Restrictions"; the operator matrix of NVIDIA's Deep-Learning-Accelerator-SW
    repository (operators that are native through TensorRT).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from fedge.analysis.placement.accelerators import Accelerator, GpuFallback, Instance, PlacementBoard, PrecisionSpeed
from fedge.costs.layers.network_cost import BatchWork, LayerCost, NetworkCost

VIEW_OPERATORS = frozenset({"view"})
"""Operators that only change the view of the same elements: nothing runs."""
DLA_1 = frozenset({
    "conv", "conv_transpose", "linear", "batch_norm", "max_pool", "avg_pool", "adaptive_avg_pool", "mean", "relu",
    "relu6", "clamp", "leaky_relu", "prelu", "sigmoid", "tanh", "silu", "add", "sub", "mul", "max_of", "abs", "cat",
    "upsample_nearest", "upsample_linear", "local_response_norm",
})  # fmt: skip
"""DLA 1.0 (Xavier). A dense layer runs as a convolution, a mean over an image as pooling, SiLU as sigmoid times x."""
DLA_2 = DLA_1 | {"softmax"}
"""DLA 2.0 (Orin)."""
DLA_GENERATIONS = {1: DLA_1, 2: DLA_2}


@dataclass(frozen=True, slots=True)
class NetworkSplit:
    """Work that an accelerator runs itself and work that falls back: per sample, weights per batch; and switches."""

    flop: float
    activation_bytes: float
    weight_bytes: float
    launches: int
    fallback_flop: float = 0.0
    fallback_activation_bytes: float = 0.0
    fallback_weight_bytes: float = 0.0
    fallback_launches: int = 0
    switches: int = 0
    fallen: tuple[str, ...] = ()
    """The kinds of operators that fall back."""


def split_network(network: NetworkCost, supported: frozenset[str] | None) -> NetworkSplit:
    """Split the network's work by the ``supported`` kinds of an accelerator; None supports all."""
    running = [layer for layer in network.layers if layer.kind not in VIEW_OPERATORS]
    own = [layer for layer in running if supported is None or layer.kind in supported]
    other = [layer for layer in running if not (supported is None or layer.kind in supported)]
    here, there = _sum_work(own), _sum_work(other)
    return NetworkSplit(
        flop=here[0].flop,
        activation_bytes=here[0].bytes,
        weight_bytes=here[1],
        launches=len(own),
        fallback_flop=there[0].flop,
        fallback_activation_bytes=there[0].bytes,
        fallback_weight_bytes=there[1],
        fallback_launches=len(other),
        switches=_count_switches(running, supported) if other and own else 0,
        fallen=tuple(dict.fromkeys(layer.kind for layer in other)),
    )


def can_run(place: Accelerator, network: NetworkCost) -> bool:
    """Return whether an accelerator runs any part of a network itself."""
    return split_network(network, place.supported).launches > 0


def _sum_work(layers: list[LayerCost]) -> tuple[BatchWork, float]:
    """Return FLOP and activation bytes per sample, and bytes of weights per batch."""
    moved = sum(layer.read_bytes + layer.written_bytes for layer in layers)
    return BatchWork(sum(layer.flop for layer in layers), moved), sum(layer.weight_bytes for layer in layers)


def _count_switches(layers: list[LayerCost], supported: frozenset[str] | None) -> int:
    """Return the number of switches between accelerator and GPU; the work begins and ends on the accelerator."""
    sides = [True, *(supported is None or layer.kind in supported for layer in layers), True]
    return sum(a != b for a, b in pairwise(sides))


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
    """Return the same from a network that is split already."""
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
