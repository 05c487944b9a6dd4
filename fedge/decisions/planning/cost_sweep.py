"""The sorted sweep: a cost that grows with the deadline and steps where modes come within reach, searched exactly.

Symbols: D is the deadline, R the earliest possible one; the fleet's cost is C(D) = start + slope D + sum of the changes
at or before D, for D >= R. A board's first mode is in reach from R on; a change is what a later one saves.

Only changes can make a later D better where slope >= 0, so the best D is R or the place of a change. With many points
one pass puts them into bins by place; from the bins' sums follow bounds on C within each, and only the points of bins
that can hold the answer are sorted: O(m) and a sort of few, instead of a sort of all m.
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
"""Up to so many points, sorting them all is quicker than binning them."""
EQUAL_TOLERANCE = 1e-12
"""Costs closer than this share are equal, so that the order of additions decides nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class CostSteps:
    """C(D): ``change[k]`` at ``at_s[k]`` > ``floor_s``, in no order; ``start`` holds what is within reach before."""

    floor_s: float
    start: float
    slope: float
    at_s: Floats
    change: Floats

    def evaluate(self, deadline_s: float) -> float:
        """C at a deadline of at least ``floor_s``."""
        changed = self.change[self.at_s <= deadline_s].sum() if len(self.at_s) else 0.0
        return float(self.start + self.slope * deadline_s + changed)

    def add_prices(self, price: float, time_price: float = 0.0) -> CostSteps:
        """``price`` C(D) + ``time_price`` D."""
        return CostSteps(
            self.floor_s,
            start=price * self.start,
            slope=price * self.slope + time_price,
            at_s=self.at_s,
            change=price * self.change,
        )


@dataclass(frozen=True, slots=True, eq=False)
class FastestPoints:
    """Per board, shape (n,): the index of its fastest point, and from when on that can be counted on."""

    points: Ints
    from_s: Floats


def find_fastest_points(columns: FrontColumns) -> FastestPoints:
    """Each board's point of least expected end, and that end: what it does when no point holds with the margin.

    Where a point holds earlier with the margin (a confidence below one half), that point.
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
    """The fleet's least sum of ``cost`` (m,) over the points within reach, as it steps with D up to ``cap_s``.

    A point is within reach at its end with the margin; before the first one is, a board counts with its fastest point.
    O(m).
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
    """The deadline of least cost, the shortest of equally good ones, and that cost."""
    at_first = steps.start + steps.slope * steps.floor_s
    at_s, cost = _list_deadlines(steps, at_first, least_only=True)
    best = min(at_first, float(cost.min(initial=np.inf)))
    enough = best + EQUAL_TOLERANCE * abs(best)
    if at_first <= enough:
        return steps.floor_s, at_first
    first = int(np.argmax(cost <= enough))
    return float(at_s[first]), float(cost[first])


def find_first_within(steps: CostSteps, limit: float) -> float | None:
    """The shortest deadline whose cost keeps ``limit``; None when none does."""
    limit += LIMIT_ROUNDING * abs(limit)
    if steps.start + steps.slope * steps.floor_s <= limit:
        return steps.floor_s
    at_s, cost = _list_deadlines(steps, limit, least_only=False)
    kept = cost <= limit
    return float(at_s[np.argmax(kept)]) if kept.any() else None


def _list_deadlines(steps: CostSteps, limit: float, *, least_only: bool) -> tuple[Floats, Floats]:
    """Deadlines that can be the answer, ascending, and their exact costs."""
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
    """Each point's bin, the cost without its slope before each bin, and the bins that can hold the answer.

    Within a bin C is at least its value before, at the bin's left edge, with all of the bin's falls at once.
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
    """Of changes at the same deadline only the cost after the last one counts."""
    keep = np.append(at_s[1:] != at_s[:-1], np.True_) if len(at_s) else np.zeros(0, dtype=np.bool_)
    return at_s[keep], cost[keep]


def choose_points(columns: FrontColumns, cost: Floats, deadline_s: float, otherwise: Ints | None = None) -> Ints:
    """Each board's point at ``deadline_s``, shape (n,): the first of least finite ``cost`` within reach.

    A board without one gets its point in ``otherwise`` (default its fastest).
    """
    opening = columns.offsets[:-1]
    offered = np.where(columns.safe_ends_s <= deadline_s * (1.0 + LIMIT_ROUNDING), cost, np.inf)
    lowest = np.minimum.reduceat(offered, opening)
    found = np.flatnonzero(offered == np.repeat(lowest, columns.counts))
    first = found[np.searchsorted(found, opening)]
    fallback = find_fastest_points(columns).points if otherwise is None else otherwise
    points: Ints = np.where(np.isfinite(lowest), first, fallback)
    return points
