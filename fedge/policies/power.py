"""The policy for a power limit: the fastest mode whose module power stays within it."""

from __future__ import annotations

from fedge.choice.objectives import fastest_within_power as choose
from fedge.choice.picking import cautious
from fedge.errors import BadInput
from fedge.policies.choice import busy_s, figure, margin_z, within
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
    z = margin_z(confidence, "policy.confidence")
    choice = choose(predictions, limit_w, z)
    mode, time_s = predictions.modes[choice.row], busy_s(predictions, offer, goal)[choice.row]
    power_w = cautious(predictions.power_w, predictions.power_w_sd_log, z)
    at = "" if confidence == 0.5 else f" at {confidence:.0%} confidence"
    if not choice.feasible:
        lowest = f"the lowest is {figure(power_w[choice.row])} W"
        return Decision(mode, f"No mode stays within {figure(limit_w)} W{at}; {lowest}.", feasible=False)
    found = f"Fastest of {within(power_w, limit_w).sum()} modes within {figure(limit_w)} W"
    return Decision(mode, f"{found}: {figure(power_w[choice.row])} W{at}, {figure(time_s)} s.")
