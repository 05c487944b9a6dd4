"""The fleet planner, from every board's front to one plan for the round: the table of planners and its look-up."""

from __future__ import annotations

from fedge.protocols import Planner
from fedge.registry import load_named

BUDGET_POLICY = "energy-budget"
"""The policy with an energy budget for the whole run, which ends before the round that would exceed ``budget_j``."""
JOINT_POLICY = "joint"
"""The policy whose plan also sets each client's steps, encoding and participation."""
PINNED_POLICIES = ("maxn", "preset")
"""Policies under which a board does not choose its mode: it is counted as at MAXN, and fits its predictor once."""
PLANNERS = {
    "balanced": "fedge.decisions.planning.fleet_planners:plan_balanced",
    "least-energy": "fedge.decisions.planning.fleet_planners:plan_least_energy",
    BUDGET_POLICY: "fedge.decisions.planning.fleet_planners:plan_energy_budget",
    JOINT_POLICY: "fedge.decisions.planning.joint_planner:plan_joint",
    "fastest": "fedge.decisions.planning.fleet_planners:plan_fastest",
}
"""The planner of each policy's rounds, by policy name. Rounds of all other policies are not planned."""


def is_pinned(policy: str) -> bool:
    """Return whether a policy, by its full name such as ``preset:15W``, is one of ``PINNED_POLICIES``."""
    return policy.partition(":")[0] in PINNED_POLICIES


def load_planner(policy: str) -> Planner | None:
    """Return the planner of the rounds of ``policy``, or None if every board decides for itself."""
    if policy not in PLANNERS:
        return None
    planner: Planner = load_named("policy", policy, PLANNERS)
    return planner
