"""What the policies share: each mode's seconds and joules for the goal's steps, the margin, the pick of the best row.

Symbols: steps n, step time t, power p, idle power i, link l, spreads s_t and s_p (log), margin z = Phi^-1(confidence).
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from fedge.errors import BadInput
from fedge.types import Floats, Front, Goal, Predictions

ROUNDING = 1e-9
"""A limit counts as kept up to this share of it, so that a plan made from a board's own numbers is never missed."""


def margin_z(confidence: float) -> float:
    """Standard deviations of margin that hold with ``confidence`` (0.5: 0, 0.84: 1); ``BadInput`` outside (0, 1)."""
    if not 0.0 < confidence < 1.0:
        raise BadInput("policy.confidence", f"{confidence:g}", "a number between 0 and 1")
    return NormalDist().inv_cdf(confidence)


def busy_s(predictions: Predictions, offer: Front, goal: Goal, z: float = 0.0) -> Floats:
    """Seconds from the round's start to the end of the upload, l + n t exp(z s_t); shape (modes,)."""
    work_s: Floats = goal.steps * predictions.step_s
    return offer.link_s + work_s * np.exp(z * predictions.step_s_sd_log)


def above_idle_j(predictions: Predictions, offer: Front, goal: Goal, z: float = 0.0) -> Floats:
    """Joules of the work beyond what the board would draw idling as long, n t (p - i); shape (modes,).

    With ``z``, what is not exceeded in time and power with that margin: n t exp(z s_t) (p exp(z s_p) - i). Near idle
    power p - i is small and its error large, so that the least of thousands of expected values is mostly the luckiest.
    """
    work_s = goal.steps * predictions.step_s * np.exp(z * predictions.step_s_sd_log)
    energy: Floats = work_s * (predictions.power_w * np.exp(z * predictions.power_w_sd_log) - offer.idle_w)
    return energy


def within(values: Floats, limit: float) -> NDArray[np.bool_]:
    """Marks the values that keep ``limit``."""
    return values <= limit + ROUNDING * abs(limit)


def best_row(primary: Floats, secondary: Floats, allowed: NDArray[np.bool_] | None = None) -> int:
    """The allowed row of least ``primary``, then least ``secondary``, then the first; one row must be allowed."""
    finite = np.isfinite(primary) & np.isfinite(secondary)
    rows = np.flatnonzero(finite if allowed is None else finite & allowed)
    tied = rows[primary[rows] == primary[rows].min()]
    return int(tied[np.argmin(secondary[tied])])


def deadline_of(goal: Goal) -> float | None:
    """The shorter of the user's own deadline and the one planned for the round; None when there is neither."""
    given = [d for d in (goal.limits.get("deadline_s"), goal.deadline_s) if d is not None]
    return min(given, default=None)


def figure(value: float) -> str:
    """A number for a sentence: one decimal, or three digits where it is small."""
    return f"{value:.3g}" if math.fabs(value) < 10.0 else f"{value:.1f}"
