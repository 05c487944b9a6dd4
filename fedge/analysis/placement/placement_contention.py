"""Contention between instances, as a fixed point; and the demand of one batch of an instance without contention.

Demand: seconds of engine, memory and GPU, and joules.

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

Contention: how much each instance is delayed by the others; many placements at once.

Arrays are (n placements, g columns); a column is an accelerator of the board, with ``count`` equal instances.
    K  stretch of an instance's time on its engine by sharing it; S the same for memory
    T  = K fixed + ((K compute)^n + (S memory)^n)^(1/n) + F fallback
    u  = K fixed / T, v = K compute / T     shares of its time in which it occupies, and computes on, its engine
    m  = S memory / T, w = F fallback / T   ... in which it moves bytes, and runs fallback operators on the GPU
    K  = 1 + h (sum over the others on the engine of u + o v, and of w from elsewhere)
    S  = 1 + sum over the others of m times their share of the bandwidth
    F  = 1 + sum over the others on the GPU of u + v, and of w
o is 1 between instances of one accelerator, and the board's overlap between two kinds of cores of one GPU; h is 1
except on a processor with several cores. An instance that occupies an engine or moves bytes shares it evenly with those
that do so at that moment: processor sharing, in mean values. So the load never exceeds an engine (o = h = 1), nor the
bandwidth: a sum of shares over their stretches is convex in each share, so largest where all are 0 or 1: there 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedge.analysis.placement.accelerators import Accelerator, GpuFallback, Instance, PlacementBoard, PrecisionSpeed
from fedge.costs.layers.network_cost import LayerCost, NetworkCost
from fedge.types import Floats

VIEW_OPERATORS = frozenset({"view"})
"""Operators that only change the view of the same elements: nothing runs."""


@dataclass(frozen=True, slots=True)
class PartWork:
    """Work of a part of a network: FLOP and activation bytes per sample, weight bytes and launches per batch."""

    flop: float
    activation_bytes: float
    weight_bytes: float
    launches: int


@dataclass(frozen=True, slots=True)
class NetworkSplit:
    """Work that an accelerator runs itself, work that falls back, switches between them, and the kinds that fall."""

    own: PartWork
    fallback: PartWork
    switches: int
    fallen: tuple[str, ...]


def split_network(network: NetworkCost, supported: frozenset[str] | None) -> NetworkSplit:
    """Split the network's work by the ``supported`` kinds of an accelerator; None supports all."""
    running = [layer for layer in network.layers if layer.kind not in VIEW_OPERATORS]
    own = [layer for layer in running if supported is None or layer.kind in supported]
    other = [layer for layer in running if not (supported is None or layer.kind in supported)]
    # The work begins and ends on the accelerator.
    sides = [True, *(supported is None or layer.kind in supported for layer in running), True]
    return NetworkSplit(
        _sum_work(own),
        fallback=_sum_work(other),
        switches=sum(a != b for a, b in pairwise(sides)) if other and own else 0,
        fallen=tuple(dict.fromkeys(layer.kind for layer in other)),
    )


def can_run(place: Accelerator, network: NetworkCost) -> bool:
    """Return whether an accelerator runs any part of a network itself."""
    return split_network(network, place.supported).own.launches > 0


def _sum_work(layers: list[LayerCost]) -> PartWork:
    return PartWork(
        sum(layer.flop for layer in layers),
        activation_bytes=sum(layer.read_bytes + layer.written_bytes for layer in layers),
        weight_bytes=sum(layer.weight_bytes for layer in layers),
        launches=len(layers),
    )


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
    own = parts.own
    fixed_s = speed.batch_s + speed.launch_s * own.launches
    compute_s = batch_size * own.flop / speed.flop_per_s
    grown = 1.0 + batch_size / accelerator.spill_batch
    moved = speed.bytes_scale * (own.weight_bytes + batch_size * own.activation_bytes * grown)
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
    fallen = parts.fallback
    if not fallen.launches or board.fallback is None:
        return 0.0, 0.0
    place: GpuFallback = board.fallback
    moved = place.speed.bytes_scale * (fallen.weight_bytes + batch_size * fallen.activation_bytes)
    compute_s = batch_size * fallen.flop / place.speed.flop_per_s
    fixed_s = place.speed.launch_s * fallen.launches + place.switch_s * parts.switches
    work_s = rounded_roofline_s(compute_s, moved / board.bandwidth, board.corner)
    return fixed_s + work_s, place.full_w * work_s + board.memory_j * moved


STEPS, TOLERANCE, DAMPING = 400, 1e-10, 0.35
"""The fixed point is found if no stretch changes by more than the relative tolerance.

Defaults: stronger damping needs more steps, weaker damping may oscillate between contending instances.
"""
CHECK_EVERY = 8
"""Steps between two tests for convergence: a test takes about a third of a step."""
DEMAND_FIELDS = ("batch_size", "fixed_s", "compute_s", "memory_s", "fallback_s", "joules", "bandwidth_share")
"""Fields of an ``InstanceDemand``, in the order of those of ``DemandArrays`` after its count."""


@dataclass(frozen=True, slots=True, eq=False)
class ContentionColumns:
    """The accelerator of each column, as matrices of which column delays which."""

    same_engine: Floats
    """(g, g): 1 where two columns share an engine."""
    compute: Floats
    """(g, g): how much a column's computing delays another on its engine: 1, the overlap, or 0."""
    on_fallback: Floats
    """(g,): 1 for columns on the engine to which operators fall back."""
    hindrance: Floats
    """(g,): h of the module's head."""
    corner: float


@dataclass(frozen=True, slots=True, eq=False)
class DemandArrays:
    """Number of instances and demand of a batch, by placement and column; all of shape (n, g)."""

    count: Floats
    batch: Floats
    fixed_s: Floats
    compute_s: Floats
    memory_s: Floats
    fallback_s: Floats
    joules: Floats
    share: Floats

    def select(self, which: NDArray[np.bool_]) -> DemandArrays:
        """Return the demands of some placements."""
        return DemandArrays(*(getattr(self, name)[which] for name in DemandArrays.__slots__))


@dataclass(frozen=True, slots=True, eq=False)
class TimeShares:
    """u, v, m times the share of the bandwidth, and w, of the module's head, shape (n, g)."""

    held: Floats
    computing: Floats
    moving: Floats
    fallen: Floats


StretchFactors = Floats
"""K, S and F of the module's head, shape (3, n, g)."""


def build_contention_columns(board: PlacementBoard, names: Sequence[str]) -> ContentionColumns:
    """Return the matrices for columns that stand for the accelerators ``names``, which may repeat."""
    places = [board.accelerator(name) for name in names]
    engine: NDArray[np.bool_] = np.array([[a.engine == b.engine for b in places] for a in places])
    same: NDArray[np.bool_] = np.array([[a.name == b.name for b in places] for a in places])
    fallback = board.fallback.engine if board.fallback is not None else None
    return ContentionColumns(
        same_engine=engine.astype(np.float64),
        compute=np.where(same, 1.0, np.where(engine, board.overlap, 0.0)),
        on_fallback=np.array([float(a.engine == fallback) for a in places]),
        hindrance=np.array([a.hindrance for a in places]),
        corner=board.corner,
    )


def stack_demands(rows: Sequence[Sequence[tuple[int, InstanceDemand]]]) -> DemandArrays:
    """Return arrays from counts and demands of n placements by g columns."""
    count = np.array([[n for n, _ in row] for row in rows], dtype=np.float64)
    arrays = [
        np.array([[getattr(one, name) for _, one in row] for row in rows], dtype=np.float64) for name in DEMAND_FIELDS
    ]
    return DemandArrays(count, *arrays)


def solve_batch_seconds(columns: ContentionColumns, demands: DemandArrays) -> Floats:
    """Return the seconds of a batch at the fixed point of the module's head, shape (n, g).

    The damped iteration starts without contention. Placements that converged are set aside, which does not change them.
    """
    settled = np.empty_like(demands.count)
    left = np.arange(len(settled))
    one = np.ones_like(settled)
    here: StretchFactors = np.stack((one, one, one))
    for step in range(1, STEPS + 1):
        before = here
        there = compute_stretch_factors(columns, demands, compute_time_shares(columns, demands, before))
        here = before + (1.0 - DAMPING) * (there - before)
        if step % CHECK_EVERY and step < STEPS:
            continue
        change = np.abs(here / before - 1.0).max(axis=(0, 2), initial=0.0)
        still = (change < TOLERANCE) | (step == STEPS)
        settled[left[still]] = compute_batch_seconds(columns, demands.select(still), here[:, still])
        left, demands, here = left[~still], demands.select(~still), here[:, ~still]
        if not len(left):
            break
    return settled


def compute_batch_seconds(columns: ContentionColumns, d: DemandArrays, by: StretchFactors) -> Floats:
    """Return T, the seconds of a batch, shape (n, g)."""
    engine, memory, fallback = by
    roof = _rounded_roofline_s(engine * d.compute_s, memory * d.memory_s, columns.corner)
    result: Floats = engine * d.fixed_s + roof + fallback * d.fallback_s
    return result


def _rounded_roofline_s(compute_s: Floats, memory_s: Floats, corner: float) -> Floats:
    """Return (compute^n + memory^n)^(1/n), without powers for the shipped corner: they take most of a search's time."""
    if corner == 3.0:
        root: Floats = np.cbrt(compute_s * compute_s * compute_s + memory_s * memory_s * memory_s)
        return root
    power: Floats = (compute_s**corner + memory_s**corner) ** (1.0 / corner)
    return power


def compute_time_shares(columns: ContentionColumns, d: DemandArrays, by: StretchFactors) -> TimeShares:
    """Return the shares of its time that an instance spends in each resource."""
    batch_s = compute_batch_seconds(columns, d, by)
    engine, memory, fallback = by
    return TimeShares(
        engine * d.fixed_s / batch_s,
        engine * d.compute_s / batch_s,
        d.share * memory * d.memory_s / batch_s,
        fallback * d.fallback_s / batch_s,
    )


def compute_stretch_factors(columns: ContentionColumns, d: DemandArrays, by: TimeShares) -> StretchFactors:
    """Return how much every instance is delayed by the others; its own part is taken out of the sums."""
    everyone = np.ones((d.count.shape[1], 1))  # products add short rows up in a fifth of the time of sums
    fallen_all = (d.count * by.fallen) @ everyone
    own = by.held + by.computing
    on_engine = (d.count * by.held) @ columns.same_engine + (d.count * by.computing) @ columns.compute - own
    elsewhere = columns.on_fallback * (fallen_all - by.fallen)
    gpu = (d.count * own) @ columns.on_fallback[:, None] - own * columns.on_fallback
    # Without an instance there is no own part to subtract: the factor would fall below 1.
    used = d.count > 0
    return 1.0 + np.where(
        used,
        (
            columns.hindrance * (on_engine + elsewhere),
            (d.count * by.moving) @ everyone - by.moving,
            gpu + fallen_all - by.fallen,
        ),
        0.0,
    )
