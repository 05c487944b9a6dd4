"""Find the best placement for a goal exactly: every placement is bounded, promising ones are evaluated in full.

A placement is skipped only if its bound shows that it breaks a limit, or cannot be better than one already found; so
the result equals that of trying everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedge.analysis.placement.accelerators import PlacementBoard
from fedge.analysis.placement.placement_bounds import (
    BOUND_SLACK,
    HalfBounds,
    combine_half_bounds,
    compute_half_bounds,
    compute_least_cost,
    compute_other_half_load,
)
from fedge.analysis.placement.placement_contention import ContentionColumns, build_contention_columns
from fedge.analysis.placement.placement_outcome import (
    PlacementGoal,
    PlacementOutcome,
    evaluate_at_full_load,
    evaluate_placement,
    score_placements,
)
from fedge.analysis.placement.placement_space import OptionRows, PlacementSpace, build_placement_space, find_twins
from fedge.costs.layers.network_cost import NetworkCost
from fedge.errors import BadInput
from fedge.types import Floats

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
