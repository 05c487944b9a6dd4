"""Exact search over a cost that grows with the deadline and steps where points come within reach, by a sorted sweep.

Symbols: D is the deadline, R the earliest possible one; the fleet's cost is C(D) = start + slope D + sum of the changes
at or before D, for D >= R. A board's first point is within reach from R on; a change is the saving of a later point.
Only changes can make a later D better where slope >= 0, so the best D is R or the place of a change. With many points
one pass puts them into bins by place; the bins' sums give bounds on C within each bin, and only the points of bins that
can hold the answer are sorted: O(m) and a sort of few, instead of a sort of all m.

The weighted deadline: with idle power p_i and a_i(D) the least energy above idling of board i's points within reach at
D, a round until D costs E(D) = sum_i [p_i D + a_i(D)]. D_maxn and E_maxn are length and energy of the expected round at
MAXN.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.decisions.limits import LIMIT_ROUNDING
from fedge.decisions.planning.front_columns import FrontColumns, Ints, running_minimum
from fedge.types import Floats

BINS = 65_536
SORTED_AT_ONCE = 200_000
"""Number of points up to which sorting them all is quicker than binning them."""
EQUAL_TOLERANCE = 1e-12
"""Relative difference below which two costs count as equal, so that the order of additions decides nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class CostSteps:
    """The step function C(D) of the module's head.

    Attributes:
        floor_s: The earliest deadline R in seconds.
        start: Sum of the costs of the points within reach at R.
        slope: Cost per second of deadline.
        at_s: Deadlines of the changes, all later than R, in no order.
        change: Change of the cost at each of ``at_s``.
    """

    floor_s: float
    start: float
    slope: float
    at_s: Floats
    change: Floats

    def evaluate(self, deadline_s: float) -> float:
        """Return C at a deadline of at least ``floor_s``."""
        changed = self.change[self.at_s <= deadline_s].sum() if len(self.at_s) else 0.0
        return float(self.start + self.slope * deadline_s + changed)

    def add_prices(self, price: float, time_price: float = 0.0) -> CostSteps:
        """Return ``price`` C(D) + ``time_price`` D."""
        return CostSteps(
            self.floor_s,
            start=price * self.start,
            slope=price * self.slope + time_price,
            at_s=self.at_s,
            change=price * self.change,
        )


@dataclass(frozen=True, slots=True, eq=False)
class FastestPoints:
    """Each board's fastest point (its index) and the time from which it is within reach in seconds, shape (boards,)."""

    points: Ints
    from_s: Floats


def find_fastest_points(columns: FrontColumns) -> FastestPoints:
    """Return each board's point of earliest expected end, its fallback if no point ends in time with the margin.

    Where a point with the margin ends even earlier (a confidence below one half), that point is returned.
    """
    opening, counts = columns.offsets[:-1], columns.counts
    if len(columns) == 0:
        return FastestPoints(opening, np.zeros(0))
    soonest_s = np.minimum.reduceat(columns.ends_s, opening)
    found = np.flatnonzero(columns.ends_s == np.repeat(soonest_s, counts))
    points = found[np.searchsorted(found, opening)]
    held = columns.safe_ends_s[opening] <= soonest_s
    return FastestPoints(np.where(held, opening, points), np.where(held, columns.safe_ends_s[opening], soonest_s))


def build_cost_steps(
    columns: FrontColumns, cost: Floats, slope: float, cap_s: float = np.inf, begin: FastestPoints | None = None
) -> CostSteps:
    """Build the fleet's least sum of ``cost`` over the points within reach, as a step function of the deadline.

    A point is within reach from its end with the margin; before a board's first, its fastest point counts. O(m).

    Args:
        columns: The boards' fronts.
        cost: Cost of each point, shape (points,).
        slope: Cost per second of deadline.
        cap_s: Latest deadline that matters, in seconds.
        begin: The boards' fastest points, if already computed.
    """
    begin = find_fastest_points(columns) if begin is None else begin
    floor_s = float(begin.from_s.max(initial=0.0))
    lowest, opening = running_minimum(cost, columns.offsets), columns.offsets[:-1]
    change = np.empty_like(lowest)
    change[1:] = np.diff(lowest)
    change[opening] = lowest[opening] - cost[begin.points]
    reached = columns.safe_ends_s <= floor_s
    start = float(cost[begin.points].sum() + change[reached].sum())
    later = np.flatnonzero(~reached & (change != 0.0) & (columns.safe_ends_s <= cap_s))
    return CostSteps(floor_s, start=start, slope=slope, at_s=columns.safe_ends_s[later], change=change[later])


def find_least(steps: CostSteps) -> tuple[float, float]:
    """Return the deadline of least cost in seconds, the shortest of equally good ones, and that cost."""
    at_first = steps.start + steps.slope * steps.floor_s
    at_s, cost = _list_deadlines(steps, at_first, least_only=True)
    best = min(at_first, float(cost.min(initial=np.inf)))
    enough = best + EQUAL_TOLERANCE * abs(best)
    if at_first <= enough:
        return steps.floor_s, at_first
    first = int(np.argmax(cost <= enough))
    return float(at_s[first]), float(cost[first])


def find_first_within(steps: CostSteps, limit: float) -> float | None:
    """Return the shortest deadline in seconds whose cost keeps ``limit``, or None if there is none."""
    limit += LIMIT_ROUNDING * abs(limit)
    if steps.start + steps.slope * steps.floor_s <= limit:
        return steps.floor_s
    at_s, cost = _list_deadlines(steps, limit, least_only=False)
    kept = cost <= limit
    return float(at_s[np.argmax(kept)]) if kept.any() else None


def _list_deadlines(steps: CostSteps, limit: float, *, least_only: bool) -> tuple[Floats, Floats]:
    """Return the deadlines that can be the answer, ascending, and their exact costs."""
    if len(steps.at_s) <= SORTED_AT_ONCE:
        return _sweep_all(steps.at_s, steps.change, steps.start, steps.slope)
    bins, before, keep = _select_bins(steps, limit, least_only=least_only)
    rows = np.flatnonzero(keep[bins])
    order = rows[np.argsort(steps.at_s[rows], kind="stable")]
    at_s, change, place = steps.at_s[order], steps.change[order], bins[order]
    total = np.cumsum(change)
    opening = np.searchsorted(place, place)  # the first point of each point's bin
    cost = before[place] + (total - (total - change)[opening]) + steps.slope * at_s
    return _keep_last_of_equals(at_s, cost)


def _select_bins(
    steps: CostSteps, limit: float, *, least_only: bool
) -> tuple[NDArray[np.int32], Floats, NDArray[np.bool_]]:
    """Return each point's bin, the cost without its slope before each bin, and the bins that can hold the answer.

    Within a bin C is at least its value before it, at the bin's left edge, with all of the bin's falls at once.
    """
    width = (float(steps.at_s.max()) - steps.floor_s) / BINS
    bins = np.minimum((steps.at_s - steps.floor_s) / width, BINS - 1).astype(np.int32)
    total = np.bincount(bins, steps.change, BINS)
    rises = np.bincount(bins, np.maximum(steps.change, 0.0), BINS) if (steps.change > 0).any() else 0.0
    left_s = steps.floor_s + width * np.arange(BINS)
    after = steps.start + np.cumsum(total)
    before = np.concatenate([[steps.start], after[:-1]])
    lowest = before + total - rises + steps.slope * left_s
    reached = after + steps.slope * (left_s + width)
    doubt = 1e-9 * (abs(steps.start) + abs(steps.slope) * (left_s[-1] + width))
    if least_only:
        return bins, before, lowest <= min(limit, float(reached.min())) + doubt
    sure = np.flatnonzero(reached <= limit - doubt)
    last = sure[0] + 1 if len(sure) else BINS - 1
    return bins, before, (lowest <= limit + doubt) & (np.arange(BINS) <= last)


def _sweep_all(at_s: Floats, change: Floats, start: float, slope: float) -> tuple[Floats, Floats]:
    order = np.argsort(at_s, kind="stable")
    ends_s = at_s[order]
    return _keep_last_of_equals(ends_s, slope * ends_s + start + np.cumsum(change[order]))


def _keep_last_of_equals(at_s: Floats, cost: Floats) -> tuple[Floats, Floats]:
    """Keep the cost after the last of several changes at the same deadline."""
    keep = np.append(at_s[1:] != at_s[:-1], np.True_) if len(at_s) else np.zeros(0, dtype=np.bool_)
    return at_s[keep], cost[keep]


def choose_points(columns: FrontColumns, cost: Floats, deadline_s: float, otherwise: Ints | None = None) -> Ints:
    """Return each board's point at ``deadline_s``: the first of least finite ``cost`` within reach.

    Args:
        columns: The boards' fronts.
        cost: Cost of each point, shape (points,).
        deadline_s: Deadline in seconds.
        otherwise: Fallback point of each board without one, shape (boards,); its fastest point by default.

    Returns:
        Indices of points, shape (boards,).
    """
    opening = columns.offsets[:-1]
    offered = np.where(columns.safe_ends_s <= deadline_s * (1.0 + LIMIT_ROUNDING), cost, np.inf)
    lowest = np.minimum.reduceat(offered, opening)
    found = np.flatnonzero(offered == np.repeat(lowest, columns.counts))
    first = found[np.searchsorted(found, opening)]
    fallback = find_fastest_points(columns).points if otherwise is None else otherwise
    points: Ints = np.where(np.isfinite(lowest), first, fallback)
    return points


TINY_J = 1e-12


@dataclass(frozen=True, slots=True)
class DeadlinePlan:
    """A deadline in seconds, the energy of the round until then in joules, and whether every limit is kept."""

    deadline_s: float
    energy_j: float
    feasible: bool


def find_weighted_deadline(
    columns: FrontColumns, time_weight: float, cap_s: float = np.inf, resting_w: float = 0.0
) -> DeadlinePlan:
    """Return the D of least w D / D_maxn + (1 - w) E(D) / E_maxn, the shorter of equally good ones.

    It is never below the time that the slowest board's fastest point is expected to need, because a shorter deadline
    would not shorten the round. Exact: between two points' ends E only grows, by idling. O(m), and a sort of few
    points.

    Args:
        columns: The boards' fronts.
        time_weight: The weight w, 0 to 1; 0 gives least energy.
        cap_s: Latest deadline, in seconds. If the fastest points end later, the plan is not feasible.
        resting_w: Idle power of boards that take no part, in watts; E(D) includes ``resting_w`` D.
    """
    steps = build_cost_steps(columns, columns.above_idle_j, float(columns.idle_w.sum()) + resting_w, cap_s)
    price = (1.0 - time_weight) / max(columns.maxn_energy_j, TINY_J)
    deadline_s, _ = find_least(steps.add_prices(price, time_weight / columns.maxn_round_s))
    kept = steps.floor_s <= cap_s * (1.0 + LIMIT_ROUNDING)
    return DeadlinePlan(deadline_s, steps.evaluate(deadline_s), kept)


def is_deadline_safe(columns: FrontColumns, deadline_s: float) -> bool:
    """Return whether every board has a point that ends by ``deadline_s`` with the margin."""
    return bool((columns.safe_ends_s[columns.offsets[:-1]] <= deadline_s * (1.0 + LIMIT_ROUNDING)).all())
