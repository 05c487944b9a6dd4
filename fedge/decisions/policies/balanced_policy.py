"""The default policy: time and energy weighed against MAXN, fleet-wide if a deadline was planned, else per board."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedge.decisions.limits import compute_margin_z, find_best_row, format_figure, mask_within
from fedge.decisions.planning.board_energy import board_maxn_energy_j
from fedge.decisions.planning.fleet_planners import CONFIDENCE, TIME_WEIGHT
from fedge.decisions.policies.mode_costs import compute_above_idle_j, compute_busy_s, effective_deadline_s
from fedge.decisions.policies.split_decision import ModeFigures, decide_least_energy
from fedge.types import Decision, DeviceSpec, Front, Predictions, RoundGoal

ENERGY_MARGIN_SHARE = 0.5
"""Share of the time margin that energy gets, so that the luckiest of thousands of predictions is not simply chosen."""
KNOWN_SD_LOG = 0.06
"""Standard deviation (log) up to which a step time counts as known."""


def choose_balanced(predictions: Predictions, offer: Front, goal: RoundGoal, spec: DeviceSpec) -> Decision:
    """Choose least energy within the planned deadline, or, without one, the least weighted sum of own time and energy.

    A planned round was weighed when its deadline was planned (``fedge.decisions.planning.deadline_search``).
    """
    deadline_s = effective_deadline_s(goal)
    if deadline_s is None:
        return choose_by_weight(predictions, offer, goal, TIME_WEIGHT)
    return choose_by_deadline(predictions, offer, goal, deadline_s)


def choose_by_deadline(
    predictions: Predictions, offer: Front, goal: RoundGoal, deadline_s: float, among: NDArray[np.bool_] | None = None
) -> Decision:
    """Choose least energy above idling in time, both with the margin; else in time as expected; else the fastest mode.

    The plan leaves the slowest board no room for a margin: once it knows its times, it takes the cheapest of the modes
    expected in time.

    Args:
        predictions: One row per mode.
        offer: The board's front, for its link time, idle power and MAXN.
        goal: The round's goal; ``limits["confidence"]`` (0.84) gives the margin.
        deadline_s: Deadline in seconds after the round's start.
        among: Mask of the modes to choose from, shape (modes,), at least one of them finite; all by default.
    """
    among = np.ones(len(predictions.modes), dtype=np.bool_) if among is None else among
    confidence = goal.limits.get("confidence", CONFIDENCE)
    z = compute_margin_z(confidence, "policy.confidence")
    time_s, energy_j = compute_busy_s(predictions, offer, goal), compute_above_idle_j(predictions, offer, goal)
    careful_j = compute_above_idle_j(predictions, offer, goal, ENERGY_MARGIN_SHARE * z)
    safe = among & mask_within(compute_busy_s(predictions, offer, goal, z), deadline_s)
    expected = among & mask_within(time_s, deadline_s) & (predictions.step_s_sd_log <= KNOWN_SD_LOG)
    if not safe.any() and not expected.any():
        row = find_best_row(time_s, energy_j, among)
        if mask_within(time_s, deadline_s)[row]:
            why = (
                f"Fastest mode: {format_figure(time_s[row])} s expected, too uncertain for less in "
                f"{format_figure(deadline_s)} s."
            )
            return Decision(predictions.modes[row], why)
        late = f"later than the {format_figure(deadline_s)} s left"
        return Decision(
            predictions.modes[row], f"Fastest mode: {format_figure(time_s[row])} s expected, {late}.", False
        )
    usable = among if safe.any() else among & (predictions.step_s_sd_log <= KNOWN_SD_LOG)
    kept_s = compute_busy_s(predictions, offer, goal, z) if safe.any() else time_s
    margin = f"with {confidence:.0%} confidence" if safe.any() else "without margin"
    return decide_least_energy(
        ModeFigures(predictions.modes, safe_s=kept_s, safe_j=careful_j, expected_s=time_s, expected_j=energy_j),
        offer=offer,
        goal=goal,
        deadline_s=deadline_s,
        usable=usable,
        margin=margin,
    )


def choose_by_weight(predictions: Predictions, offer: Front, goal: RoundGoal, time_weight: float) -> Decision:
    """Choose least w T/T_maxn + (1-w) E/E_maxn; T and E run from the round's start to the board's own end.

    Args:
        predictions: One row per mode.
        offer: The board's front, for its link time, idle power and MAXN.
        goal: The round's goal; ``limits["max_slowdown"]`` keeps T within that multiple of T_maxn.
        time_weight: The weight w, 0 to 1, unless ``limits["time_weight"]`` is given.
    """
    weight = goal.limits.get("time_weight", time_weight)
    time_s = compute_busy_s(predictions, offer, goal)
    own_j = offer.idle_w * time_s + compute_above_idle_j(predictions, offer, goal)
    maxn_s = offer.link_s + offer.maxn.work_s
    maxn_j = board_maxn_energy_j(offer, maxn_s)
    allowed = mask_within(time_s, goal.limits.get("max_slowdown", np.inf) * maxn_s)
    if not allowed.any():
        row = find_best_row(time_s, own_j)
        longest = f"{goal.limits['max_slowdown']:g} times MAXN's {format_figure(maxn_s)} s"
        why = f"No mode ends within {longest}; the fastest takes {format_figure(time_s[row])} s."
        return Decision(predictions.modes[row], why, feasible=False)
    row = find_best_row(weight * time_s / maxn_s + (1.0 - weight) * own_j / maxn_j, time_s, allowed)
    found = (
        f"{time_s[row] / maxn_s:.0%} of MAXN's {format_figure(maxn_s)} s, {own_j[row] / maxn_j:.0%} of its "
        f"{format_figure(maxn_j)} J"
    )
    return Decision(predictions.modes[row], f"Best balance: {found} expected.")
