"""The fleet planner, from every board's front to one plan for the round, pure and exact: its name table and look-up."""

from __future__ import annotations

from fedge.interfaces import Planner
from fedge.registry import load

PLANNERS = {
    "balanced": "fedge.planning.fleet:balanced",
    "least-energy": "fedge.planning.fleet:least_energy",
    "energy-budget": "fedge.planning.fleet:energy_budget",
    "fastest": "fedge.planning.fleet:fastest",
}
"""A policy's name -> the planner of its rounds. Every other policy's rounds are not planned."""


def planner_for(policy: str) -> Planner | None:
    """The planner of the rounds of ``policy``; None where every board decides for itself."""
    if policy not in PLANNERS:
        return None
    planner: Planner = load("policy", policy, PLANNERS)
    return planner
