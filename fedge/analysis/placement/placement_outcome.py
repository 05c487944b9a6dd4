"""The outcome of a placement (images per second, latency, power, energy per image) and its cost by a goal.

X   images per second when every instance always has a full batch: sum of b / T
R   the requested rate, split over the instances by their throughput; without one, R = X
latency  with a rate: the slowest instance's b / R_i + T, the wait of a batch's first image and the batch itself,
         which is T (1 + X / R); without one: the slowest T. T is that of full load, so at a lower rate it is a
         little too long.
watts    idle + (R / X) sum of joules / T

A goal is an objective and limits of rate, power and latency; both also for many placements at once.

The space of placements: per accelerator nothing, or a number of instances of one batch size and precision.

Instances of one accelerator are equal: it serves them in turn, so that a mixture lies between its parts. Two DLAs of
the same make are interchangeable: of two placements that differ by swapping them one is kept.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedge.analysis.placement.accelerators import Accelerator, Instance, Placement, PlacementBoard
from fedge.analysis.placement.placement_contention import (
    DEMAND_FIELDS,
    NO_DEMAND,
    ContentionColumns,
    DemandArrays,
    InstanceDemand,
    build_contention_columns,
    can_run,
    compute_demand,
    compute_split_demand,
    solve_batch_seconds,
    split_network,
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
    """Scores of n placements, each of shape (n,); ``cost`` is to be minimised and infinite where a limit is broken."""

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


OptionRows = NDArray[np.intp]
"""Per placement and accelerator, the index of its option; shape (n, g)."""


@dataclass(frozen=True, slots=True)
class InstanceOption:
    """``count`` equal instances on one accelerator; 0 for none, whose demand has no meaning."""

    count: int
    batch_size: int
    precision: str
    demand: InstanceDemand


@dataclass(frozen=True, slots=True, eq=False)
class PlacementSpace:
    """Options per accelerator, also as arrays of shape (fields, options)."""

    board: PlacementBoard
    options: tuple[tuple[InstanceOption, ...], ...]
    columns: tuple[Floats, ...]

    @property
    def size(self) -> int:
        """Number of placements, including interchangeable ones."""
        return int(np.prod([len(some) for some in self.options], dtype=np.float64))

    def select_demands(self, rows: OptionRows) -> DemandArrays:
        """Return the demands of the placements."""
        stacked = [self.columns[g][:, rows[:, g]] for g in range(len(self.columns))]
        return DemandArrays(
            *(np.stack([column[i] for column in stacked], axis=1) for i in range(1 + len(DEMAND_FIELDS)))
        )

    def build_placement(self, row: Sequence[int]) -> Placement:
        """Return the placement of one row."""
        chosen = [
            (place, self.options[g][i]) for g, (place, i) in enumerate(zip(self.board.accelerators, row, strict=True))
        ]
        return Placement(
            tuple(
                Instance(place.name, option.batch_size, option.precision)
                for place, option in chosen
                for _ in range(option.count)
            )
        )


def build_placement_space(
    board: PlacementBoard, network: NetworkCost, batch_sizes: Sequence[int], most_instances: int
) -> PlacementSpace:
    """Return all options of a board for a network."""
    options = tuple(
        tuple(
            _generate_options(
                board, network=network, place=place, batch_sizes=batch_sizes, most_instances=most_instances
            )
        )
        for place in board.accelerators
    )
    return PlacementSpace(board, options, tuple(_options_to_array(some) for some in options))


def _generate_options(
    board: PlacementBoard, network: NetworkCost, place: Accelerator, batch_sizes: Sequence[int], most_instances: int
) -> Iterator[InstanceOption]:
    parts = split_network(network, place.supported)
    found = [
        InstanceOption(
            1,
            size,
            precision,
            compute_split_demand(board, parts=parts, accelerator=place, speed=place.speed(precision), batch_size=size),
        )
        for size in batch_sizes
        for precision in place.precisions
        if parts.own.launches
    ]
    yield InstanceOption(0, 1, "", NO_DEMAND)
    for count in range(1, most_instances + 1):
        yield from (replace(one, count=count) for one in found)


def _options_to_array(options: Sequence[InstanceOption]) -> Floats:
    rows = [[float(one.count), *(float(getattr(one.demand, name)) for name in DEMAND_FIELDS)] for one in options]
    return np.array(rows, dtype=np.float64).T


def find_twins(board: PlacementBoard) -> tuple[tuple[int, int], ...]:
    """Return pairs of accelerators, by index, that differ in their names only."""
    pairs = []
    for j, one in enumerate(board.accelerators):
        for i in range(j - 1, -1, -1):
            other = board.accelerators[i]
            alone = sum(a.engine == one.engine for a in board.accelerators) == 1
            if alone and replace(other, name=one.name, engine=one.engine) == one:
                pairs.append((i, j))
                break
    return tuple(pairs)


@dataclass(frozen=True, slots=True)
class CombinationCurve:
    """A combination's outcomes at full load, one per batch size, which all its instances share."""

    combination: str
    outcomes: tuple[PlacementOutcome, ...]

    @property
    def best_outcome(self) -> PlacementOutcome:
        """The outcome with most images per second."""
        return max(self.outcomes, key=lambda one: one.images_per_s)


def compute_combination_curves(
    board: PlacementBoard, network: NetworkCost, batch_sizes: Sequence[int]
) -> tuple[CombinationCurve, ...]:
    """Return the curves of all combinations; of two equal DLAs, the second does not appear without the first."""
    found = []
    for chosen in _generate_combinations(board, network):
        placements = [
            Placement(tuple(Instance(place.name, size, place.precisions[0]) for place in chosen))
            for size in batch_sizes
        ]
        found.append(
            CombinationCurve(
                placements[0].combination, tuple(evaluate_placement(board, network, one) for one in placements)
            )
        )
    return tuple(found)


def _generate_combinations(board: PlacementBoard, network: NetworkCost) -> Iterator[tuple[Accelerator, ...]]:
    needs = {board.accelerators[second].name: board.accelerators[first].name for first, second in find_twins(board)}
    usable = [place for place in board.accelerators if place.precisions and can_run(place, network)]
    for count in range(1, len(usable) + 1):
        for chosen in itertools.combinations(usable, count):
            names = {place.name for place in chosen}
            if all(needs.get(name) is None or needs[name] in names for name in names):
                yield chosen
