"""The policy for a power limit: the fastest mode whose module power stays within it."""

from __future__ import annotations

import numpy as np

from fedge.errors import BadInput
from fedge.policies.choice import best_row, busy_s, figure, margin_z, within
from fedge.types import Decision, DeviceSpec, Front, Goal, Predictions


def fastest_within_power(predictions: Predictions, offer: Front, goal: Goal, spec: DeviceSpec) -> Decision:
    """Least n t with p exp(z s_p) <= ``limits["power_w"]``; ``limits["confidence"]`` (0.5: no margin) gives z.

    The limit is of the whole module. When no mode keeps it: the mode of least power, not feasible.
    """
    if "power_w" not in goal.limits:
        raise BadInput(
            "policy.power_w", "nothing", "the module's watts, e.g. {name: fastest-within-power, power_w: 20}"
        )
    limit_w = goal.limits["power_w"]
    confidence = goal.limits.get("confidence", 0.5)
    time_s = busy_s(predictions, offer, goal)
    power_w = predictions.power_w * np.exp(margin_z(confidence) * predictions.power_w_sd_log)
    allowed = within(power_w, limit_w)
    at = "" if confidence == 0.5 else f" at {confidence:.0%} confidence"
    if not allowed.any():
        row = best_row(power_w, time_s)
        why = f"No mode stays within {figure(limit_w)} W{at}; the lowest is {figure(power_w[row])} W."
        return Decision(predictions.modes[row], why, feasible=False)
    row = best_row(time_s, power_w, allowed)
    drawn = f"{figure(power_w[row])} W{at}, {figure(time_s[row])} s"
    return Decision(predictions.modes[row], f"Fastest of {allowed.sum()} modes within {figure(limit_w)} W: {drawn}.")
