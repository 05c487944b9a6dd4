"""The default policy: time and energy weighed against MAXN, fleet-wide when a deadline was planned, else per board."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedge.planning.deadline import maxn_energy_j
from fedge.planning.fleet import CONFIDENCE, TIME_WEIGHT
from fedge.policies.choice import above_idle_j, best_row, busy_s, deadline_of, figure, margin_z, within
from fedge.policies.splitting import Figures, least_energy
from fedge.types import Decision, DeviceSpec, Front, Goal, Predictions

CAUTION = 0.5
"""How much of the time margin the energy gets: enough not to fall for the luckiest of thousands of predictions."""
KNOWN_SD_LOG = 0.06
"""A time counts as known up to this spread, log units."""


def balanced(predictions: Predictions, offer: Front, goal: Goal, spec: DeviceSpec) -> Decision:
    """Least energy within the planned deadline; without one, the least weighted sum of own time and own energy.

    The weighing of a planned round was done when its deadline was planned (``fedge.planning.deadlines``).
    """
    deadline_s = deadline_of(goal)
    if deadline_s is None:
        return by_weight(predictions, offer, goal, TIME_WEIGHT)
    return by_deadline(predictions, offer, goal, deadline_s)


def by_deadline(
    predictions: Predictions, offer: Front, goal: Goal, deadline_s: float, among: NDArray[np.bool_] | None = None
) -> Decision:
    """Least joules above idling that ends in time, both with the margin; else in time as expected; else the fastest.

    The plan gives the slowest board no room for a margin: once it knows its times, it takes the cheapest of the modes
    expected in time. Only modes of ``among`` are considered (at least one of them finite; default all).
    """
    among = np.ones(len(predictions.modes), dtype=np.bool_) if among is None else among
    confidence = goal.limits.get("confidence", CONFIDENCE)
    z = margin_z(confidence, "policy.confidence")
    time_s, energy_j = busy_s(predictions, offer, goal), above_idle_j(predictions, offer, goal)
    careful_j = above_idle_j(predictions, offer, goal, CAUTION * z)
    safe = among & within(busy_s(predictions, offer, goal, z), deadline_s)
    expected = among & within(time_s, deadline_s) & (predictions.step_s_sd_log <= KNOWN_SD_LOG)
    if not safe.any() and not expected.any():
        row = best_row(time_s, energy_j, among)
        if within(time_s, deadline_s)[row]:
            why = f"Fastest mode: {figure(time_s[row])} s expected, too uncertain for less in {figure(deadline_s)} s."
            return Decision(predictions.modes[row], why)
        late = f"later than the {figure(deadline_s)} s left"
        return Decision(predictions.modes[row], f"Fastest mode: {figure(time_s[row])} s expected, {late}.", False)
    usable = among if safe.any() else among & (predictions.step_s_sd_log <= KNOWN_SD_LOG)
    kept_s = busy_s(predictions, offer, goal, z) if safe.any() else time_s
    margin = f"with {confidence:.0%} confidence" if safe.any() else "without margin"
    return least_energy(
        Figures(predictions.modes, kept_s, careful_j, time_s, energy_j), offer, goal, deadline_s, usable, margin
    )


def by_weight(predictions: Predictions, offer: Front, goal: Goal, time_weight: float) -> Decision:
    """Least w T/T_maxn + (1-w) E/E_maxn; T and E run from the round's start to the board's own end.

    ``time_weight`` is w unless the goal gives one. ``limits["max_slowdown"]``, when given, keeps T within that multiple
    of T_maxn.
    """
    weight = goal.limits.get("time_weight", time_weight)
    time_s = busy_s(predictions, offer, goal)
    own_j = offer.idle_w * time_s + above_idle_j(predictions, offer, goal)
    maxn_s = offer.link_s + offer.maxn.work_s
    maxn_j = maxn_energy_j(offer, maxn_s)
    allowed = within(time_s, goal.limits.get("max_slowdown", np.inf) * maxn_s)
    if not allowed.any():
        row = best_row(time_s, own_j)
        longest = f"{goal.limits['max_slowdown']:g} times MAXN's {figure(maxn_s)} s"
        why = f"No mode ends within {longest}; the fastest takes {figure(time_s[row])} s."
        return Decision(predictions.modes[row], why, feasible=False)
    row = best_row(weight * time_s / maxn_s + (1.0 - weight) * own_j / maxn_j, time_s, allowed)
    found = (
        f"{time_s[row] / maxn_s:.0%} of MAXN's {figure(maxn_s)} s, {own_j[row] / maxn_j:.0%} of its {figure(maxn_j)} J"
    )
    return Decision(predictions.modes[row], f"Best balance: {found} expected.")
