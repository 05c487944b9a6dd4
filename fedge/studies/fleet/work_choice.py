"""The mode, or the two modes, of least energy within a time, for many clients of a kind at once.

Symbols: t, e = seconds and joules above idling of a step in a mode, n steps, r seconds available. In any mix of modes
time and energy are sums over the steps, so the least energy at r / n seconds per step lies on the lower convex hull of
(t, e): a mix of two neighbours on it. Steps are whole, so that the mix may miss the optimum by less than one step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.decisions.limits import LIMIT_ROUNDING
from fedge.decisions.policies.mode_policies import ENERGY_MARGIN_SHARE, KNOWN_SD_LOG
from fedge.pareto import front_mask
from fedge.types import Floats, Predictions

Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class WorkCurve:
    """The modes worth choosing among, by ascending time: the Pareto front, and those of it on its lower convex hull.

    Attributes:
        rows: Rows of the front's modes, shape (f,); empty if no mode has finite figures.
        step_s: Seconds per step, shape (f,).
        step_j: Joules per step above idling, shape (f,).
        hull: Places of the hull in the front, shape (h,).
    """

    rows: Rows
    step_s: Floats
    step_j: Floats
    hull: Rows


@dataclass(frozen=True, slots=True, eq=False)
class WorkChoice:
    """The choices of c clients.

    Attributes:
        slow: Row of the slower mode, which runs first, shape (c,).
        fast: Row of the mode of all other steps, shape (c,); equal to ``slow`` without a mix.
        slow_steps: Steps in the slower mode, shape (c,); 0 without a mix.
        in_time: Whether the work ends in time, shape (c,). If not, ``fast`` is the fastest mode.
    """

    slow: Rows
    fast: Rows
    slow_steps: Floats
    in_time: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class WorkRoom:
    """The work left to c clients and the time for it, in seconds of the kind's own speed.

    Attributes:
        steps: Steps left, the warm-up included, shape (c,).
        left_s: Seconds left for them, shape (c,).
        switch_s: Seconds of a change of mode, shape (c,).
        switch_w: Power above idling during the change, in watts.
    """

    steps: Floats
    left_s: Floats
    switch_s: Floats
    switch_w: float

    def select(self, mask: NDArray[np.bool_]) -> WorkRoom:
        """Return the clients for which ``mask`` is True."""
        return WorkRoom(self.steps[mask], self.left_s[mask], self.switch_s[mask], self.switch_w)


def build_curve(step_s: Floats, step_j: Floats) -> WorkCurve:
    """Build the curve of modes with these times and energies above idling, shape (modes,); rows not finite are left
    out.
    """
    rows = np.flatnonzero(front_mask(step_s, step_j))
    rows = rows[np.argsort(step_s[rows], kind="stable")]
    t, e = step_s[rows], step_j[rows]
    hull = list[int]()
    for place in range(len(rows)):
        while len(hull) > 1 and _turns_up(t, e, (hull[-2], hull[-1], place)):
            hull.pop()
        hull.append(place)
    return WorkCurve(rows, t, e, np.array(hull, dtype=np.intp))


def _turns_up(t: Floats, e: Floats, places: tuple[int, int, int]) -> bool:
    """Return whether the middle of three points is on or above the line between the others."""
    a, b, c = places
    return bool((e[b] - e[a]) * (t[c] - t[a]) >= (e[c] - e[a]) * (t[b] - t[a]))


def choose_work(curve: WorkCurve, room: WorkRoom) -> WorkChoice:
    """Choose the work of least energy of every client within its time, in one mode or in two."""
    steps, left_s = room.steps, room.left_s * (1.0 + LIMIT_ROUNDING)
    last = np.searchsorted(curve.step_s, left_s / steps, side="right") - 1
    in_time = last >= 0
    alone = curve.rows[np.maximum(last, 0)]
    if len(curve.hull) < 2:
        return WorkChoice(alone, alone, np.zeros(len(steps)), in_time)
    t, e = curve.step_s[curve.hull], curve.step_j[curve.hull]
    mixed_s = left_s - room.switch_s
    place = np.searchsorted(t, mixed_s / steps, side="right") - 1
    fast = np.clip(place, 0, len(t) - 2)
    slow = fast + 1
    count = np.minimum(np.floor((mixed_s - steps * t[fast]) / (t[slow] - t[fast])), np.ceil(steps) - 1.0)
    mixed_j = count * e[slow] + (steps - count) * e[fast] + room.switch_s * room.switch_w
    mixes = (place == fast) & (count >= 1.0) & (mixed_j < steps * curve.step_j[np.maximum(last, 0)])
    return WorkChoice(
        np.where(mixes, curve.rows[curve.hull[slow]], alone),
        np.where(mixes, curve.rows[curve.hull[fast]], alone),
        np.where(mixes, count, 0.0),
        in_time,
    )


def choose_predicted_work(
    predictions: Predictions, idle_w: float, room: WorkRoom, *, z: float, offset_sd: Floats
) -> WorkChoice:
    """Choose as ``choose_by_deadline`` does for one board: in time with the margin, else as expected, else the fastest.

    Args:
        predictions: Predictions of the modes to choose from, of a typical board of the kind.
        idle_w: The typical board's idle power in watts.
        room: The clients' work; times are divided by the expected offset.
        z: Margin in standard deviations.
        offset_sd: Standard deviation (log) of each client's own offset of time, shape (c,); clients of equal values are
            computed together, so there should be few different ones.
    """
    slow, fast = np.empty(len(offset_sd), dtype=np.intp), np.empty(len(offset_sd), dtype=np.intp)
    count, in_time = np.zeros(len(offset_sd)), np.zeros(len(offset_sd), dtype=np.bool_)
    for sd in np.unique(offset_sd):
        mine = offset_sd == sd
        chosen = _choose_with_sd(predictions, idle_w, room.select(mine), z=z, sd=float(sd))
        slow[mine], fast[mine] = chosen.slow, chosen.fast
        count[mine], in_time[mine] = chosen.slow_steps, chosen.in_time
    return WorkChoice(slow, fast, count, in_time)


def _choose_with_sd(predictions: Predictions, idle_w: float, room: WorkRoom, *, z: float, sd: float) -> WorkChoice:
    step_s, time_sd = predictions.step_s, np.hypot(predictions.step_s_sd_log, sd)
    part = ENERGY_MARGIN_SHARE * z
    careful_w = predictions.power_w * np.exp(part * predictions.power_w_sd_log) - idle_w
    careful_j = step_s * np.exp(part * time_sd) * careful_w
    chosen = choose_work(build_curve(step_s * np.exp(z * time_sd), careful_j), room)
    if chosen.in_time.all():
        return chosen
    known = build_curve(np.where(time_sd <= KNOWN_SD_LOG, step_s, np.inf), careful_j)
    otherwise = _choose_fastest(step_s, careful_j, room) if len(known.rows) == 0 else choose_work(known, room)
    late = np.where(otherwise.in_time, otherwise.fast, _find_fastest(step_s, careful_j))
    return WorkChoice(
        np.where(chosen.in_time, chosen.slow, np.where(otherwise.in_time, otherwise.slow, late)),
        np.where(chosen.in_time, chosen.fast, late),
        np.where(chosen.in_time, chosen.slow_steps, np.where(otherwise.in_time, otherwise.slow_steps, 0.0)),
        chosen.in_time | otherwise.in_time,
    )


def _choose_fastest(step_s: Floats, step_j: Floats, room: WorkRoom) -> WorkChoice:
    rows = np.full(len(room.steps), _find_fastest(step_s, step_j))
    return WorkChoice(rows, rows, np.zeros(len(rows)), np.zeros(len(rows), dtype=np.bool_))


def _find_fastest(step_s: Floats, step_j: Floats) -> int:
    return int(np.lexsort((step_j, step_s))[0])


def compute_offset_sd(count: NDArray[np.int64], prior_sd: float, noise_sd: float) -> Floats:
    """Return the standard deviation (log) of a client's offset after ``count`` measurements, shape (c,)."""
    values: Floats = 1.0 / np.sqrt(1.0 / prior_sd**2 + count / noise_sd**2)
    return values


def compute_offset(log_sum: Floats, count: NDArray[np.int64], prior_sd: float, noise_sd: float) -> Floats:
    """Return the posterior mean of a client's offset: log ratios of measured to predicted, shrunk towards 0.

    Args:
        log_sum: Sum of a client's log ratios, shape (c,).
        count: Number of them, shape (c,).
        prior_sd: Spread of the offsets within a kind, log units.
        noise_sd: Noise of one measurement, log units.
    """
    values: Floats = log_sum / (count + math.pow(noise_sd / prior_sd, 2))
    return values
