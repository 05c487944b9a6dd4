"""The fleet planner, from every board's front to one plan for the round, pure and exact: its name table and look-up."""

from __future__ import annotations

from fedge.interfaces import Planner
from fedge.registry import load

BUDGETED = "energy-budget"
"""The policy of a budget for the whole run: it ends before the round that would exceed ``budget_j``."""
PINNED = ("maxn", "preset")
"""Policies under which a board does not choose its mode: it is counted as at MAXN."""
PLANNERS = {
    "balanced": "fedge.planning.fleet:balanced",
    "least-energy": "fedge.planning.fleet:least_energy",
    BUDGETED: "fedge.planning.fleet:energy_budget",
    "fastest": "fedge.planning.fleet:fastest",
}
"""A policy's name -> the planner of its rounds. Every other policy's rounds are not planned."""


def planner_for(policy: str) -> Planner | None:
    """The planner of the rounds of ``policy``; None where every board decides for itself."""
    if policy not in PLANNERS:
        return None
    planner: Planner = load("policy", policy, PLANNERS)
    return planner
