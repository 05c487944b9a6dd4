"""The policy for a deadline: the mode of least energy that ends in time."""

from __future__ import annotations

from fedge.errors import BadInput
from fedge.policies.choice import above_idle_j, best_row, busy_s, deadline_of, figure, margin_z, within
from fedge.types import Decision, DeviceSpec, Front, Goal, Predictions

CONFIDENCE = 0.84
"""One standard deviation: a choice of least energy always sits at its limit, so without a margin half would be late."""


def least_energy_within_deadline(predictions: Predictions, offer: Front, goal: Goal, spec: DeviceSpec) -> Decision:
    """Least joules above idling with l + n t exp(z s_t) <= the deadline; ``limits["confidence"]`` (0.84) gives z.

    The deadline is ``limits["deadline_s"]`` or the round's, whichever is shorter. When no mode keeps it: the fastest
    mode, not feasible.
    """
    deadline_s = deadline_of(goal)
    if deadline_s is None:
        example = "seconds from the round's start, e.g. {name: least-energy-within-deadline, deadline_s: 90}"
        raise BadInput("policy.deadline_s", "nothing", example)
    confidence = goal.limits.get("confidence", CONFIDENCE)
    time_s, energy_j = busy_s(predictions, offer, goal), above_idle_j(predictions, offer, goal)
    cautious_s = busy_s(predictions, offer, goal, margin_z(confidence, "policy.confidence"))
    allowed = within(cautious_s, deadline_s)
    if allowed.any():
        row = best_row(energy_j, time_s, allowed)
        found = f"{figure(time_s[row])} s and {figure(energy_j[row])} J above idling expected"
        why = f"Least energy of {allowed.sum()} modes that end within {figure(deadline_s)} s: {found}."
        return Decision(predictions.modes[row], why)
    row = best_row(time_s, energy_j)
    ends = f"the fastest takes {figure(time_s[row])} s, {figure(cautious_s[row])} s at {confidence:.0%} confidence"
    return Decision(predictions.modes[row], f"No mode ends within {figure(deadline_s)} s; {ends}.", feasible=False)
