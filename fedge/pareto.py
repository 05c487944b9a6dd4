"""Pareto fronts: the modes from which none is both faster and cheaper, and a board's offer for a round.

Symbols: t = seconds for the round's steps, e = joules for them, i = idle watts; cheaper means a smaller e - i t.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedge.errors import FedgeError
from fedge.types import Floats, Front, FrontPoint, Modes, PowerMode, Predictions

MAX_FRONT_POINTS = 64
"""Points of a front that travel with every reply, unless told otherwise."""


def front_mask(cost_a: Floats, cost_b: Floats) -> NDArray[np.bool_]:
    """Marks the rows that no other row beats: none is at most as costly in both and less costly in one.

    Both costs have shape (n,), as has the answer. Of equal rows the first is kept; a row with a cost that is not finite
    is never kept. O(n log n).
    """
    rows = np.flatnonzero(np.isfinite(cost_a) & np.isfinite(cost_b))
    order = rows[np.lexsort((cost_b[rows], cost_a[rows]))]
    lowest = np.minimum.accumulate(cost_b[order])
    mask = np.zeros(len(cost_a), dtype=np.bool_)
    mask[order[:1]] = True
    mask[order[1:]] = lowest[1:] < lowest[:-1]
    return mask


def find_nearest_row(modes: Modes, mode: PowerMode) -> int:
    """The row whose knobs are nearest to ``mode``, each knob as a share of the table's largest; the first of equals."""
    knobs = np.array([mode.cores, mode.cpu_mhz, mode.gpu_mhz, mode.mem_mhz])
    largest = np.maximum(modes.knobs.max(axis=0), 1.0)
    return int(np.argmin((np.abs(modes.knobs - knobs) / largest).sum(axis=1)))


def build_front(
    predictions: Predictions,
    steps: float,
    idle_w: float,
    link_s: float,
    maxn: PowerMode,
    *,
    maxn_idle_w: float | None = None,
    limit: int | None = MAX_FRONT_POINTS,
    power: bool = False,
) -> Front:
    """A board's front for ``steps`` minibatches, from fastest to cheapest.

    With ``power`` it also holds the modes from which none is both faster and drawing less, for a limit on the watts;
    each of the two fronts has at most ``limit`` points then, and all run from fastest to slowest.

    A front of more than ``limit`` (at least 2) points is thinned to evenly spaced ranks, both ends kept; None keeps
    every point. ``maxn`` is looked up as the nearest mode of the table; ``maxn_idle_w`` is the power waiting in it
    (default ``idle_w``, the power of the mode the board waits in). Raises ``FedgeError`` when no mode has a finite
    prediction.
    """
    work_s = steps * predictions.step_s
    work_j = work_s * predictions.power_w
    above_idle_j = work_s * (predictions.power_w - idle_w)
    rows = np.flatnonzero(front_mask(work_s, above_idle_j))
    if len(rows) == 0:
        raise FedgeError(f"none of the {len(work_s)} modes has a finite prediction of time and power")
    rows = _thin_rows(rows[np.argsort(work_s[rows])], limit)
    if power:
        low = np.flatnonzero(front_mask(work_s, predictions.power_w))
        rows = np.union1d(rows, _thin_rows(low[np.argsort(work_s[low])], limit))
        rows = rows[np.argsort(work_s[rows], kind="stable")]

    def point(row: int) -> FrontPoint:
        spread = float(predictions.step_s_sd_log[row])
        return FrontPoint(predictions.modes[row], float(work_s[row]), float(work_j[row]), spread)

    return Front(
        points=tuple(point(int(row)) for row in rows),
        maxn=point(find_nearest_row(predictions.modes, maxn)),
        idle_w=idle_w,
        link_s=link_s,
        maxn_idle_w=idle_w if maxn_idle_w is None else maxn_idle_w,
    )


def _thin_rows(rows: NDArray[np.intp], limit: int | None) -> NDArray[np.intp]:
    if limit is None or len(rows) <= limit:
        return rows
    return rows[np.round(np.linspace(0, len(rows) - 1, limit)).astype(np.intp)]
