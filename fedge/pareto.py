"""Pareto fronts of time and energy above idle, and a client's offer for a round.

Symbols: t = seconds for the round's steps, e = joules for them, i = idle watts; the costs are t and e - i t.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedge.errors import FedgeError
from fedge.types import Floats, Front, FrontPoint, Modes, PowerMode, Predictions

FILTER_WEIGHTS = (0.5, 0.9, 0.1, 0.98, 0.7, 0.3)
# Weights of the first cost by which the rows that rule out others are found; they change the time of a search only.
FEW_ROWS = 100
# So many rows are sorted in less time than one more weight rules some of them out.
MAX_FRONT_POINTS = 64
# Default limit on the points sent with every reply: more points make plans finer, but every message longer.
MAX_SLOWDOWN = 1e4
# Modes that are predicted to be slower than the fastest by more are not offered: few measurements that contradict each
# other can make a fit explode. Among all cost profiles and boards of the catalogue the largest ratio is 549.


def front_mask(cost_a: Floats, cost_b: Floats) -> NDArray[np.bool_]:
    """Mark the Pareto-optimal rows: no other row is at most as costly in both costs and less costly in one. O(n log n).

    Args:
        cost_a: First cost, shape (n,).
        cost_b: Second cost, shape (n,).

    Returns:
        Boolean mask of shape (n,). Of equal rows only the first is marked; rows with a non-finite cost never are.
    """
    rows = _drop_dominated(np.flatnonzero(np.isfinite(cost_a) & np.isfinite(cost_b)), cost_a, cost_b)
    order = rows[np.lexsort((cost_b[rows], cost_a[rows]))]
    lowest = np.minimum.accumulate(cost_b[order])
    mask = np.zeros(len(cost_a), dtype=np.bool_)
    mask[order[:1]] = True
    mask[order[1:]] = lowest[1:] < lowest[:-1]
    return mask


def _drop_dominated(rows: NDArray[np.intp], cost_a: Floats, cost_b: Floats) -> NDArray[np.intp]:
    """Drop rows that are costlier in both costs than one of a few good rows: of thousands, only dozens are sorted."""
    for weight in FILTER_WEIGHTS:
        if len(rows) <= FEW_ROWS:
            break
        a, b = cost_a[rows], cost_b[rows]
        best = np.argmin(a * (weight * (b.max() - b.min())) + b * ((1.0 - weight) * (a.max() - a.min())))
        rows = rows[(a <= a[best]) | (b <= b[best])]
    return rows


def find_undominated_rows(costs: Floats) -> NDArray[np.int64]:
    """Return the rows of k costs, shape (n, k), of which no other is at most as costly in all; of equals the first.

    They are in the order of the first cost, then of the others. Of these, zeros and repeated columns do not count: with
    up to two of them it takes O(n log n), with more O(n^2).
    """
    order, columns = np.lexsort(costs.T[::-1]), list[Floats]()
    for column in costs.T[1:]:
        if column.any() and not any(np.array_equal(column, one) for one in columns):
            columns.append(column)
    if len(columns) == 2:
        return order[_mask_staircase(columns[0][order].tolist(), columns[1][order].tolist())]
    if len(columns) < 2:
        least = np.minimum.accumulate((columns or [np.zeros(len(costs))])[0][order])
        return order[np.concatenate([[True], np.diff(least) < 0.0])] if len(order) else order
    kept: list[int] = []
    cheap = np.empty((len(order), len(columns)))
    others = np.column_stack(columns)
    for row in order.tolist():
        if not (cheap[: len(kept)] <= others[row]).all(axis=1).any():
            cheap[len(kept)] = others[row]
            kept.append(row)
    return np.array(kept, dtype=np.int64)


def _mask_staircase(first: Sequence[float], second: Sequence[float]) -> NDArray[np.bool_]:
    """Mask the pairs of which no earlier one is at most as large in both."""
    mask = np.zeros(len(first), np.bool_)
    ends, steps = list[float](), list[float]()  # the undominated pairs so far: ends ascend while steps descend
    for k, (a, b) in enumerate(zip(first, second, strict=True)):
        place = bisect_right(ends, a)
        if place and steps[place - 1] <= b:
            continue
        mask[k], above = True, place
        while above < len(steps) and steps[above] >= b:
            above += 1
        ends[place:above], steps[place:above] = [a], [b]
    return mask


def find_nearest_row(modes: Modes, mode: PowerMode) -> int:
    """Return the index of the row nearest to ``mode``; the first one if several are equally near.

    The distance is the sum over the knobs of |difference| / (largest value in the table).
    """
    row = modes.look_up(_search_nearest_row, mode)
    assert row is not None
    return row


def _search_nearest_row(modes: Modes, mode: PowerMode) -> int:
    largest = np.maximum(modes.knobs.max(axis=0), 1.0)
    return int(np.argmin((np.abs(modes.knobs - mode.knobs) / largest).sum(axis=1)))


def build_front(
    predictions: Predictions,
    steps: float,
    idle_w: float,
    link_s: float,
    maxn: PowerMode,
    *,
    maxn_idle_w: float | None = None,
    radio_j: float = 0.0,
    limit: int | None = MAX_FRONT_POINTS,
    power: bool = False,
) -> Front:
    """Build a client's front, from fastest to cheapest.

    Args:
        predictions: Predicted step time and power of the candidate modes.
        steps: Steps of the client's whole share.
        idle_w: Power in watts of the mode in which the board waits.
        link_s: Seconds to download and upload the model.
        maxn: The fastest mode; the nearest mode of the table is used.
        maxn_idle_w: Power in watts when waiting in ``maxn``; ``idle_w`` if None.
        radio_j: Energy of the radio in joules.
        limit: Largest number of points, at least 2; a longer front is thinned to evenly spaced ranks and keeps both
            ends. None keeps every point; 0 keeps none, for readers of the other fields.
        power: Also include the front of time and power, for plans that limit the watts; ``limit`` then applies to each
            of the two fronts.

    Raises:
        FedgeError: If no mode has a finite prediction.
    """
    work_s = steps * predictions.step_s
    work_j = work_s * predictions.power_w
    if limit == 0:
        rows = np.flatnonzero(np.isfinite(work_j))
    else:
        rows = find_offered_rows(work_s, power_w=predictions.power_w, idle_w=idle_w, limit=limit, power=power)
    if len(rows) == 0:
        raise FedgeError(f"none of the {len(work_s)} modes has a finite prediction of time and power")
    rows = np.append(rows[:0] if limit == 0 else rows, find_nearest_row(predictions.modes, maxn))
    columns = (values.tolist() for values in (rows, work_s[rows], work_j[rows], predictions.step_s_sd_log[rows]))
    *points, fastest = (FrontPoint(predictions.modes[row], *figures) for row, *figures in zip(*columns, strict=True))
    return Front(
        points=tuple(points),
        maxn=fastest,
        idle_w=idle_w,
        link_s=link_s,
        maxn_idle_w=idle_w if maxn_idle_w is None else maxn_idle_w,
        radio_j=radio_j,
    )


def find_offered_rows(
    work_s: Floats, power_w: Floats, *, idle_w: float, limit: int | None, power: bool
) -> NDArray[np.intp]:
    """Return the rows of the front of time and energy above idle, from fastest to cheapest; none without finite rows.

    ``work_s`` are the seconds for the client's whole share by row; the other arguments are those of ``build_front``.
    """
    finite = np.isfinite(work_s)
    possible = np.flatnonzero(finite & (work_s <= MAX_SLOWDOWN * np.min(work_s[finite], initial=np.inf)))
    time_s, watts = work_s[possible], power_w[possible]  # the others are slower, so that they dominate none of these
    rows = possible[front_mask(time_s, time_s * (watts - idle_w))]
    rows = _thin_rows(rows[np.argsort(work_s[rows])], limit)
    if power:
        low = possible[front_mask(time_s, watts)]
        rows = np.union1d(rows, _thin_rows(low[np.argsort(work_s[low])], limit))
        rows = rows[np.argsort(work_s[rows], kind="stable")]
    return rows


def _thin_rows(rows: NDArray[np.intp], limit: int | None) -> NDArray[np.intp]:
    if limit is None or len(rows) <= limit:
        return rows
    return rows[np.round(np.linspace(0, len(rows) - 1, limit)).astype(np.intp)]
