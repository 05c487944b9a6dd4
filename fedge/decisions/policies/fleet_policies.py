"""Policies of rounds planned for the fleet: least energy within the plan's deadline and the board's power share."""

from __future__ import annotations

import dataclasses

import numpy as np

from fedge.decisions.limits import find_best_row, format_figure, mask_within
from fedge.decisions.planning.fleet_planners import MAX_SLOWDOWN
from fedge.decisions.policies.balanced_policy import choose_by_deadline, choose_by_weight
from fedge.decisions.policies.mode_costs import compute_above_idle_j, compute_busy_s, effective_deadline_s
from fedge.types import Decision, DeviceSpec, Front, Predictions, RoundGoal


def choose_least_energy(predictions: Predictions, offer: Front, goal: RoundGoal, spec: DeviceSpec) -> Decision:
    """Choose least energy within the planned deadline or the user's own, with the margins of ``balanced``.

    With neither, the limit is ``limits["max_slowdown"]`` (1.05) times the board's own round at MAXN.
    """
    deadline_s = effective_deadline_s(goal)
    if deadline_s is None:
        deadline_s = goal.limits.get("max_slowdown", MAX_SLOWDOWN) * (offer.link_s + offer.maxn.work_s)
    return choose_by_deadline(predictions, offer, goal, deadline_s)


def choose_within_budget(predictions: Predictions, offer: Front, goal: RoundGoal, spec: DeviceSpec) -> Decision:
    """Choose least energy within the planned deadline, or, without one, least own energy until the board's own end.

    Without a deadline ``limits["time_weight"]`` (0) weighs time against energy.
    """
    deadline_s = effective_deadline_s(goal)
    if deadline_s is None:
        return choose_by_weight(predictions, offer, goal, 0.0)
    return choose_by_deadline(predictions, offer, goal, deadline_s)


def choose_fastest(predictions: Predictions, offer: Front, goal: RoundGoal, spec: DeviceSpec) -> Decision:
    """Choose least energy within the planned deadline among the modes that draw at most ``limits["power_w"]`` watts.

    The limit is the board's share of the fleet's power; without one every mode is allowed. If no mode keeps it, the
    mode of least power is chosen, marked as not feasible. Without a deadline the fastest mode within the limit is
    chosen.
    """
    time_s, power_w = compute_busy_s(predictions, offer, goal), predictions.power_w
    cap_w = goal.limits.get("power_w", np.inf)
    allowed = (power_w <= np.inf) if cap_w == np.inf else mask_within(power_w, cap_w)
    allowed = allowed & np.isfinite(time_s)
    share = "" if cap_w == np.inf else f" within its {format_figure(cap_w)} W"
    if not allowed.any():
        row = find_best_row(power_w, time_s)
        why = f"No mode stays{share}; the lowest draws {format_figure(power_w[row])} W."
        return Decision(predictions.modes[row], why, feasible=False)
    deadline_s = effective_deadline_s(goal)
    if deadline_s is None:
        row = find_best_row(time_s, compute_above_idle_j(predictions, offer, goal), allowed)
        why = f"Fastest mode{share}: {format_figure(time_s[row])} s and {format_figure(power_w[row])} W expected."
        return Decision(predictions.modes[row], why)
    decision = choose_by_deadline(predictions, offer=offer, goal=goal, deadline_s=deadline_s, among=allowed)
    return dataclasses.replace(decision, why=f"{decision.why.removesuffix('.')}{share}.")
