"""The fleet planner, from every board's front to one plan for the round, pure and exact: its name table and look-up."""

from __future__ import annotations

from fedge.protocols import Planner
from fedge.registry import load_named

BUDGET_POLICY = "energy-budget"
"""The policy of a budget for the whole run: it ends before the round that would exceed ``budget_j``."""
PINNED_POLICIES = ("maxn", "preset")
"""Policies under which a board does not choose its mode: it is counted as at MAXN."""
PLANNERS = {
    "balanced": "fedge.decisions.planning.fleet_planners:plan_balanced",
    "least-energy": "fedge.decisions.planning.fleet_planners:plan_least_energy",
    BUDGET_POLICY: "fedge.decisions.planning.fleet_planners:plan_energy_budget",
    "fastest": "fedge.decisions.planning.fleet_planners:plan_fastest",
}
"""A policy's name -> the planner of its rounds. Every other policy's rounds are not planned."""


def load_planner(policy: str) -> Planner | None:
    """The planner of the rounds of ``policy``; None where every board decides for itself."""
    if policy not in PLANNERS:
        return None
    planner: Planner = load_named("policy", policy, PLANNERS)
    return planner
