"""Each mode's time and energy for the goal's steps, shared by the policies.

Symbols: steps n, step time t, power p, idle power i, link l, standard deviations s_t and s_p (log), margin
z = Phi^-1(confidence).
"""

from __future__ import annotations

import numpy as np

from fedge.types import Floats, Front, Predictions, RoundGoal


def compute_busy_s(predictions: Predictions, offer: Front, goal: RoundGoal, z: float = 0.0) -> Floats:
    """Return the seconds from the round's start to the end of the upload, l + n t exp(z s_t); shape (modes,)."""
    work_s: Floats = goal.steps * predictions.step_s
    return offer.link_s + work_s * np.exp(z * predictions.step_s_sd_log)


def compute_above_idle_j(predictions: Predictions, offer: Front, goal: RoundGoal, z: float = 0.0) -> Floats:
    """Return the energy of the work beyond idling for the same time in joules, n t (p - i); shape (modes,).

    Args:
        predictions: One row per mode.
        offer: The board's front, for its idle power.
        goal: The round's goal, for its steps.
        z: Margin in standard deviations on time and power: n t exp(z s_t) (p exp(z s_p) - i). Near idle power p - i is
            small and its error large, so that the least of thousands of expected values is mostly the luckiest.
    """
    work_s = goal.steps * predictions.step_s * np.exp(z * predictions.step_s_sd_log)
    energy: Floats = work_s * (predictions.power_w * np.exp(z * predictions.power_w_sd_log) - offer.idle_w)
    return energy


def effective_deadline_s(goal: RoundGoal) -> float | None:
    """Return the shorter of the user's own and the planned deadline in seconds, or None if there is neither."""
    given = [d for d in (goal.limits.get("deadline_s"), goal.deadline_s) if d is not None]
    return min(given, default=None)
