"""The boards' part of a round planned for the fleet: least energy within the plan's deadline and the board's watts."""

from __future__ import annotations

import dataclasses

import numpy as np

from fedge.planning.fleet import MAX_SLOWDOWN
from fedge.policies.balanced import by_deadline, by_weight
from fedge.policies.choice import above_idle_j, best_row, busy_s, deadline_of, figure, within
from fedge.types import Decision, DeviceSpec, Front, Goal, Predictions


def least_energy(predictions: Predictions, offer: Front, goal: Goal, spec: DeviceSpec) -> Decision:
    """Least energy within the planned deadline or the user's own, with the margins of ``balanced``.

    With neither, within ``limits["max_slowdown"]`` (1.05) times the board's own round at MAXN.
    """
    deadline_s = deadline_of(goal)
    if deadline_s is None:
        deadline_s = goal.limits.get("max_slowdown", MAX_SLOWDOWN) * (offer.link_s + offer.maxn.work_s)
    return by_deadline(predictions, offer, goal, deadline_s)


def energy_budget(predictions: Predictions, offer: Front, goal: Goal, spec: DeviceSpec) -> Decision:
    """Least energy within the planned deadline; without one, least own energy until the board's own end.

    ``limits["time_weight"]`` (0) then weighs time against it.
    """
    deadline_s = deadline_of(goal)
    if deadline_s is None:
        return by_weight(predictions, offer, goal, 0.0)
    return by_deadline(predictions, offer, goal, deadline_s)


def fastest(predictions: Predictions, offer: Front, goal: Goal, spec: DeviceSpec) -> Decision:
    """Least energy within the planned deadline among the modes that draw at most ``limits["power_w"]`` watts.

    The watts are the board's share of the fleet's; without a share every mode may be taken. When none keeps it: the
    mode of least power, not feasible. Without a deadline: the fastest mode that keeps it.
    """
    time_s, power_w = busy_s(predictions, offer, goal), predictions.power_w
    cap_w = goal.limits.get("power_w", np.inf)
    allowed = (power_w <= np.inf) if cap_w == np.inf else within(power_w, cap_w)
    allowed = allowed & np.isfinite(time_s)
    share = "" if cap_w == np.inf else f" within its {figure(cap_w)} W"
    if not allowed.any():
        row = best_row(power_w, time_s)
        why = f"No mode stays{share}; the lowest draws {figure(power_w[row])} W."
        return Decision(predictions.modes[row], why, feasible=False)
    deadline_s = deadline_of(goal)
    if deadline_s is None:
        row = best_row(time_s, above_idle_j(predictions, offer, goal), allowed)
        why = f"Fastest mode{share}: {figure(time_s[row])} s and {figure(power_w[row])} W expected."
        return Decision(predictions.modes[row], why)
    decision = by_deadline(predictions, offer, goal, deadline_s, allowed)
    return dataclasses.replace(decision, why=f"{decision.why.removesuffix('.')}{share}.")
