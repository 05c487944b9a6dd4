"""The best placement for a goal, exactly: every placement is bounded, the promising ones are computed, best hope first.

A placement is left out only when its bound shows that it breaks a limit, or cannot be better than one already found;
so the answer is that of trying everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedge.errors import BadInput
from fedge.layers.network import NetworkCost
from fedge.placement.accelerators import Board
from fedge.placement.bounds import SLACK, HalfBounds, at_best, half_bounds, outside_of, paired
from fedge.placement.contention import Columns, columns_of
from fedge.placement.goals import Goal, judge
from fedge.placement.options import Rows, Space, space_of, twins
from fedge.placement.outcome import Outcome, outcome, outcomes
from fedge.types import Floats

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
MOST_INSTANCES = 2
"""Per accelerator, where nothing else is asked for. Chosen by us."""
LARGEST_SPACE = 1e8
"""Placements beyond which planning would take minutes. Chosen by us."""
TIE = 1e-9
"""Relative: costs that differ by less are equal."""
_PAIRS, _CHUNK, _FIRST = 500_000, 4096, 64


@dataclass(frozen=True, slots=True)
class Plan:
    """The best placement and how many were looked at; ``chosen`` is None when none holds the limits."""

    goal: Goal
    chosen: Outcome | None
    considered: int
    computed: int


@dataclass(frozen=True, slots=True)
class Nearest:
    """A limit that cannot hold beside the others: what it would have to be, and the placement that reaches it."""

    option: str
    asked: float
    reachable: float
    outcome: Outcome


def plan(
    board: Board,
    network: NetworkCost,
    goal: Goal,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    most_instances: int = MOST_INSTANCES,
) -> Plan:
    """The best placement. Of equals, that with fewer instances, then the less watts.

    Raises ``BadInput`` when there are more placements than ``LARGEST_SPACE``.
    """
    space = space_of(board, network, batch_sizes, most_instances)
    if space.size > LARGEST_SPACE:
        raise BadInput("--batches", f"{space.size:.0e} placements", "fewer batch sizes, or --instances 1")
    columns = columns_of(board, board.names)
    search = _Search(space, columns, goal)
    search.run()
    best = search.row
    chosen = None if best is None else outcome(board, network, space.placement(best), search.rate_hz)
    return Plan(goal, chosen, search.considered, search.computed)


def nearest(
    board: Board,
    network: NetworkCost,
    goal: Goal,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    most_instances: int = MOST_INSTANCES,
) -> tuple[Nearest, ...]:
    """For each limit of a goal that nothing holds: what it would have to be, with the others kept; those that help."""
    relaxed = (
        ("--rate", goal.rate_hz, replace(goal, objective="rate", rate_hz=None)),
        ("--max-power-w", goal.max_power_w, replace(goal, objective="power", max_power_w=None)),
        ("--max-latency-s", goal.max_latency_s, replace(goal, objective="latency", max_latency_s=None)),
    )
    found = []
    for option, asked, without in relaxed:
        chosen = None if asked is None else plan(board, network, without, batch_sizes, most_instances).chosen
        if asked is not None and chosen is not None:
            rate_hz = chosen.images_per_s if chosen.rate_hz is None else chosen.rate_hz
            reached = {"--rate": rate_hz, "--max-power-w": chosen.power_w}.get(option, chosen.latency_s)
            found.append(Nearest(option, asked, reached, chosen))
    return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class _Half:
    """The options of one half of the board, with nothing in the other, and their bounds."""

    rows: Rows
    bounds: HalfBounds


@dataclass(slots=True)
class _Search:
    """The best so far, and how many were looked at. Cost, then instances, then watts decide."""

    space: Space
    columns: Columns
    goal: Goal
    row: tuple[int, ...] | None = None
    key: tuple[float, float, float] = (np.inf, np.inf, np.inf)
    rate_hz: float | None = None
    considered: int = 0
    computed: int = 0

    def run(self) -> None:
        """Look at every pair of halves."""
        one, other = _halves(self.space, self.columns)
        # Those that promise most first: what they reach rules most of the others out.
        order = np.argsort(_alone(self.goal, self.space.board.idle_w, one.bounds), kind="stable")
        lines = max(1, _PAIRS // len(other.rows))
        for begin in range(0, len(order), lines):
            some = order[begin : begin + lines]
            self._look(_Half(one.rows[some], one.bounds.some(some)), other)

    def _look(self, one: _Half, other: _Half) -> None:
        """Compute those pairs that may be better than the best so far, best hope first."""
        hope = at_best(self.goal, self.space.board.idle_w, paired(one.bounds, other.bounds))
        self.considered += hope.size
        first, second = np.nonzero(np.isfinite(hope) & (hope <= self._worth()))
        order = np.argsort(hope[first, second], kind="stable")
        first, second = first[order], second[order]
        hopes = hope[first, second]
        begin, size = 0, _FIRST
        while begin < len(hopes) and hopes[begin] <= self._worth():
            end = begin + size
            some = hopes[begin:end] <= self._worth()
            self._compute(one.rows[first[begin:end][some]] + other.rows[second[begin:end][some]])
            begin, size = end, _CHUNK

    def _worth(self) -> float:
        """The largest hope that is worth a computation."""
        return self.key[0] + SLACK * abs(self.key[0]) if np.isfinite(self.key[0]) else np.inf

    def _compute(self, rows: Rows) -> None:
        demands = self.space.demands(rows)
        judged = judge(self.goal, self.space.board.idle_w, outcomes(self.columns, demands))
        self.computed += len(rows)
        count = demands.count.sum(axis=1)
        least = judged.cost.min(initial=np.inf)
        if not np.isfinite(least):
            return
        for i in np.flatnonzero(judged.cost <= least + TIE * abs(least)):
            key = (float(judged.cost[i]), float(count[i]), float(judged.power_w[i]))
            if _before(key, self.key):
                self.key, self.row = key, tuple(rows[i].tolist())
                self.rate_hz = float(judged.rate_hz[i]) if self.goal.objective == "rate" else self.goal.rate_hz


def _alone(goal: Goal, idle_w: float, half: HalfBounds) -> Floats:
    """What a half can hope for without the other; what it cannot do alone comes last."""
    return at_best(replace(goal, rate_hz=None), idle_w, half.beside_any)


def _before(one: tuple[float, float, float], other: tuple[float, float, float]) -> bool:
    """Whether a key is better; costs that differ by rounding alone are equal."""
    if not np.isfinite(other[0]) or abs(one[0] - other[0]) > TIE * abs(other[0]):
        return one[0] < other[0]
    return one[1:] < other[1:]


def _halves(space: Space, columns: Columns) -> tuple[_Half, _Half]:
    """The engine of the board's first accelerator, and all others; adding two rows puts a placement together."""
    engine = space.board.accelerators[0].engine
    inside = [place.engine == engine for place in space.board.accelerators]
    rows = [_rows(space, [is_in == here for is_in in inside]) for here in (True, False)]
    demands = [space.demands(some) for some in rows]
    outsides = [outside_of(columns, some) for some in demands]
    one = _Half(rows[0], half_bounds(columns, demands[0], outsides[1]))
    return one, _Half(rows[1], half_bounds(columns, demands[1], outsides[0]))


def _rows(space: Space, mine: Sequence[bool]) -> Rows:
    """All choices for some accelerators, 0 for the others; of two that swap twins, the one whose first has more."""
    shape = tuple(len(some) if own else 1 for some, own in zip(space.options, mine, strict=True))
    rows: Rows = np.stack(np.unravel_index(np.arange(int(np.prod(shape))), shape), axis=1)
    for first, second in twins(space.board):
        if mine[first] and mine[second]:
            rows = rows[rows[:, first] >= rows[:, second]]
    return rows
