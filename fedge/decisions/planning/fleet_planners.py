"""The planners behind the policies: from the boards' fronts and the goal's numbers to one plan for the round.

Symbols: z = Phi^-1(confidence), D deadline, E(D) the fleet's least energy of a round until D, P(D) the least sum over
the boards of the power of a point within reach at D (all boards work at the same time), E_cap and P_cap the limits of
the shortest round; everything else as in ``cost_sweep``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.decisions.limits import LIMIT_ROUNDING, compute_margin_z, format_figure
from fedge.decisions.planning.cost_sweep import (
    DeadlinePlan,
    build_cost_steps,
    choose_points,
    find_fastest_points,
    find_first_within,
    find_least,
    find_weighted_deadline,
    is_deadline_safe,
)
from fedge.decisions.planning.front_columns import FrontColumns, Ints, build_columns, running_minimum
from fedge.types import FleetPlan, Floats, Front, RoundGoal

PRICES = 4.0 ** np.arange(-4, 5)
"""Prices of a joule against a watt when both are limited, in units of the columns' medians: a default grid.

Each price costs one sweep; a finer grid can find a slightly shorter round.
"""


@dataclass(frozen=True, slots=True, eq=False)
class CappedRound:
    """A round under caps.

    Attributes:
        deadline_s: Length of the round in seconds.
        energy_j: Sum of every board's least energy within its share of the power, in joules.
        feasible: Whether the caps hold.
        shares_w: Every board's share of the power cap in watts, shape (boards,); empty without a power cap.
    """

    deadline_s: float
    energy_j: float
    feasible: bool
    shares_w: Floats


def find_shortest_round(columns: FrontColumns, energy_cap_j: float | None, power_cap_w: float | None) -> CappedRound:
    """Return the shortest round that keeps the caps, or, if none does, the nearest one, marked as not feasible.

    Exact with one cap: E(D) <= E_cap or P(D) <= P_cap first holds where a point comes within reach. With both, boards
    have to trade power for energy, which is a knapsack problem: the answer keeps both caps and is the shortest that one
    price per joule for the whole fleet can reach, over a ladder of prices; it is exact if it meets the longer of the
    two single answers. One cap costs O(m) and a sort of few points; both cost up to ten sweeps.

    Args:
        columns: The boards' fronts.
        energy_cap_j: Cap on the fleet's energy in the round, in joules; None for no cap.
        power_cap_w: Cap on the fleet's power, in watts; None for no cap.
    """
    if power_cap_w is None:
        return _solve_energy_cap(columns, np.inf if energy_cap_j is None else energy_cap_j)
    by_power = _solve_power_cap(columns, power_cap_w)
    if energy_cap_j is None or not by_power.feasible:
        return by_power
    by_energy = _solve_energy_cap(columns, energy_cap_j)
    if not by_energy.feasible:
        return dataclasses.replace(by_power, feasible=False)
    earliest_s = max(by_power.deadline_s, by_energy.deadline_s)
    found = _solve_both_caps(columns, energy_cap_j, power_cap_w, earliest_s)
    return dataclasses.replace(by_power, feasible=False) if found is None else found


def split_power_cap(power_w: Floats, cap_w: float) -> Floats:
    """Split ``cap_w`` watts over the boards in proportion to their planned power ``power_w``; shape (boards,)."""
    total_w = float(power_w.sum())
    shares: Floats = power_w * (cap_w / total_w) if total_w > 0 else np.full(len(power_w), cap_w / max(1, len(power_w)))
    return shares


def _solve_energy_cap(columns: FrontColumns, cap_j: float) -> CappedRound:
    steps = build_cost_steps(columns, columns.above_idle_j, float(columns.idle_w.sum()))
    deadline_s = find_first_within(steps, cap_j)
    best_s = find_least(steps)[0] if deadline_s is None else deadline_s
    return CappedRound(best_s, steps.evaluate(best_s), deadline_s is not None, np.zeros(0))


def _solve_power_cap(columns: FrontColumns, cap_w: float) -> CappedRound:
    begin = find_fastest_points(columns)
    steps = build_cost_steps(columns, columns.power_w, 0.0, begin=begin)
    deadline_s = find_first_within(steps, cap_w)
    best_s = find_least(steps)[0] if deadline_s is None else deadline_s
    points = choose_points(columns, columns.power_w, best_s, begin.points)
    return _build_capped_round(columns, deadline_s=best_s, planned=points, cap_w=cap_w, feasible=deadline_s is not None)


def _build_capped_round(
    columns: FrontColumns, deadline_s: float, planned: Ints, cap_w: float, feasible: bool
) -> CappedRound:
    """Build the round in which every board uses least energy within its share; shares follow the planned points."""
    shares_w = split_power_cap(columns.power_w[planned], cap_w)
    fits = columns.power_w <= np.repeat(shares_w * (1.0 + LIMIT_ROUNDING), columns.counts)
    points = choose_points(columns, np.where(fits, columns.above_idle_j, np.inf), deadline_s, planned)
    energy_j = columns.above_idle_j[points].sum() + columns.idle_w.sum() * deadline_s
    return CappedRound(deadline_s, float(energy_j), feasible, shares_w)


def _solve_both_caps(
    columns: FrontColumns, energy_cap_j: float, power_cap_w: float, from_s: float
) -> CappedRound | None:
    """Return the shortest round found that keeps both caps; none can be shorter than ``from_s``."""
    for cost in (columns.power_w, columns.above_idle_j):
        points = choose_points(columns, cost, from_s)
        if columns.power_w[points].sum() <= power_cap_w * (1.0 + LIMIT_ROUNDING):
            found = _build_capped_round(columns, from_s, points, power_cap_w, feasible=True)
            if found.energy_j <= energy_cap_j * (1.0 + LIMIT_ROUNDING):
                return found
    best = _try_maxn(columns, energy_cap_j, power_cap_w)
    unit = float(np.median(columns.power_w)) / max(float(np.median(np.abs(columns.above_idle_j))), 1e-12)
    for price in PRICES * unit:
        cap_s = np.inf if best is None else best.deadline_s
        found_at = _find_first_feasible(
            columns,
            cost=columns.power_w + price * columns.above_idle_j,
            energy_cap_j=energy_cap_j,
            power_cap_w=power_cap_w,
            cap_s=cap_s,
        )
        if found_at is not None and found_at[0] < cap_s:
            best = _build_capped_round(columns, *found_at, power_cap_w, feasible=True)
    return best


def _try_maxn(columns: FrontColumns, energy_cap_j: float, power_cap_w: float) -> CappedRound | None:
    """Return the round with every board at MAXN if it keeps both caps."""
    deadline_s, power_w = float(columns.maxn_safe_s.max()), columns.maxn_work_j / columns.maxn_work_s
    above_j = columns.radio_j + columns.maxn_work_j - columns.idle_w * columns.maxn_work_s
    energy_j = above_j.sum() + columns.idle_w.sum() * deadline_s
    if energy_j > energy_cap_j or power_w.sum() > power_cap_w:
        return None
    return CappedRound(deadline_s, float(energy_j), True, split_power_cap(power_w, power_cap_w))


def _find_first_feasible(
    columns: FrontColumns, cost: Floats, energy_cap_j: float, power_cap_w: float, cap_s: float
) -> tuple[float, Ints] | None:
    """Return the least D below ``cap_s`` at which the points of least ``cost`` keep both caps, and these points."""
    begin, opening = find_fastest_points(columns), columns.offsets[:-1]
    floor_s, best = float(begin.from_s.max()), _running_argmin(cost, columns)
    earlier = np.roll(best, 1)
    earlier[opening] = begin.points
    reached = columns.safe_ends_s <= floor_s
    later = np.flatnonzero(~reached & (best != earlier) & (columns.safe_ends_s < cap_s))
    later = later[np.argsort(columns.safe_ends_s[later], kind="stable")]
    at_s = np.concatenate([[floor_s], columns.safe_ends_s[later]])

    def total(values: Floats) -> Floats:
        change = values[best] - values[earlier]
        start = values[begin.points].sum() + change[reached].sum()
        sums: Floats = start + np.concatenate([[0.0], np.cumsum(change[later])])
        return sums

    energy_j = total(columns.above_idle_j) + columns.idle_w.sum() * at_s
    kept = _mask_within_cap(energy_j, energy_cap_j) & _mask_within_cap(total(columns.power_w), power_cap_w)
    kept &= np.append(at_s[1:] != at_s[:-1], np.True_) & (at_s < cap_s)
    if not kept.any():
        return None
    deadline_s = float(at_s[np.argmax(kept)])
    return deadline_s, choose_points(columns, cost, deadline_s)


def _mask_within_cap(values: Floats, cap: float) -> NDArray[np.bool_]:
    return values <= cap * (1.0 + LIMIT_ROUNDING)


def _running_argmin(cost: Floats, columns: FrontColumns) -> Ints:
    """Return the index of each running minimum within its board, the first of equal ones."""
    lowest = running_minimum(cost, columns.offsets)
    new = np.append(np.True_, lowest[1:] < lowest[:-1])
    new[columns.offsets[:-1]] = True
    marks: Ints = np.maximum.accumulate(np.where(new, np.arange(len(cost)), 0))
    return marks


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
