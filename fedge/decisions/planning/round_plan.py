"""The goals of a round: the policy's planner applied to the clients' Pareto fronts. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from fedge.decisions.planning import JOINT_POLICY, load_planner
from fedge.decisions.planning.joint_planner import PLAIN_CONTEXT, JointContext, plan_joint
from fedge.experiment import PolicySpec
from fedge.types import FleetPlan, Front, RoundGoal


def plan_round(
    policy: PolicySpec,
    fronts: Mapping[str, Front],
    selected: Sequence[str],
    *,
    deadline_s: float | None = None,
    spent_j: float = 0.0,
    context: JointContext = PLAIN_CONTEXT,
    shares: Mapping[str, float] | None = None,
) -> FleetPlan:
    """Plan the goals of a round. Pure; clients without a usable front take part without being planned for.

    Args:
        policy: The policy, with its limits and deadline.
        fronts: Pareto front of each client, as far as known.
        selected: The clients of the round.
        deadline_s: The selector's deadline in seconds, which overrides the planner's, except that ``joint`` plans
            within it; None if it sets none.
        spent_j: Energy that the run has used, in joules; passed on in the goals if there is a budget, with the idle
            power of the boards that were not selected (``resting_w``).
        context: What the policy ``joint`` knows beyond the fronts.
        shares: The selector's shares of the steps, for rounds without a planner.
    """
    limits, own_s = policy.limits, policy.deadline_s
    if policy.name == JOINT_POLICY and deadline_s is not None:
        # The clients' steps fit the planned deadline only, so it cannot be replaced afterwards.
        own_s = deadline_s if own_s is None else min(deadline_s, own_s)
        limits, deadline_s = {**limits, "deadline_s": own_s}, None
    if policy.budget_j is not None:
        limits = {**limits, "spent_j": spent_j}
    if policy.budget_j is not None or policy.name == JOINT_POLICY:
        limits = {**limits, "resting_w": resting_power_w(fronts, selected)}
    goal = RoundGoal(policy.name, steps=0, deadline_s=None, limits=limits)
    planner = load_planner(policy.name)
    own = {board: dataclasses.replace(goal, share=(shares or {}).get(board, 1.0)) for board in selected}
    unplanned = FleetPlan(own, why="Every board decides for itself.")
    if policy.name == JOINT_POLICY:
        plan = plan_joint(fronts, selected, goal, context)
    else:
        plan = unplanned if planner is None else planner(fronts, selected, goal)
    if deadline_s is not None:
        return _with_deadline(plan, deadline_s)
    if plan.deadline_s is None:
        return _with_deadline(plan, own_s)
    return _share_deadline(plan, own_s if plan.feasible else None)


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
