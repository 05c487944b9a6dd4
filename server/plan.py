"""What the server asks of every client in a round: the goals, and the deadline planned from the clients' fronts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedge.experiment import PolicySpec
from fedge.planning.deadline import plan_deadline
from fedge.policies.balanced import TIME_WEIGHT
from fedge.types import Front, Goal

MAX_SLOWDOWN = 1.05
"""The default of ``balanced``: a round is never planned more than 5 % longer than with every board at MAXN."""


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """Each selected board's goal, and the deadline that they share (None where the policy has none)."""

    deadline_s: float | None
    goals: Mapping[str, Goal]


def plan_round(policy: PolicySpec, fronts: Mapping[str, Front], selected: Sequence[str]) -> RoundPlan:
    """The goals of a round; pure. Boards without a front yet take part without being planned for."""
    known = {board: fronts[board] for board in selected if board in fronts}
    deadline_s = policy.deadline_s
    if policy.name == "balanced" and known:
        weight = TIME_WEIGHT if policy.time_weight is None else policy.time_weight
        slowdown = MAX_SLOWDOWN if policy.max_slowdown is None else policy.max_slowdown
        deadline_s = plan_deadline(known, weight, slowdown).deadline_s
    goal = Goal(policy.name, steps=0, deadline_s=deadline_s, limits=policy.limits)
    own_s = policy.deadline_s
    shared_s = min((d for d in (deadline_s, own_s) if d is not None), default=None)
    return RoundPlan(shared_s, dict.fromkeys(selected, goal))
