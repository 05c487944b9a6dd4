"""The oracle: deadlines planned from the true fronts, every board at least energy within its own, in one or two modes.

It may change the mode once within a round, as boards may, and pays ``SWITCH_S`` for it like them. It is never
understated: its minibatches are counted in halves, so that the warm-up may fall into either mode, and the change is
priced at the least power of its modes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedge import pareto, rounds
from fedge.choice.mixing import best_split
from fedge.choice.picking import ROUNDING
from fedge.devices.emulated import SWITCH_S, WARM_UP_STEPS
from fedge.experiment import PolicySpec
from fedge.planning import planner_for
from fedge.planning.deadline import least_energy_at
from fedge.studies.fleet.costs import Spent, Truth
from fedge.types import Front, FrontPoint, Goal, Predictions

PIECES = 2
"""The parts of a minibatch that a mode may do: the warm-up is worth one and a half of them."""


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds and joules of a board's whole work of a round."""

    work_s: float
    work_j: float


def plausible(told: Front, truth: Truth) -> Front:
    """A board's true front without the modes that are implausible, MAXN always among what is offered."""
    if truth.plausible.all():
        return told
    keep = truth.plausible & rounds.above_floor(truth.surface.modes)
    keep[truth.surface.row(told.maxn.mode)] = True
    kept = truth.surface.where(keep)
    warm, none = (truth.steps + WARM_UP_STEPS) / truth.steps, np.zeros(len(kept.modes))
    known = Predictions(kept.modes, kept.step_s * warm, kept.power_w, none, none)
    return pareto.offer(
        known,
        truth.steps,
        told.idle_w,
        told.link_s,
        told.maxn.mode,
        maxn_idle_w=told.maxn_idle_w,
        limit=None,
    )


def planned(
    fronts: Mapping[str, Front], steps: Mapping[str, int], policy: PolicySpec, else_s: float
) -> dict[str, Work]:
    """Every board at least energy within its goal, as the policy's planner sets it from these fronts.

    ``steps`` are the boards' minibatches without the warm-up; ``else_s`` is the deadline where none is planned.
    """
    goals, _ = _goals(fronts, policy)
    found = {}
    for board, front in fronts.items():
        own = goals[board]
        within = dataclasses.replace(front, points=_within_watts(front, own) or front.points)
        found[board] = least_energy(within, steps[board], else_s if own.deadline_s is None else own.deadline_s)
    return found


def keeps_limits(fronts: Mapping[str, Front], policy: PolicySpec) -> bool:
    """Whether a plan from these fronts keeps the policy's limits, and every board its share of the watts."""
    goals, feasible = _goals(fronts, policy)
    return feasible and all(_within_watts(front, goals[board]) for board, front in fronts.items() if front.points)


def _goals(fronts: Mapping[str, Front], policy: PolicySpec) -> tuple[dict[str, Goal], bool]:
    """Every board's goal as the policy's planner sets it, and whether the plan is feasible; bare goals without one."""
    planner, goal = planner_for(policy.name), Goal(policy.name, 0, policy.deadline_s, policy.limits)
    if planner is None:
        return dict.fromkeys(fronts, goal), True
    plan = planner(fronts, tuple(fronts), goal)
    return {board: plan.goals.get(board, goal) for board in fronts}, plan.feasible


def _within_watts(front: Front, goal: Goal) -> tuple[FrontPoint, ...]:
    """The points that draw no more than the board's share of the watts."""
    power_w = goal.limits.get("power_w", math.inf) * (1.0 + ROUNDING)
    return tuple(point for point in front.points if point.work_j <= power_w * point.work_s)


def least_energy(front: Front, steps: int, deadline_s: float) -> Work:
    """The work of least energy above idling that ends by ``deadline_s``, in one mode of ``front`` or in two.

    The fastest point when none ends by then. Exact for ``PIECES`` to a minibatch.
    """
    points = front.points or (front.maxn,)
    pieces = PIECES * (steps + WARM_UP_STEPS)
    work_s, work_j = (np.array([getattr(point, name) for point in points]) for name in ("work_s", "work_j"))
    above_j = work_j - front.idle_w * work_s
    switch_j = SWITCH_S * float((above_j / work_s).min())
    room_s = deadline_s - front.link_s
    split = best_split(work_s / pieces, above_j / pieces, pieces, room_s, switch_s=SWITCH_S, switch_j=switch_j)
    if split is None or split.steps == 0:
        alone = least_energy_at(front, deadline_s)
        return Work(alone.work_s, alone.work_j)
    return Work(split.work_s, split.work_j + front.idle_w * split.work_s)


def waiting_low(fronts: Mapping[str, Front], radio_j: Mapping[str, float], work: Mapping[str, Work]) -> Spent:
    """The round in which every board does this work and waits in its lowest mode."""
    busy_s = {board: fronts[board].link_s + done.work_s for board, done in work.items()}
    round_s = max(busy_s.values())
    energies_j = {
        board: radio_j[board] + (done.work_j + fronts[board].idle_w * (round_s - done.work_s))
        for board, done in work.items()
    }
    return Spent(round_s, energies_j, busy_s)
