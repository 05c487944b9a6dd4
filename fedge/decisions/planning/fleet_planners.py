"""The planners behind the policies: from the boards' fronts and the goal's numbers to one plan for the round.

Symbols: z = Phi^-1(confidence); everything else as in ``deadline_search`` and ``capped_round``.
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
"""Default weight of time in ``plan_balanced``: time and energy count the same."""
MAX_SLOWDOWN = 1.05
"""Default limit on a round's length relative to all boards at MAXN; a larger one saves more energy per round."""
CONFIDENCE = 0.84
"""One standard deviation: a choice of least energy always sits at its limit, so without a margin half would be late."""


def plan_balanced(fronts: Mapping[str, Front], boards: Sequence[str], goal: RoundGoal) -> FleetPlan:
    """Plan the deadline of least w D / D_maxn + (1 - w) E(D) / E_maxn with D <= ``max_slowdown`` D_maxn.

    The plan uses expected times; each board meets the deadline with its own margin.

    Args:
        fronts: The known fronts by board.
        boards: The boards of the round.
        goal: The round's goal; its limits may hold ``time_weight`` (0.5) and ``max_slowdown`` (1.05).
    """
    columns = _select_columns(fronts, boards, 0.0)
    if not columns.boards:
        return _build_bare_plan(boards, goal)
    return _build_plan(
        columns, boards=boards, goal=goal, planned=find_balanced_deadline(columns, goal.limits), found="best balance"
    )


def find_balanced_deadline(columns: FrontColumns, limits: Mapping[str, float]) -> DeadlinePlan:
    """Return the deadline of ``plan_balanced`` for columns without a margin."""
    cap_s = limits.get("max_slowdown", MAX_SLOWDOWN) * columns.maxn_round_s
    return find_weighted_deadline(columns, limits.get("time_weight", TIME_WEIGHT), cap_s)


def plan_least_energy(fronts: Mapping[str, Front], boards: Sequence[str], goal: RoundGoal) -> FleetPlan:
    """Plan the deadline of least E(D).

    Args:
        fronts: The known fronts by board.
        boards: The boards of the round.
        goal: The round's goal; its limits may hold ``deadline_s``, ``max_slowdown`` (1.05 if neither is given, relative
            to D_maxn) and ``confidence`` (0.84).

    Returns:
        The plan. It is feasible if every board meets ``deadline_s`` with the confidence, and the limit relative to MAXN
        as expected, since no board could promise more than its own MAXN.
    """
    columns = _select_columns(fronts, boards, _margin_z(goal))
    if not columns.boards:
        return _build_bare_plan(boards, goal)
    planned = find_least_energy_deadline(columns, goal.limits)
    return _build_plan(columns, boards=boards, goal=goal, planned=planned, found="least energy")


def find_least_energy_deadline(columns: FrontColumns, limits: Mapping[str, float]) -> DeadlinePlan:
    """Return the deadline of ``plan_least_energy`` for columns with the margin of ``confidence``."""
    own_s, slowdown = limits.get("deadline_s"), limits.get("max_slowdown")
    if own_s is None and slowdown is None:
        slowdown = MAX_SLOWDOWN
    cap_s = min(np.inf if own_s is None else own_s, np.inf if slowdown is None else slowdown * columns.maxn_round_s)
    planned = find_weighted_deadline(columns, 0.0, cap_s)
    feasible = planned.feasible and (own_s is None or is_deadline_safe(columns, own_s))
    return dataclasses.replace(planned, feasible=feasible)


def plan_energy_budget(fronts: Mapping[str, Front], boards: Sequence[str], goal: RoundGoal) -> FleetPlan:
    """Plan the deadline of least E(D) of these boards, or of the best weighting with ``time_weight``.

    The boards are chosen before (``fedge.decisions.planning.gain_search``).

    Args:
        fronts: The known fronts by board.
        boards: The boards of the round.
        goal: The round's goal; its limits may hold ``budget_j`` and ``spent_j`` of the whole run, ``resting_w`` (idle
            power of the other boards, which counts against the budget), ``time_weight`` (0), ``max_slowdown`` (no
            limit) and ``confidence`` (0.84).

    Returns:
        The plan. It is not feasible, and ignores time, if the round needs more than what is left of the budget.
    """
    columns = _select_columns(fronts, boards, _margin_z(goal))
    if not columns.boards:
        return _build_bare_plan(boards, goal)
    left_j = goal.limits.get("budget_j", np.inf) - goal.limits.get("spent_j", 0.0)
    cap_s = goal.limits.get("max_slowdown", np.inf) * columns.maxn_round_s
    resting_w = goal.limits.get("resting_w", 0.0)
    planned = find_weighted_deadline(columns, goal.limits.get("time_weight", 0.0), cap_s, resting_w)
    if planned.energy_j > left_j:
        planned = find_weighted_deadline(columns, 0.0, cap_s, resting_w)
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
    """Plan the shortest round within ``round_energy_j`` joules and ``fleet_power_w`` watts, with ``confidence`` (0.84).

    Under a power cap every board's share becomes its goal's ``power_w``; the shares never exceed the cap together. A
    board without a usable front gets an equal share.
    """
    columns = _select_columns(fronts, boards, _margin_z(goal))
    energy_j = goal.limits.get("round_energy_j")
    equal_w = find_equal_share_w(boards, goal)
    if not columns.boards:
        return set_power_shares(_build_bare_plan(boards, goal), {}, equal_w)
    capped = find_shortest_round(columns, energy_j, None if equal_w is None else equal_w * len(columns))
    planned = DeadlinePlan(capped.deadline_s, capped.energy_j, capped.feasible)
    plan = _build_plan(columns, boards=boards, goal=goal, planned=planned, found="shortest round within the limits")
    return set_power_shares(plan, dict(zip(columns.boards, capped.shares_w.tolist(), strict=False)), equal_w)


def find_equal_share_w(boards: Sequence[str], goal: RoundGoal) -> float | None:
    """Return a board's equal share of ``fleet_power_w`` in watts; None without that limit."""
    power_w = goal.limits.get("fleet_power_w")
    return None if power_w is None else power_w / max(1, len(set(boards)))


def set_deadline(goal: RoundGoal, deadline_s: float, is_kept: bool) -> RoundGoal:
    """Return the goal with a planned deadline; one of the user's that is not kept and shorter is left out."""
    limits = {k: v for k, v in goal.limits.items() if is_kept or k != "deadline_s" or v >= deadline_s}
    return dataclasses.replace(goal, deadline_s=deadline_s, limits=limits)


def set_power_shares(plan: FleetPlan, shares_w: Mapping[str, float], equal_w: float | None) -> FleetPlan:
    """Return the plan with every board's own power limit, if the fleet has one."""
    if equal_w is None:
        return plan
    goals = {
        board: dataclasses.replace(goal, limits={**goal.limits, "power_w": shares_w.get(board, equal_w)})
        for board, goal in plan.goals.items()
    }
    return dataclasses.replace(plan, goals=goals)


def _margin_z(goal: RoundGoal) -> float:
    return compute_margin_z(goal.limits.get("confidence", CONFIDENCE), "policy.confidence")


def _select_columns(fronts: Mapping[str, Front], boards: Sequence[str], z: float) -> FrontColumns:
    return build_columns({board: fronts[board] for board in boards if board in fronts}, z)


def _build_bare_plan(boards: Sequence[str], goal: RoundGoal) -> FleetPlan:
    """Return the plan without a deadline, for when no front is known."""
    return FleetPlan(dict.fromkeys(boards, goal), why="No board's front is known.")


def _build_plan(
    columns: FrontColumns, boards: Sequence[str], goal: RoundGoal, planned: DeadlinePlan, found: str
) -> FleetPlan:
    """Give every planned board the deadline; if it breaks the user's own deadline, it replaces that."""
    done = set_deadline(goal, planned.deadline_s, planned.feasible)
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
