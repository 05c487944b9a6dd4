"""Policies with a limit of the user: least energy within a deadline, and the fastest mode within a power limit."""

from __future__ import annotations

import numpy as np

from fedge.decisions.limits import add_margin, compute_margin_z, find_best_row, format_figure, mask_within
from fedge.decisions.mode_objectives import find_fastest_within_power as choose
from fedge.decisions.planning.fleet_planners import CONFIDENCE
from fedge.decisions.policies.mode_costs import compute_above_idle_j, compute_busy_s, effective_deadline_s
from fedge.decisions.policies.split_decision import ModeFigures, decide_least_energy
from fedge.errors import BadInput
from fedge.types import Decision, DeviceSpec, Front, Predictions, RoundGoal


def choose_least_energy_within_deadline(
    predictions: Predictions, offer: Front, goal: RoundGoal, spec: DeviceSpec
) -> Decision:
    """Choose least energy above idling with l + n t exp(z s_t) <= the deadline.

    Args:
        predictions: One row per mode.
        offer: The board's front, for its link time l and idle power.
        goal: The round's goal; the deadline is the shorter of ``limits["deadline_s"]`` and the round's, and
            ``limits["confidence"]`` (0.84) gives z.
        spec: The board's specification (unused).

    Returns:
        The decision; if no mode ends in time, the fastest mode, marked as not feasible.

    Raises:
        BadInput: If there is no deadline.
    """
    deadline_s = effective_deadline_s(goal)
    if deadline_s is None:
        example = "seconds from the round's start, e.g. {name: least-energy-within-deadline, deadline_s: 90}"
        raise BadInput("policy.deadline_s", "nothing", example)
    confidence = goal.limits.get("confidence", CONFIDENCE)
    time_s, energy_j = compute_busy_s(predictions, offer, goal), compute_above_idle_j(predictions, offer, goal)
    cautious_s = compute_busy_s(predictions, offer, goal, compute_margin_z(confidence, "policy.confidence"))
    allowed = mask_within(cautious_s, deadline_s) & np.isfinite(energy_j)
    if allowed.any():
        figures = ModeFigures(
            predictions.modes, safe_s=cautious_s, safe_j=energy_j, expected_s=time_s, expected_j=energy_j
        )
        usable = np.isfinite(cautious_s)
        return decide_least_energy(
            figures,
            offer=offer,
            goal=goal,
            deadline_s=deadline_s,
            usable=usable,
            margin=f"with {confidence:.0%} confidence",
        )
    row = find_best_row(time_s, energy_j)
    ends = (
        f"the fastest takes {format_figure(time_s[row])} s, {format_figure(cautious_s[row])} s at "
        f"{confidence:.0%} confidence"
    )
    return Decision(
        predictions.modes[row], f"No mode ends within {format_figure(deadline_s)} s; {ends}.", feasible=False
    )


def choose_fastest_within_power(predictions: Predictions, offer: Front, goal: RoundGoal, spec: DeviceSpec) -> Decision:
    """Choose the fastest mode with p exp(z s_p) <= ``limits["power_w"]``, in watts of the whole module.

    Args:
        predictions: One row per mode.
        offer: The board's front, for its link time.
        goal: The round's goal; ``limits["confidence"]`` (0.5: no margin) gives z.
        spec: The board's specification (unused).

    Returns:
        The decision; if no mode keeps the limit, the mode of least power, marked as not feasible.

    Raises:
        BadInput: If ``limits["power_w"]`` is missing.
    """
    if "power_w" not in goal.limits:
        raise BadInput(
            "policy.power_w", "nothing", "the module's watts, e.g. {name: fastest-within-power, power_w: 20}"
        )
    limit_w = goal.limits["power_w"]
    confidence = goal.limits.get("confidence", 0.5)
    z = compute_margin_z(confidence, "policy.confidence")
    choice = choose(predictions, limit_w, z)
    mode, time_s = predictions.modes[choice.row], compute_busy_s(predictions, offer, goal)[choice.row]
    power_w = add_margin(predictions.power_w, predictions.power_w_sd_log, z)
    at = "" if confidence == 0.5 else f" at {confidence:.0%} confidence"
    if not choice.feasible:
        lowest = f"the lowest is {format_figure(power_w[choice.row])} W"
        return Decision(mode, f"No mode stays within {format_figure(limit_w)} W{at}; {lowest}.", feasible=False)
    found = f"Fastest of {mask_within(power_w, limit_w).sum()} modes within {format_figure(limit_w)} W"
    return Decision(mode, f"{found}: {format_figure(power_w[choice.row])} W{at}, {format_figure(time_s)} s.")
