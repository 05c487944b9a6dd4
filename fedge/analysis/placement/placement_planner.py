"""Find the best placement for a goal exactly: every placement is bounded, promising ones are evaluated in full.

A placement is skipped only if its bound shows that it breaks a limit, or cannot be better than one already found; so
the result equals that of trying everything.

The shares of ``placement_contention`` are monotone in the stretch factors: u and v rise with K and fall with S and F,
m rises with S and falls with K and F, w rises with F and falls with K and S. So intervals that hold every stretch
factor give intervals of the shares, and these give narrower ones of the factors: the fixed point lies inside.
A board is split into two halves, the engine of its first accelerator and all others. They meet only in memory and in
fallback operators. So each half is bounded once beside any other half, and a pair by the bounds of its halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedge.analysis.placement.accelerators import PlacementBoard
from fedge.analysis.placement.placement_contention import (
    ContentionColumns,
    DemandArrays,
    StretchFactors,
    TimeShares,
    build_contention_columns,
    compute_batch_seconds,
    compute_stretch_factors,
    compute_time_shares,
)
from fedge.analysis.placement.placement_outcome import (
    OptionRows,
    PlacementGoal,
    PlacementOutcome,
    PlacementSpace,
    build_placement_space,
    evaluate_at_full_load,
    evaluate_placement,
    find_twins,
    score_placements,
)
from fedge.costs.layers.network_cost import NetworkCost
from fedge.errors import BadInput
from fedge.types import Floats

BOUND_SLACK = 1e-6
"""Relative slack of a bound, for rounding and for the tolerance of the fixed point."""
_NARROWING_STEPS = 8
"""Number of times that intervals are narrowed; further steps narrow them very little."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacementBounds:
    """Bounds of n placements, or of n halves of the board beside any other half, each of shape (n,).

    Attributes:
        most_images: Upper bound of images per second.
        least_images: Lower bound of images per second.
        slowest_s: Lower bound of the slowest instance's batch, in seconds.
        joules: Lower bound of the mean dynamic energy per image, in joules.
        dynamic_w: Lower bound of the power above idle, in watts.
    """

    most_images: Floats
    least_images: Floats
    slowest_s: Floats
    joules: Floats
    dynamic_w: Floats

    def pair_with(self, other: PlacementBounds) -> PlacementBounds:
        """Return the bounds of every pair of a half and an ``other`` one, shape (n, m)."""
        # The mean energy is least with most images of the cheaper half; infinite energy stands for no images.
        cheaper = np.less_equal.outer(self.joules, other.joules)
        first = np.where(cheaper, self.most_images[:, None], self.least_images[:, None])
        second = np.where(cheaper, other.least_images, other.most_images)
        joules = first * np.nan_to_num(self.joules, posinf=0.0)[:, None] + second * np.nan_to_num(
            other.joules, posinf=0.0
        )
        return PlacementBounds(
            most_images=np.add.outer(self.most_images, other.most_images),
            least_images=np.add.outer(self.least_images, other.least_images),
            slowest_s=np.maximum.outer(self.slowest_s, other.slowest_s),
            joules=joules / np.maximum(first + second, 1e-300),
            dynamic_w=np.add.outer(self.dynamic_w, other.dynamic_w),
        )


def compute_half_bounds(columns: ContentionColumns, d: DemandArrays, other: DemandArrays) -> PlacementBounds:
    """Return the bounds of n halves beside any of the ``other`` halves."""
    fastest_s, slowest_s = _enclose_fixed_point(columns, d, other)
    used = d.count > 0
    return PlacementBounds(
        most_images=(d.count * d.batch / fastest_s).sum(axis=1),
        least_images=(d.count * d.batch / slowest_s).sum(axis=1),
        slowest_s=np.where(used, fastest_s, 0.0).max(axis=1),
        joules=np.where(used, d.joules / d.batch, np.inf).min(axis=1),
        dynamic_w=np.where(used, d.count * d.joules / slowest_s, 0.0).sum(axis=1),
    )


def compute_least_cost(goal: PlacementGoal, idle_w: float, found: PlacementBounds) -> Floats:
    """Return a lower bound of the goal's cost per placement; infinite if a limit cannot be met."""
    images, rate = np.maximum(found.most_images, 1e-300), goal.rate_hz
    if rate is None:
        latency, watts = found.slowest_s, idle_w + found.dynamic_w
        joules = idle_w / images + found.joules
    else:
        latency = found.slowest_s * (1.0 + np.maximum(1.0, found.least_images / rate))
        joules = idle_w / rate + found.joules
        watts = joules * rate
    if goal.objective == "rate":
        latency, watts = 2.0 * found.slowest_s, np.full_like(images, idle_w)
        if goal.max_power_w is not None:
            images = np.minimum(images, max(goal.max_power_w - idle_w, 0.0) / np.maximum(found.joules, 1e-300))
    cost = {"throughput": -images, "latency": latency, "energy": joules, "power": watts, "rate": -images}[
        goal.objective
    ]
    hopeless: NDArray[np.bool_] = found.most_images <= 0
    for limit, least in ((goal.max_power_w, watts), (goal.max_latency_s, latency)):
        if limit is not None:
            hopeless |= least > limit * (1 + BOUND_SLACK)
    if rate is not None:
        hopeless |= images < rate * (1 - BOUND_SLACK)
    return np.where(hopeless, np.inf, cost)


def _enclose_fixed_point(columns: ContentionColumns, d: DemandArrays, other: DemandArrays) -> tuple[Floats, Floats]:
    """Return the least and the most seconds of a batch beside any of the ``other`` halves."""
    one = np.ones_like(d.count)
    # The largest load of another half: instances on the GPU, those that fall back, and its share of the bandwidth.
    on_gpu = float((other.count @ columns.on_fallback).max(initial=0.0))
    falling = float((other.count * (other.fallback_s > 0)).sum(axis=1).max(initial=0.0))
    moving = float((other.count * other.share).sum(axis=1).max(initial=0.0))

    held = columns.hindrance * columns.on_fallback * falling
    others = np.array([held, np.full_like(held, moving), np.full_like(held, on_gpu + falling)])[:, None, :]

    def shares(engine: StretchFactors, memory: StretchFactors, fallback: StretchFactors) -> TimeShares:
        return compute_time_shares(columns, d, np.stack((engine[0], memory[1], fallback[2])))

    low = np.stack((one, one, one))
    # Worst case: an instance occupies its engine all the time, which delays others more than computing does.
    everything = TimeShares(one, 0.0 * one, d.share, np.where(d.fallback_s > 0, 1.0, 0.0))
    high = compute_stretch_factors(columns, d, everything) + others
    for _ in range(_NARROWING_STEPS):
        least, most = (
            replace(shares(a, b, b), moving=shares(b, a, b).moving, fallen=shares(b, b, a).fallen)
            for a, b in ((low, high), (high, low))
        )
        low = np.maximum(low, compute_stretch_factors(columns, d, least))
        high = np.minimum(high, compute_stretch_factors(columns, d, most) + others)
    return compute_batch_seconds(columns, d, low), compute_batch_seconds(columns, d, high)


DEFAULT_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
DEFAULT_MAX_INSTANCES = 2
"""Default number of instances per accelerator; each further one multiplies the search space."""
MAX_SPACE = 1e8
"""Number of placements beyond which planning would take minutes."""
COST_TIE = 1e-9
"""Relative difference below which costs are equal."""
_PAIRS, _CHUNK, _FIRST = 500_000, 4096, 64


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """The best placement, None if none keeps the limits, and how many were bounded and evaluated."""

    goal: PlacementGoal
    chosen: PlacementOutcome | None
    considered: int
    computed: int


@dataclass(frozen=True, slots=True)
class RelaxedLimit:
    """A limit that cannot hold beside the others: its reachable value, and the placement that reaches it."""

    option: str
    asked: float
    reachable: float
    outcome: PlacementOutcome


def plan_placement(
    board: PlacementBoard,
    network: NetworkCost,
    goal: PlacementGoal,
    batch_sizes: Sequence[int] = DEFAULT_BATCH_SIZES,
    most_instances: int = DEFAULT_MAX_INSTANCES,
) -> PlacementPlan:
    """Find the best placement; ties go to fewer instances, then to less power.

    Raises:
        BadInput: If there are more placements than ``MAX_SPACE``.
    """
    space = build_placement_space(board, network, batch_sizes, most_instances)
    if space.size > MAX_SPACE:
        raise BadInput("--batch-sizes", f"{space.size:.0e} placements", "fewer batch sizes, or --max-instances 1")
    columns = build_contention_columns(board, board.accelerator_names)
    search = _PlacementSearch(space, columns, goal)
    search.run()
    best = search.row
    chosen = None if best is None else evaluate_placement(board, network, space.build_placement(best), search.rate_hz)
    return PlacementPlan(goal, chosen, search.considered, search.computed)


def relax_limits(
    board: PlacementBoard,
    network: NetworkCost,
    goal: PlacementGoal,
    batch_sizes: Sequence[int] = DEFAULT_BATCH_SIZES,
    most_instances: int = DEFAULT_MAX_INSTANCES,
) -> tuple[RelaxedLimit, ...]:
    """Return, for each limit of an infeasible goal, the value that it would need with the others kept.

    Limits whose change alone is not enough are left out.
    """
    relaxed = (
        ("--rate-hz", goal.rate_hz, replace(goal, objective="rate", rate_hz=None)),
        ("--max-power-w", goal.max_power_w, replace(goal, objective="power", max_power_w=None)),
        ("--max-latency-s", goal.max_latency_s, replace(goal, objective="latency", max_latency_s=None)),
    )
    found = []
    for option, asked, without in relaxed:
        if asked is None:
            continue
        chosen = plan_placement(
            board, network=network, goal=without, batch_sizes=batch_sizes, most_instances=most_instances
        ).chosen
        if chosen is not None:
            rate_hz = chosen.images_per_s if chosen.rate_hz is None else chosen.rate_hz
            reached = {"--rate-hz": rate_hz, "--max-power-w": chosen.power_w}.get(option, chosen.latency_s)
            found.append(RelaxedLimit(option, asked, reached, chosen))
    return tuple(found)


@dataclass(slots=True)
class _PlacementSearch:
    """The best placement so far, by cost, then instances, then power, and the numbers bounded and evaluated."""

    space: PlacementSpace
    columns: ContentionColumns
    goal: PlacementGoal
    row: tuple[int, ...] | None = None
    key: tuple[float, float, float] = (np.inf, np.inf, np.inf)
    rate_hz: float | None = None
    considered: int = 0
    computed: int = 0

    def run(self) -> None:
        """Search every pair of halves."""
        halves = split_rows(self.space)
        demands = [self.space.select_demands(rows) for rows in halves]
        one, other = (compute_half_bounds(self.columns, demands[i], demands[1 - i]) for i in (0, 1))
        # Best bounds of a half first: their outcomes rule out most of the others. One half need not reach the rate.
        alone = compute_least_cost(replace(self.goal, rate_hz=None), self.space.board.idle_w, one)
        order = np.argsort(alone, kind="stable")
        lines = max(1, _PAIRS // len(halves[1]))
        for begin in range(0, len(order), lines):
            lot = order[begin : begin + lines]
            some = PlacementBounds(*(getattr(one, name)[lot] for name in PlacementBounds.__slots__))
            hope = compute_least_cost(self.goal, self.space.board.idle_w, some.pair_with(other))
            self.considered += hope.size
            self._evaluate_pairs(halves[0][lot], halves[1], hope)

    def _evaluate_pairs(self, one: OptionRows, other: OptionRows, hope: Floats) -> None:
        """Evaluate the pairs that may be better than the best so far, best bound first."""
        first, second = np.nonzero(np.isfinite(hope) & (hope <= self._cost_threshold()))
        hopes = hope[first, second]
        order = np.argsort(hopes, kind="stable")
        begin, size = 0, _FIRST
        while begin < len(order) and hopes[order[begin]] <= self._cost_threshold():
            some = order[begin : begin + size]
            some = some[hopes[some] <= self._cost_threshold()]
            self._evaluate_rows(one[first[some]] + other[second[some]])
            begin, size = begin + size, _CHUNK

    def _cost_threshold(self) -> float:
        """Return the largest bound that is worth an evaluation."""
        return self.key[0] + BOUND_SLACK * abs(self.key[0]) if np.isfinite(self.key[0]) else np.inf

    def _evaluate_rows(self, rows: OptionRows) -> None:
        demands = self.space.select_demands(rows)
        judged = score_placements(self.goal, self.space.board.idle_w, evaluate_at_full_load(self.columns, demands))
        self.computed += len(rows)
        count = demands.count.sum(axis=1)
        least = judged.cost.min(initial=np.inf)
        if not np.isfinite(least):
            return
        for i in np.flatnonzero(judged.cost <= least + COST_TIE * abs(least)):
            key = (float(judged.cost[i]), float(count[i]), float(judged.power_w[i]))
            if _is_better(key, self.key):
                self.key, self.row = key, tuple(rows[i].tolist())
                self.rate_hz = float(judged.rate_hz[i]) if self.goal.objective == "rate" else self.goal.rate_hz


def _is_better(one: tuple[float, float, float], other: tuple[float, float, float]) -> bool:
    """Return whether a key is better; costs that differ only by rounding are equal."""
    if not np.isfinite(other[0]) or abs(one[0] - other[0]) > COST_TIE * abs(other[0]):
        return one[0] < other[0]
    return one[1:] < other[1:]


def split_rows(space: PlacementSpace) -> list[OptionRows]:
    """Return the rows of the engine of the board's first accelerator and those of all others; two add up to one."""
    inside = [place.engine == space.board.accelerators[0].engine for place in space.board.accelerators]
    return [_enumerate_rows(space, [is_in == here for is_in in inside]) for here in (True, False)]


def _enumerate_rows(space: PlacementSpace, mine: Sequence[bool]) -> OptionRows:
    """Return all choices for some accelerators, 0 for the others; of two choices that swap twins, one is kept."""
    shape = tuple(len(some) if own else 1 for some, own in zip(space.options, mine, strict=True))
    rows: OptionRows = np.stack(np.unravel_index(np.arange(int(np.prod(shape))), shape), axis=1)
    for first, second in find_twins(space.board):
        if mine[first] and mine[second]:
            rows = rows[rows[:, first] >= rows[:, second]]
    return rows
