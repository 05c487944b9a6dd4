"""The policy for a deadline: the mode of least energy that ends in time."""

from __future__ import annotations

import numpy as np

from fedge.errors import BadInput
from fedge.planning.fleet import CONFIDENCE
from fedge.policies.choice import above_idle_j, best_row, busy_s, deadline_of, figure, margin_z, within
from fedge.policies.splitting import Figures, least_energy
from fedge.types import Decision, DeviceSpec, Front, Goal, Predictions


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
    allowed = within(cautious_s, deadline_s) & np.isfinite(energy_j)
    if allowed.any():
        figures = Figures(predictions.modes, cautious_s, energy_j, time_s, energy_j)
        usable = np.isfinite(cautious_s)
        return least_energy(figures, offer, goal, deadline_s, usable, f"with {confidence:.0%} confidence")
    row = best_row(time_s, energy_j)
    ends = f"the fastest takes {figure(time_s[row])} s, {figure(cautious_s[row])} s at {confidence:.0%} confidence"
    return Decision(predictions.modes[row], f"No mode ends within {figure(deadline_s)} s; {ends}.", feasible=False)
