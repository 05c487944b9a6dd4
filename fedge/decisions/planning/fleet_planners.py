"""The planners behind the policies: from the boards' fronts and the goal's numbers to one plan for the round.

Symbols: z = Phi^-1(confidence); everything else as in ``deadlines`` and ``capped``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from fedge.decisions.limits import compute_margin_z, format_figure
from fedge.decisions.planning.capped_round import find_shortest_round
from fedge.decisions.planning.deadline_search import DeadlinePlan, find_weighted_deadline, is_deadline_safe
from fedge.decisions.planning.front_columns import FrontColumns, build_columns
from fedge.types import FleetPlan, Front, RoundGoal

TIME_WEIGHT = 0.5
"""The default of ``plan_balanced``."""
MAX_SLOWDOWN = 1.05
"""A round is never planned more than 5 % longer than with every board at MAXN, unless told otherwise. Chosen by us."""
CONFIDENCE = 0.84
"""One standard deviation: a choice of least energy always sits at its limit, so without a margin half would be late."""


def plan_balanced(fronts: Mapping[str, Front], boards: Sequence[str], goal: RoundGoal) -> FleetPlan:
    """Least w D / D_maxn + (1 - w) E(D) / E_maxn with D <= ``max_slowdown`` D_maxn.

    Planned with expected times; each board keeps the deadline with its own margin.
    """
    columns = _select_columns(fronts, boards, 0.0)
    if not columns.boards:
        return _build_bare_plan(boards, goal)
    weight = goal.limits.get("time_weight", TIME_WEIGHT)
    cap_s = goal.limits.get("max_slowdown", MAX_SLOWDOWN) * columns.maxn_round_s
    return _build_plan(
        columns, boards=boards, goal=goal, planned=find_weighted_deadline(columns, weight, cap_s), found="best balance"
    )


def plan_least_energy(fronts: Mapping[str, Front], boards: Sequence[str], goal: RoundGoal) -> FleetPlan:
    """The D of least E(D) up to ``deadline_s``, or up to ``max_slowdown`` (1.05) times D_maxn; both when both are set.

    Every board ends by D with ``confidence`` (0.84). Feasible when a deadline of seconds can be kept so by every board,
    and one relative to MAXN as expected: no board could promise more of itself than MAXN does.
    """
    columns = _select_columns(fronts, boards, _margin_z(goal))
    if not columns.boards:
        return _build_bare_plan(boards, goal)
    own_s, slowdown = goal.limits.get("deadline_s"), goal.limits.get("max_slowdown")
    if own_s is None and slowdown is None:
        slowdown = MAX_SLOWDOWN
    cap_s = min(np.inf if own_s is None else own_s, np.inf if slowdown is None else slowdown * columns.maxn_round_s)
    planned = find_weighted_deadline(columns, 0.0, cap_s)
    feasible = planned.feasible and (own_s is None or is_deadline_safe(columns, own_s))
    return _build_plan(
        columns, boards=boards, goal=goal, planned=dataclasses.replace(planned, feasible=feasible), found="least energy"
    )


def plan_energy_budget(fronts: Mapping[str, Front], boards: Sequence[str], goal: RoundGoal) -> FleetPlan:
    """The D of least cost for what these boards add: of least E(D), or weighed by ``time_weight`` (0).

    Who takes part is decided before (``fedge.decisions.planning.gain_search``). The round is as long as that takes, at
    most
    ``max_slowdown`` D_maxn when given. Not feasible when less than E(D) is left of ``budget_j`` after ``spent_j``; then
    time has no weight any more.
    """
    columns = _select_columns(fronts, boards, _margin_z(goal))
    if not columns.boards:
        return _build_bare_plan(boards, goal)
    left_j = goal.limits.get("budget_j", np.inf) - goal.limits.get("spent_j", 0.0)
    cap_s = goal.limits.get("max_slowdown", np.inf) * columns.maxn_round_s
    planned = find_weighted_deadline(columns, goal.limits.get("time_weight", 0.0), cap_s)
    if planned.energy_j > left_j:
        planned = find_weighted_deadline(columns, 0.0, cap_s)
    affordable = planned.energy_j <= left_j
    planned = dataclasses.replace(planned, feasible=planned.feasible and affordable)
    return _build_plan(
        columns,
        boards=boards,
        goal=goal,
        planned=planned,
        found="least cost" if affordable else "the budget is used up",
    )


def plan_fastest(fronts: Mapping[str, Front], boards: Sequence[str], goal: RoundGoal) -> FleetPlan:
    """The least D whose round keeps ``board_round_energy_j`` joules and ``fleet_power_w`` watts, with ``confidence``
    (0.84).

    Under a cap on the watts every board's share is its goal's ``power_w``; the shares never exceed the cap together. A
    board without a usable front gets an equal share.
    """
    columns = _select_columns(fronts, boards, _margin_z(goal))
    energy_j, power_w = goal.limits.get("round_energy_j"), goal.limits.get("fleet_power_w")
    equal_w = None if power_w is None else power_w / max(1, len(set(boards)))
    if not columns.boards:
        return _set_power_shares(_build_bare_plan(boards, goal), {}, equal_w)
    capped = find_shortest_round(columns, energy_j, None if equal_w is None else equal_w * len(columns))
    planned = DeadlinePlan(capped.deadline_s, capped.energy_j, capped.feasible)
    plan = _build_plan(columns, boards=boards, goal=goal, planned=planned, found="shortest round within the limits")
    return _set_power_shares(plan, dict(zip(columns.boards, capped.shares_w.tolist(), strict=False)), equal_w)


def _margin_z(goal: RoundGoal) -> float:
    return compute_margin_z(goal.limits.get("confidence", CONFIDENCE), "policy.confidence")


def _select_columns(fronts: Mapping[str, Front], boards: Sequence[str], z: float) -> FrontColumns:
    return build_columns({board: fronts[board] for board in boards if board in fronts}, z)


def _build_bare_plan(boards: Sequence[str], goal: RoundGoal) -> FleetPlan:
    """No front to plan from: the bare goal for everybody."""
    return FleetPlan(dict.fromkeys(boards, goal), why="No board's front is known.")


def _build_plan(
    columns: FrontColumns, boards: Sequence[str], goal: RoundGoal, planned: DeadlinePlan, found: str
) -> FleetPlan:
    """Every planned board's goal with the deadline. One that breaks the user's own deadline takes its place."""
    limits = {k: v for k, v in goal.limits.items() if planned.feasible or k != "deadline_s" or v >= planned.deadline_s}
    done = dataclasses.replace(goal, deadline_s=planned.deadline_s, limits=limits)
    known = frozenset(columns.boards)
    maxn_s, maxn_j = columns.maxn_round_s, columns.maxn_energy_j
    why = f"{found}: {format_figure(planned.deadline_s)} s and {format_figure(planned.energy_j)} J"
    against = f"MAXN {format_figure(maxn_s)} s and {format_figure(maxn_j)} J"
    return FleetPlan(
        {board: done if board in known else goal for board in boards},
        deadline_s=planned.deadline_s,
        round_s=planned.deadline_s,
        energy_j=planned.energy_j,
        maxn_round_s=maxn_s,
        maxn_energy_j=maxn_j,
        feasible=planned.feasible,
        why=f"{why[0].upper()}{why[1:]}, {against}.{'' if planned.feasible else ' Not within the limits.'}",
    )


def _set_power_shares(plan: FleetPlan, shares_w: Mapping[str, float], equal_w: float | None) -> FleetPlan:
    """The plan with every board's own limit on its watts, where there is one for the fleet."""
    if equal_w is None:
        return plan
    goals = {
        board: dataclasses.replace(goal, limits={**goal.limits, "power_w": shares_w.get(board, equal_w)})
        for board, goal in plan.goals.items()
    }
    return dataclasses.replace(plan, goals=goals)
