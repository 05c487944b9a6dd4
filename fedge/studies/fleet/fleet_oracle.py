"""The oracle: deadlines planned from the true fronts, every board at least energy within its own, in one or two modes.

Like the boards it may change the mode once within a round and pays ``MODE_SWITCH_S`` for it. It is never understated:
its steps are counted in halves, so that the warm-up may fall into either mode, and the change is priced at the least
power of its modes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedge import pareto
from fedge.decisions.candidate_modes import mask_above_floor
from fedge.decisions.limits import LIMIT_ROUNDING
from fedge.decisions.mode_mix import find_best_split
from fedge.decisions.planning import load_planner
from fedge.decisions.planning.front_columns import find_least_energy_point
from fedge.devices.emulated_board import MODE_SWITCH_S, WARM_UP_STEPS
from fedge.experiment import PolicySpec
from fedge.studies.fleet.fleet_costs import BoardTruth, FleetCost
from fedge.types import Front, FrontPoint, Predictions, RoundGoal

PIECES_PER_STEP = 2
"""Number of parts of a step that can be assigned to modes separately: the warm-up is worth one and a half steps."""


@dataclass(frozen=True, slots=True)
class BoardWork:
    """Time in seconds and energy in joules of a board's whole work of a round."""

    work_s: float
    work_j: float


def filter_plausible_points(told: Front, truth: BoardTruth) -> Front:
    """Return a board's true front without implausible modes; MAXN always stays available."""
    if truth.plausible.all():
        return told
    keep = truth.plausible & mask_above_floor(truth.surface.modes)
    keep[truth.surface.find_row(told.maxn.mode)] = True
    kept = truth.surface.select_rows(keep)
    warm, none = (truth.steps + WARM_UP_STEPS) / truth.steps, np.zeros(len(kept.modes))
    known = Predictions(
        kept.modes, step_s=kept.step_s * warm, power_w=kept.power_w, step_s_sd_log=none, power_w_sd_log=none
    )
    return pareto.build_front(
        known,
        steps=truth.steps,
        idle_w=told.idle_w,
        link_s=told.link_s,
        maxn=told.maxn.mode,
        maxn_idle_w=told.maxn_idle_w,
        radio_j=told.radio_j,
        limit=None,
    )


def plan_oracle_work(
    fronts: Mapping[str, Front], steps: Mapping[str, int], policy: PolicySpec, else_s: float
) -> dict[str, BoardWork]:
    """Return every board's work of least energy within its goal, as the policy's planner sets it from these fronts.

    Args:
        fronts: The boards' true fronts.
        steps: The boards' steps without the warm-up.
        policy: The policy whose planner sets the goals.
        else_s: The deadline in seconds if none is planned.
    """
    goals, _ = _plan_goals(fronts, policy)
    found = {}
    for board, front in fronts.items():
        own = goals[board]
        within = dataclasses.replace(front, points=_select_points_within_power(front, own) or front.points)
        found[board] = find_least_energy_work(
            within, steps[board], else_s if own.deadline_s is None else own.deadline_s
        )
    return found


def can_keep_limits(fronts: Mapping[str, Front], policy: PolicySpec) -> bool:
    """Return whether a plan from these fronts keeps the policy's limits, and every board its share of the power."""
    goals, feasible = _plan_goals(fronts, policy)
    return feasible and all(
        _select_points_within_power(front, goals[board]) for board, front in fronts.items() if front.points
    )


def _plan_goals(fronts: Mapping[str, Front], policy: PolicySpec) -> tuple[dict[str, RoundGoal], bool]:
    """Return every board's goal as the policy's planner sets it, and whether the plan is feasible."""
    planner, goal = load_planner(policy.name), RoundGoal(policy.name, 0, policy.deadline_s, policy.limits)
    if planner is None:
        return dict.fromkeys(fronts, goal), True
    plan = planner(fronts, tuple(fronts), goal)
    return {board: plan.goals.get(board, goal) for board in fronts}, plan.feasible


def _select_points_within_power(front: Front, goal: RoundGoal) -> tuple[FrontPoint, ...]:
    """Return the points that draw no more than the board's share of the power."""
    power_w = goal.limits.get("power_w", math.inf) * (1.0 + LIMIT_ROUNDING)
    return tuple(point for point in front.points if point.work_j <= power_w * point.work_s)


def find_least_energy_work(front: Front, steps: int, deadline_s: float) -> BoardWork:
    """Return the work of least energy above idling that ends by ``deadline_s``, in one mode of ``front`` or in two.

    Exact for ``PIECES_PER_STEP`` parts of a step. If no point ends in time, the fastest point is returned.
    """
    points = front.points or (front.maxn,)
    pieces = PIECES_PER_STEP * (steps + WARM_UP_STEPS)
    work_s, work_j = (np.array([getattr(point, name) for point in points]) for name in ("work_s", "work_j"))
    above_j = work_j - front.idle_w * work_s
    switch_j = MODE_SWITCH_S * float((above_j / work_s).min())
    room_s = deadline_s - front.link_s
    split = find_best_split(
        work_s / pieces, above_j / pieces, pieces, room_s, switch_s=MODE_SWITCH_S, switch_j=switch_j
    )
    if split is None or split.steps == 0:
        alone = find_least_energy_point(front, deadline_s)
        return BoardWork(alone.work_s, alone.work_j)
    return BoardWork(split.work_s, split.work_j + front.idle_w * split.work_s)


def cost_waiting_in_lowest_mode(
    fronts: Mapping[str, Front], radio_j: Mapping[str, float], work: Mapping[str, BoardWork]
) -> FleetCost:
    """Return the cost of the round in which every board does this work and waits in its lowest mode."""
    busy_s = {board: fronts[board].link_s + done.work_s for board, done in work.items()}
    round_s = max(busy_s.values())
    energies_j = {
        board: radio_j[board] + (done.work_j + fronts[board].idle_w * (round_s - done.work_s))
        for board, done in work.items()
    }
    return FleetCost(round_s, energies_j, busy_s)
