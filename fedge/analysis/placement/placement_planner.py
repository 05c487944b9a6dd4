"""Bounds on the figures of placements, with which a search can skip them; arrays over many placements.

The shares of ``placement_contention`` are monotone in the stretch factors: u and v rise with K and fall with S and F,
m rises with S and falls with K and F, w rises with F and falls with K and S. So intervals that hold every stretch
factor give intervals of the shares, and these give narrower ones of the factors: the fixed point lies inside.
A board is split into two halves, the engine of its first accelerator and all others. They meet only in memory and in
fallback operators. So each half is bounded beside any other half that draws at least a given share of the bandwidth,
for a ladder of shares; a pair is bounded by the sum of the bounds on the highest rung that the other half surely
reaches.

Find the best placement for a goal exactly: every placement is bounded, promising ones are evaluated in full.

A placement is skipped only if its bound shows that it breaks a limit, or cannot be better than one already found; so
the result equals that of trying everything.
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
BANDWIDTH_LADDER = (0.0, 0.03, 0.06, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5)
"""Shares of the bandwidth, averaged over time and summed over instances: a default grid.

A finer ladder gives tighter bounds and costs one narrowing per rung.
"""


@dataclass(frozen=True, slots=True)
class OtherHalfLoad:
    """The largest load of the other half: shares of the bandwidth, instances on the GPU, instances that fall back.

    ``bandwidth_least`` is its smallest share of the bandwidth.
    """

    bandwidth: float = 0.0
    on_gpu: float = 0.0
    falling: float = 0.0
    bandwidth_least: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class PlacementBounds:
    """Bounds of n placements, each of shape (n,).

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


@dataclass(frozen=True, slots=True, eq=False)
class HalfBounds:
    """The bounds of n halves beside any other, and those that depend on the other's bandwidth, shape (n, rungs).

    ``rung`` (n,) is the highest that a half surely reaches itself.
    """

    unconditional: PlacementBounds
    most_images: Floats
    slowest_s: Floats
    rung: NDArray[np.intp]

    def select(self, which: NDArray[np.intp]) -> HalfBounds:
        """Return the bounds of some halves."""
        any_other = PlacementBounds(*(getattr(self.unconditional, name)[which] for name in _BOUND_FIELDS))
        return HalfBounds(any_other, self.most_images[which], self.slowest_s[which], self.rung[which])


_BOUND_FIELDS = ("most_images", "least_images", "slowest_s", "joules", "dynamic_w")


def compute_other_half_load(columns: ContentionColumns, d: DemandArrays) -> OtherHalfLoad:
    """Return the largest load that any of these placements adds to another half."""
    falling = (d.count * (d.fallback_s > 0)).sum(axis=1)
    return OtherHalfLoad(
        bandwidth=float((d.count * d.share).sum(axis=1).max(initial=0.0)),
        on_gpu=float((d.count @ columns.on_fallback).max(initial=0.0)),
        falling=float(falling.max(initial=0.0)),
    )


def compute_half_bounds(columns: ContentionColumns, d: DemandArrays, outside: OtherHalfLoad) -> HalfBounds:
    """Return the bounds of n halves."""
    fastest_s, slowest_s, moving = _enclose_fixed_point(columns, d, outside)
    used = d.count > 0
    most, least = d.count * d.batch / fastest_s, d.count * d.batch / slowest_s
    per_image = np.where(used, d.joules / d.batch, np.inf)
    any_other = PlacementBounds(
        most_images=most.sum(axis=1),
        least_images=least.sum(axis=1),
        slowest_s=np.where(used, fastest_s, 0.0).max(axis=1),
        joules=_compute_least_mean_j(per_image, least, most),
        dynamic_w=np.where(used, d.count * d.joules / slowest_s, 0.0).sum(axis=1),
    )
    rungs = [_enclose_fixed_point(columns, d, replace(outside, bandwidth_least=share))[0] for share in BANDWIDTH_LADDER]
    drawn = (d.count * moving).sum(axis=1)
    return HalfBounds(
        any_other,
        np.stack([(d.count * d.batch / fast_s).sum(axis=1) for fast_s in rungs], axis=1),
        np.stack([np.where(used, fast_s, 0.0).max(axis=1) for fast_s in rungs], axis=1),
        np.searchsorted(np.array(BANDWIDTH_LADDER), drawn, side="right") - 1,
    )


def combine_half_bounds(one: HalfBounds, other: HalfBounds) -> PlacementBounds:
    """Return the bounds of every pair of halves, shape (n, m)."""
    a, b = one.unconditional, other.unconditional
    cheaper = a.joules[:, None] <= b.joules[None, :]
    first = np.where(cheaper, a.most_images[:, None], a.least_images[:, None])
    second = np.where(cheaper, b.least_images[None, :], b.most_images[None, :])
    weighed = _multiply_finite(a.joules[:, None], first) + _multiply_finite(b.joules[None, :], second)
    return PlacementBounds(
        most_images=one.most_images[:, other.rung] + other.most_images[:, one.rung].T,
        least_images=a.least_images[:, None] + b.least_images[None, :],
        slowest_s=np.maximum(one.slowest_s[:, other.rung], other.slowest_s[:, one.rung].T),
        joules=weighed / np.maximum(first + second, 1e-300),
        dynamic_w=a.dynamic_w[:, None] + b.dynamic_w[None, :],
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


def _enclose_fixed_point(
    columns: ContentionColumns, d: DemandArrays, outside: OtherHalfLoad
) -> tuple[Floats, Floats, Floats]:
    """Return the least and the most seconds of a batch, and the least share of the bandwidth."""
    one = np.ones_like(d.count)
    low = StretchFactors(one, one + outside.bandwidth_least, one)
    # Worst case: an instance occupies its engine all the time, which delays others more than computing does.
    everything = TimeShares(one, 0.0 * one, d.share, np.where(d.fallback_s > 0, 1.0, 0.0))
    high = _add_other_half(compute_stretch_factors(columns, d, everything), columns, outside)
    for _ in range(_NARROWING_STEPS):
        own_low = compute_time_shares(columns, d, StretchFactors(low.engine, high.memory, high.fallback))
        own_high = compute_time_shares(columns, d, StretchFactors(high.engine, low.memory, low.fallback))
        moving_low = compute_time_shares(columns, d, StretchFactors(high.engine, low.memory, high.fallback)).moving
        moving_high = compute_time_shares(columns, d, StretchFactors(low.engine, high.memory, low.fallback)).moving
        fallen_low = compute_time_shares(columns, d, StretchFactors(high.engine, high.memory, low.fallback)).fallen
        fallen_high = compute_time_shares(columns, d, StretchFactors(low.engine, low.memory, high.fallback)).fallen
        below = compute_stretch_factors(columns, d, TimeShares(own_low.held, own_low.computing, moving_low, fallen_low))
        low = _combine_elementwise(np.maximum, low, replace(below, memory=below.memory + outside.bandwidth_least))
        above = compute_stretch_factors(
            columns, d, TimeShares(own_high.held, own_high.computing, moving_high, fallen_high)
        )
        high = _combine_elementwise(np.minimum, high, _add_other_half(above, columns, outside))
    return compute_batch_seconds(columns, d, low), compute_batch_seconds(columns, d, high), moving_low


def _add_other_half(found: StretchFactors, columns: ContentionColumns, outside: OtherHalfLoad) -> StretchFactors:
    """Add the largest load of the other half to the stretch factors."""
    return StretchFactors(
        found.engine + columns.hindrance * columns.on_fallback * outside.falling,
        found.memory + outside.bandwidth,
        found.fallback + outside.on_gpu + outside.falling,
    )


def _combine_elementwise(function: np.ufunc, a: StretchFactors, b: StretchFactors) -> StretchFactors:
    return StretchFactors(function(a.engine, b.engine), function(a.memory, b.memory), function(a.fallback, b.fallback))


def _multiply_finite(joules: Floats, images: Floats) -> Floats:
    """Return the product, 0 where there are no images, whose joules are infinite."""
    return np.where(images > 0, np.where(np.isfinite(joules), joules, 0.0) * images, 0.0)


def _compute_least_mean_j(joules: Floats, least: Floats, most: Floats) -> Floats:
    """Return the least mean energy per image if each column runs between least and most: most for the cheapest."""
    order = np.argsort(joules, axis=1)
    cheap, low, high = (np.take_along_axis(array, order, axis=1) for array in (joules, least, most))
    best = np.full(len(joules), np.inf)
    for k in range(joules.shape[1] + 1):
        images = np.concatenate([high[:, :k], low[:, k:]], axis=1)
        total = images.sum(axis=1)
        mean = _multiply_finite(cheap, images).sum(axis=1) / np.maximum(total, 1e-300)
        best = np.where(total > 0, np.minimum(best, mean), best)
    return best


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


@dataclass(frozen=True, slots=True, eq=False)
class _BoardHalf:
    """The options of one half of the board, with nothing in the other, and their bounds."""

    rows: OptionRows
    bounds: HalfBounds


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
        one, other = _split_board(self.space, self.columns)
        # Best bounds first: their outcomes rule most of the others out.
        order = np.argsort(_compute_half_cost(self.goal, self.space.board.idle_w, one.bounds), kind="stable")
        lines = max(1, _PAIRS // len(other.rows))
        for begin in range(0, len(order), lines):
            some = order[begin : begin + lines]
            self._search_pairs(_BoardHalf(one.rows[some], one.bounds.select(some)), other)

    def _search_pairs(self, one: _BoardHalf, other: _BoardHalf) -> None:
        """Evaluate the pairs that may be better than the best so far, best bound first."""
        hope = compute_least_cost(self.goal, self.space.board.idle_w, combine_half_bounds(one.bounds, other.bounds))
        self.considered += hope.size
        first, second = np.nonzero(np.isfinite(hope) & (hope <= self._cost_threshold()))
        order = np.argsort(hope[first, second], kind="stable")
        first, second = first[order], second[order]
        hopes = hope[first, second]
        begin, size = 0, _FIRST
        while begin < len(hopes) and hopes[begin] <= self._cost_threshold():
            end = begin + size
            some = hopes[begin:end] <= self._cost_threshold()
            self._compute_rows(one.rows[first[begin:end][some]] + other.rows[second[begin:end][some]])
            begin, size = end, _CHUNK

    def _cost_threshold(self) -> float:
        """Return the largest bound that is worth an evaluation."""
        return self.key[0] + BOUND_SLACK * abs(self.key[0]) if np.isfinite(self.key[0]) else np.inf

    def _compute_rows(self, rows: OptionRows) -> None:
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


def _compute_half_cost(goal: PlacementGoal, idle_w: float, half: HalfBounds) -> Floats:
    """Return a half's bound without the other half; halves that are infeasible alone come last."""
    return compute_least_cost(replace(goal, rate_hz=None), idle_w, half.unconditional)


def _is_better(one: tuple[float, float, float], other: tuple[float, float, float]) -> bool:
    """Return whether a key is better; costs that differ only by rounding are equal."""
    if not np.isfinite(other[0]) or abs(one[0] - other[0]) > COST_TIE * abs(other[0]):
        return one[0] < other[0]
    return one[1:] < other[1:]


def _split_board(space: PlacementSpace, columns: ContentionColumns) -> tuple[_BoardHalf, _BoardHalf]:
    """Split into the engine of the board's first accelerator and all others; two rows add up to a placement."""
    engine = space.board.accelerators[0].engine
    inside = [place.engine == engine for place in space.board.accelerators]
    rows = [_enumerate_rows(space, [is_in == here for is_in in inside]) for here in (True, False)]
    demands = [space.select_demands(some) for some in rows]
    outsides = [compute_other_half_load(columns, some) for some in demands]
    one = _BoardHalf(rows[0], compute_half_bounds(columns, demands[0], outsides[1]))
    return one, _BoardHalf(rows[1], compute_half_bounds(columns, demands[1], outsides[0]))


def _enumerate_rows(space: PlacementSpace, mine: Sequence[bool]) -> OptionRows:
    """Return all choices for some accelerators, 0 for the others; of two choices that swap twins, one is kept."""
    shape = tuple(len(some) if own else 1 for some, own in zip(space.options, mine, strict=True))
    rows: OptionRows = np.stack(np.unravel_index(np.arange(int(np.prod(shape))), shape), axis=1)
    for first, second in find_twins(space.board):
        if mine[first] and mine[second]:
            rows = rows[rows[:, first] >= rows[:, second]]
    return rows
