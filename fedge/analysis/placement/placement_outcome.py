"""The outcome of a placement (images per second, latency, power, energy per image) and its cost by a goal.

X   images per second when every instance always has a full batch: sum of b / T
R   the requested rate, split over the instances by their throughput; without one, R = X
latency  with a rate: the slowest instance's b / R_i + T, the wait of a batch's first image and the batch itself,
         which is T (1 + X / R); without one: the slowest T. T is that of full load, so at a lower rate it is a
         little too long.
watts    idle + (R / X) sum of joules / T

A goal is an objective and limits of rate, power and latency; both also for many placements at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedge.analysis.placement.accelerators import Instance, Placement, PlacementBoard
from fedge.analysis.placement.batch_demand import can_run, compute_demand
from fedge.analysis.placement.placement_contention import (
    ContentionColumns,
    DemandArrays,
    build_contention_columns,
    solve_batch_seconds,
    stack_demands,
)
from fedge.costs.layers.network_cost import NetworkCost
from fedge.errors import BadInput
from fedge.types import Floats


@dataclass(frozen=True, slots=True)
class InstanceOutcome:
    """One instance among the others.

    Attributes:
        batch_s: Seconds of a batch while the others run.
        alone_s: Seconds of a batch without the others.
    """

    instance: Instance
    images_per_s: float
    batch_s: float
    alone_s: float


@dataclass(frozen=True, slots=True)
class PlacementOutcome:
    """The figures that the module's head defines.

    Attributes:
        images_per_s: Images per second at full load.
        latency_s: Latency in seconds at ``rate_hz``.
        power_w: Power of the board in watts at ``rate_hz``.
        full_load_w: Power of the board in watts while it infers without a pause.
        rate_hz: The requested rate; None for full load.
    """

    placement: Placement
    images_per_s: float
    latency_s: float
    power_w: float
    full_load_w: float
    joules_per_image: float
    rate_hz: float | None
    instances: tuple[InstanceOutcome, ...]

    @property
    def keeps_up(self) -> bool:
        """Whether it reaches the requested rate."""
        return self.rate_hz is None or self.images_per_s >= self.rate_hz


@dataclass(frozen=True, slots=True, eq=False)
class OutcomeArrays:
    """n placements at full load: images per second, the slowest batch, watts above idle (n,); all batches (n, g)."""

    images_per_s: Floats
    slowest_s: Floats
    dynamic_w: Floats
    batch_s: Floats


def evaluate_placement(
    board: PlacementBoard, network: NetworkCost, placement: Placement, rate_hz: float | None = None
) -> PlacementOutcome:
    """Return the outcome of a placement.

    Raises:
        BadInput: For instances that the board cannot have.
    """
    if not placement.instances:
        raise BadInput("placement", "no instance", "one at least")
    check_placement(board, network, placement)
    columns = build_contention_columns(board, [one.accelerator for one in placement.instances])
    wanted = [compute_demand(board, network, one) for one in placement.instances]
    found = evaluate_at_full_load(columns, stack_demands([[(1, one) for one in wanted]]))
    images, slowest_s = float(found.images_per_s[0]), float(found.slowest_s[0])
    load = 1.0 if rate_hz is None else rate_hz / images
    power_w = board.idle_w + load * float(found.dynamic_w[0])
    return PlacementOutcome(
        placement=placement,
        images_per_s=images,
        latency_s=slowest_s if rate_hz is None else slowest_s * (1.0 + images / rate_hz),
        power_w=power_w,
        full_load_w=board.idle_w + float(found.dynamic_w[0]),
        joules_per_image=power_w / (images if rate_hz is None else rate_hz),
        rate_hz=rate_hz,
        instances=tuple(
            InstanceOutcome(one, one.batch_size / batch_s, batch_s, its.uncontended_s(board.corner))
            for one, its, batch_s in zip(placement.instances, wanted, found.batch_s[0].tolist(), strict=True)
        ),
    )


def evaluate_at_full_load(columns: ContentionColumns, demands: DemandArrays) -> OutcomeArrays:
    """Return the outcomes of n placements at full load."""
    batch_s = solve_batch_seconds(columns, demands)
    return OutcomeArrays(
        images_per_s=(demands.count * demands.batch / batch_s).sum(axis=1),
        slowest_s=np.where(demands.count > 0, batch_s, 0.0).max(axis=1),
        dynamic_w=(demands.count * demands.joules / batch_s).sum(axis=1),
        batch_s=batch_s,
    )


def check_placement(
    board: PlacementBoard, network: NetworkCost, placement: Placement, where: str = "placement"
) -> None:
    """Raise ``BadInput`` for hardware that the board lacks, a batch below one, or a DLA that would run nothing."""
    for one in placement.instances:
        if one.accelerator not in board.accelerator_names:
            raise BadInput(where, repr(one.accelerator), f"on {board.name}: {', '.join(board.accelerator_names)}")
        known = tuple(speed.precision for speed in board.accelerator(one.accelerator).speeds)
        if one.precision not in known:
            raise BadInput(where, f"{one.precision} on {one.accelerator}", f"{' or '.join(known)} there")
        if not can_run(board.accelerator(one.accelerator), network):
            raise BadInput(where, f"{network.name} on {one.accelerator}", "a network of which it runs something")
        if one.batch_size < 1:
            raise BadInput(where, f"a batch of {one.batch_size}", "1 or more")


PlacementObjective = Literal["throughput", "latency", "energy", "power", "rate"]
USER_OBJECTIVES: tuple[PlacementObjective, ...] = ("throughput", "latency", "energy")
"""Objectives for users; ``power`` and ``rate`` (the highest within the limits) serve to find the nearest limits."""
LIMIT_TOLERANCE = 1e-9
"""Relative excess up to which a limit counts as met, so that a figure can be its own limit."""


@dataclass(frozen=True, slots=True)
class PlacementGoal:
    """An objective (most images per second, or least latency, energy or power) within the given limits.

    With ``rate_hz`` a placement must keep up with it, and latency, energy and power are those at that rate; without one
    they are those at full load. The objective ``rate`` is the highest rate at which power and latency hold.
    """

    objective: PlacementObjective = "throughput"
    rate_hz: float | None = None
    max_power_w: float | None = None
    max_latency_s: float | None = None

    def __post_init__(self) -> None:
        limits = (
            ("--rate-hz", self.rate_hz),
            ("--max-power-w", self.max_power_w),
            ("--max-latency-s", self.max_latency_s),
        )
        for option, limit in limits:
            if limit is not None and not (math.isfinite(limit) and limit > 0):
                raise BadInput(option, f"{limit:g}", "a number above 0")


@dataclass(frozen=True, slots=True, eq=False)
class PlacementScores:
    """Scores of n placements, each of shape (n,).

    Attributes:
        cost: The value to minimise, infinite where a limit is broken.
    """

    cost: Floats
    power_w: Floats
    rate_hz: Floats


def score_placements(goal: PlacementGoal, idle_w: float, found: OutcomeArrays) -> PlacementScores:
    """Return every placement's cost."""
    images, slowest_s, dynamic_w = found.images_per_s, found.slowest_s, found.dynamic_w
    rate = _resolve_rate_hz(goal, idle_w, images, dynamic_w)
    if goal.rate_hz is None and goal.objective != "rate":
        latency, power_w = slowest_s, idle_w + dynamic_w
    else:
        latency = slowest_s * (1.0 + images / np.maximum(rate, 1e-300))
        power_w = idle_w + rate / images * dynamic_w
    cost = {
        "throughput": -images,
        "latency": latency,
        "energy": power_w / np.maximum(rate, 1e-300),
        "power": power_w,
        "rate": -rate,
    }[goal.objective]
    broken: NDArray[np.bool_] = (rate <= 0) | (images < rate * (1 - LIMIT_TOLERANCE))
    if goal.max_power_w is not None:
        broken |= power_w > goal.max_power_w * (1 + LIMIT_TOLERANCE)
    if goal.max_latency_s is not None:
        broken |= latency > goal.max_latency_s * (1 + LIMIT_TOLERANCE)
    return PlacementScores(np.where(broken, np.inf, cost), power_w, rate)


def _resolve_rate_hz(goal: PlacementGoal, idle_w: float, images: Floats, dynamic_w: Floats) -> Floats:
    """Return the rate of latency and power: the goal's, full load, or the highest within the power limit."""
    if goal.objective != "rate":
        return images if goal.rate_hz is None else np.full_like(images, goal.rate_hz)
    if goal.max_power_w is None:
        return images
    return images * np.clip((goal.max_power_w - idle_w) / np.maximum(dynamic_w, 1e-300), 0.0, 1.0)
