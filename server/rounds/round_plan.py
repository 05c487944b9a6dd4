"""The goals of a round: the policy's planner applied to the clients' Pareto fronts, and the run's energy budget."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from fedge.decisions.planning import BUDGET_POLICY, load_planner
from fedge.decisions.planning.board_energy import board_round_energy_j, find_least_energy_point
from fedge.experiment import Experiment, PolicySpec
from fedge.telemetry.store_records import EventRow
from fedge.types import FleetPlan, Front, RoundGoal
from server.accounting.lateness import deadline_with_grace_s
from server.state.checkpoint import FleetState, RunState


def plan_round(
    policy: PolicySpec,
    fronts: Mapping[str, Front],
    selected: Sequence[str],
    *,
    deadline_s: float | None = None,
    spent_j: float = 0.0,
) -> FleetPlan:
    """Plan the goals of a round. Pure; clients without a usable front take part without being planned for.

    Args:
        policy: The policy, with its limits and deadline.
        fronts: Pareto front of each client, as far as known.
        selected: The clients of the round.
        deadline_s: The selector's deadline in seconds, which overrides the planner's; None if it sets none.
        spent_j: Energy that the run has used, in joules; passed on in the goals if there is a budget, with the idle
            power of the boards that were not selected (``resting_w``).
    """
    limits = policy.limits
    if policy.budget_j is not None:
        limits = {**limits, "spent_j": spent_j, "resting_w": resting_power_w(fronts, selected)}
    goal = RoundGoal(policy.name, steps=0, deadline_s=None, limits=limits)
    planner = load_planner(policy.name)
    unplanned = FleetPlan(dict.fromkeys(selected, goal), why="Every board decides for itself.")
    plan = unplanned if planner is None else planner(fronts, selected, goal)
    if deadline_s is not None:
        return _with_deadline(plan, deadline_s)
    if plan.deadline_s is None:
        return _with_deadline(plan, policy.deadline_s)
    return _share_deadline(plan, policy.deadline_s if plan.feasible else None)


def resting_power_w(fronts: Mapping[str, Front], selected: Sequence[str]) -> float:
    """Return the idle power of the boards that are not ``selected``, in watts, as far as it is known."""
    working = set(selected)
    return sum(front.idle_w for name, front in fronts.items() if name not in working)


def _with_deadline(plan: FleetPlan, deadline_s: float | None) -> FleetPlan:
    """Set a deadline that was not planned from the fronts, and drop the planner's expectations."""
    goals = {board: dataclasses.replace(goal, deadline_s=deadline_s) for board, goal in plan.goals.items()}
    return dataclasses.replace(plan, goals=goals, deadline_s=deadline_s, round_s=None, energy_j=None)


def _share_deadline(plan: FleetPlan, own_s: float | None) -> FleetPlan:
    """Copy the plan's deadline into every goal; the round's deadline is the shorter of it and the user's."""
    goals = {
        board: goal if goal.deadline_s is not None else dataclasses.replace(goal, deadline_s=plan.deadline_s)
        for board, goal in plan.goals.items()
    }
    shorter_s = min(d for d in (plan.deadline_s, own_s) if d is not None)
    return dataclasses.replace(plan, goals=goals, deadline_s=shorter_s)


def complete_goals(experiment: Experiment, plan: FleetPlan, number: int) -> dict[str, RoundGoal]:
    """Return the plan's goals for round ``number``; clients may stop by themselves only if partial work counts."""
    late, left = experiment.late, experiment.rounds - number
    partial = late.action == "partial"
    stop_s = deadline_with_grace_s(late, plan.deadline_s) if partial and plan.deadline_s is not None else None
    return {name: dataclasses.replace(goal, stop_s=stop_s, rounds_left=left) for name, goal in plan.goals.items()}


def find_budget_event(experiment: Experiment, state: RunState, fleet: FleetState, plan: FleetPlan) -> EventRow | None:
    """Return an event if the planned round would exceed the run's energy budget, else None."""
    policy, number = experiment.policy, state.round + 1
    if policy.name != BUDGET_POLICY or policy.budget_j is None:
        return None
    next_j = state.last_j if (planned_j := _planned_energy_j(fleet, plan)) is None else planned_j
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
