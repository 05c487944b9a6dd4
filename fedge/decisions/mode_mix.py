"""Two modes in one round: the split of the steps that meets a deadline with least energy, in closed form.

Symbols: n steps, mode k takes t_k seconds and e_k joules for each, L seconds left, s and j seconds and joules that one
change of mode costs. Of a slower, cheaper mode a and a faster, dearer mode b the most that a can do is
m = floor((L - s - n t_b) / (t_a - t_b)), and since e_a < e_b, the most is the best. This is the integer programme of
BoFL for two modes; relaxed to any shares of any modes it has a solution of two modes.

References:
    Guo et al., "BoFL: Bayesian optimized local training pace control for energy efficient federated learning",
    Middleware 2022.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.decisions.limits import LIMIT_ROUNDING
from fedge.pareto import front_mask
from fedge.types import Floats


@dataclass(frozen=True, slots=True)
class ModeSplit:
    """A split of a round's steps over two modes; one mode alone is ``fast``, with ``steps`` 0.

    Attributes:
        slow: Row of the slower mode.
        fast: Row of the faster mode, which takes all other steps.
        steps: Steps in the slower mode.
        work_s: Time of all steps, in seconds, with the change of mode.
        work_j: Energy of all steps, in joules, with the change of mode.
    """

    slow: int
    fast: int
    steps: int
    work_s: float
    work_j: float


def find_best_split(
    step_s: Floats, step_j: Floats, steps: float, room_s: float, *, switch_s: float = 0.0, switch_j: float = 0.0
) -> ModeSplit | None:
    """Return the split over at most two modes of least energy that ends within ``room_s``.

    Exact over all pairs and splits into whole steps. One mode alone wins a tie. Only the Pareto front can be part of
    the best pair, so the work is O(modes log modes + front^2).

    Args:
        step_s: Seconds per step, shape (modes,); rows that are not finite are never taken.
        step_j: Joules per step, shape (modes,).
        steps: Steps to do; a fraction is done in the faster mode.
        room_s: Time available, in seconds.
        switch_s: Duration of one change of mode, in seconds.
        switch_j: Energy of one change of mode, in joules.

    Returns:
        The split, or None if no mode alone ends in time.
    """
    rows = np.flatnonzero(front_mask(step_s, step_j))
    rows = rows[np.argsort(step_s[rows], kind="stable")]
    t, e = step_s[rows], step_j[rows]
    latest_s = room_s * (1.0 + LIMIT_ROUNDING)
    alone = np.flatnonzero(steps * t <= latest_s)
    if len(alone) == 0:
        return None
    one = int(alone[-1])
    single = ModeSplit(
        int(rows[one]), fast=int(rows[one]), steps=0, work_s=float(steps * t[one]), work_j=float(steps * e[one])
    )
    most = _max_slow_steps(t, steps, latest_s - switch_s)
    with np.errstate(invalid="ignore"):
        energy = most * e[:, None] + (steps - most) * e[None, :] + switch_j
    energy[most < 1] = np.inf
    slow, fast = np.unravel_index(int(np.argmin(energy)), energy.shape)
    if energy[slow, fast] >= single.work_j:
        return single
    count = int(most[slow, fast])
    work_s = count * t[slow] + (steps - count) * t[fast] + switch_s
    return ModeSplit(
        int(rows[slow]), fast=int(rows[fast]), steps=count, work_s=float(work_s), work_j=float(energy[slow, fast])
    )


def _max_slow_steps(t: Floats, steps: float, room_s: float) -> Floats:
    """Return how many steps row i (slower) can do if row j does the rest, shape (front, front); 0 where it cannot.

    ``t`` ascends. At least a part of a step stays for row j, because all steps in row i are one mode alone.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        most = np.floor((room_s - steps * t[None, :]) / (t[:, None] - t[None, :]))
    most = np.minimum(most, np.ceil(steps) - 1.0)
    slower: NDArray[np.bool_] = t[:, None] > t[None, :]
    kept: Floats = np.where(slower & (most >= 1.0), most, 0.0)
    return kept


def least_energy_per_step(
    step_s: Floats, step_j: Floats, known_s: Floats, known_j: Floats, allowed_s: Floats
) -> Floats:
    """Return the energy per step of the best mix of each mode with one known mode, for comparing modes.

    Shares of steps are not rounded, and changing the mode is free.

    Args:
        step_s: Seconds per step of the modes to compare, shape (..., rows).
        step_j: Joules per step of these modes, shape (..., rows).
        known_s: Seconds per step of the known modes, shape (known,); each budget needs one that is as fast.
        known_j: Joules per step of the known modes, shape (known,).
        allowed_s: Time budgets in seconds per step, shape (allowed,).

    Returns:
        Joules per step, shape (..., rows, allowed); infinite where no mix meets the budget.
    """
    # The budgets lead and the known modes are taken one by one, so that each operation runs along thousands of modes.
    budgets_s = allowed_s.reshape(-1, *(1 for _ in step_s.shape))
    latest_s = budgets_s * (1.0 + LIMIT_ROUNDING)
    least = np.where(step_s <= latest_s, step_j, np.inf)
    with np.errstate(invalid="ignore"):
        for u, f in zip(known_s.tolist(), known_j.tolist(), strict=True):
            slower, apart_s = step_s >= u, np.abs(step_s - u)
            fast_s, fast_j = np.where(slower, u, step_s), np.where(slower, f, step_j)
            saved_j = np.maximum(np.where(slower, f - step_j, step_j - f), 0.0)
            # Of two equally fast modes the cheaper one does all steps.
            mixed = budgets_s - np.where(apart_s > 0.0, fast_s, -np.inf)
            mixed /= np.where(apart_s > 0.0, apart_s, 1.0)
            np.clip(mixed, 0.0, 1.0, out=mixed)  # the share of the slower mode
            mixed *= saved_j
            np.subtract(fast_j, mixed, out=mixed)
            mixed[fast_s > latest_s] = np.inf
            np.minimum(least, mixed, out=least)
    joules: Floats = np.moveaxis(least, 0, -1)
    return joules
