"""A planned round before its requests: goals with what is late, and whether the run's energy budget allows it."""

from __future__ import annotations

import dataclasses

from fedge.decisions.planning import BUDGET_POLICY
from fedge.decisions.planning.front_columns import board_round_energy_j, find_least_energy_point
from fedge.decisions.planning.round_plan import resting_power_w
from fedge.experiment import Experiment
from fedge.telemetry.lateness import deadline_with_grace_s
from fedge.telemetry.store_records import EventRow
from fedge.types import FleetPlan, RoundGoal
from server.state.checkpoint import FleetState, RunState


def complete_goals(experiment: Experiment, plan: FleetPlan, number: int) -> dict[str, RoundGoal]:
    """Return the plan's goals for round ``number``; clients may stop by themselves only if partial work counts."""
    late, left = experiment.late, experiment.rounds - number
    partial = late.action == "partial"
    stop_s = deadline_with_grace_s(late, plan.deadline_s) if partial and plan.deadline_s is not None else None
    return {name: dataclasses.replace(goal, stop_s=stop_s, rounds_left=left) for name, goal in plan.goals.items()}


def find_budget_event(experiment: Experiment, state: RunState, fleet: FleetState, plan: FleetPlan) -> EventRow | None:
    """Return an event if the planned round, with the evaluation due after it, would exceed the energy budget."""
    policy, number = experiment.policy, state.round + 1
    if policy.name != BUDGET_POLICY or policy.budget_j is None:
        return None
    next_j = state.last_j if (planned_j := _planned_energy_j(fleet, plan)) is None else planned_j
    if experiment.evaluation.is_due(number, experiment.rounds):
        next_j += state.evaluation_j
    if plan.goals and state.spent_j + next_j <= policy.budget_j:
        return None
    spent = f"{state.spent_j:.0f} J of {policy.budget_j:.0f} J are spent"
    why = f"round {number} would take {next_j:.0f} J" if plan.goals else "no board can work for the rest"
    return EventRow(fleet.clock_s, round=number, board=None, kind="budget", message=f"{spent}; {why}")


def _planned_energy_j(fleet: FleetState, plan: FleetPlan) -> float | None:
    """Return the expected energy of the planned round in joules, or None if it is unknown.

    If only the deadline is known, it is the energy of the cheapest modes that meet it, and of the boards at rest.
    """
    fronts = [fleet.fronts[name] for name in plan.goals if name in fleet.fronts]
    if plan.energy_j is not None:
        return plan.energy_j
    if plan.deadline_s is None or len(fronts) < len(plan.goals):
        return None
    return resting_power_w(fleet.fronts, list(plan.goals)) * plan.deadline_s + sum(
        front.radio_j + board_round_energy_j(front, find_least_energy_point(front, plan.deadline_s), plan.deadline_s)
        for front in fronts
    )
