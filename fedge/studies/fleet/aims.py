"""What a policy is judged by: the time and energy that it minimises, and the longest round that it allows."""

from __future__ import annotations

import math

from fedge.experiment import PolicySpec
from fedge.planning.fleet import MAX_SLOWDOWN, TIME_WEIGHT
from fedge.studies.fleet.costs import Spent

ENERGY_POLICIES = ("least-energy", "least-energy-within-deadline", "energy-budget")
TIME_POLICIES = ("fastest", "fastest-within-power")


def objective(policy: PolicySpec, spent: Spent, maxn: Spent) -> float | None:
    """What the policy minimises: w R/R_maxn + (1-w) E/E_maxn, E or R; None where it minimises nothing."""
    known = ("balanced", *ENERGY_POLICIES, *TIME_POLICIES)
    return aim(policy, spent, maxn) if policy.name in known else None


def aim(policy: PolicySpec, spent: Spent, maxn: Spent) -> float:
    """The policy's objective, and the balance of time and energy where it has none of its own."""
    if policy.name in ENERGY_POLICIES:
        return spent.energy_j
    if policy.name in TIME_POLICIES:
        return spent.round_s
    weight = TIME_WEIGHT if policy.time_weight is None else policy.time_weight
    return weight * spent.round_s / maxn.round_s + (1.0 - weight) * spent.energy_j / maxn.energy_j


def longest_s(policy: PolicySpec, maxn_s: float) -> float:
    """The longest round that the policy allows; ``maxn_s`` is its length at MAXN."""
    slowdown_s = maxn_s * (MAX_SLOWDOWN if policy.max_slowdown is None else policy.max_slowdown)
    return min(slowdown_s, math.inf if policy.deadline_s is None else policy.deadline_s)
