"""What a board sees in the middle of a round: its predictions, its front, and what it would do with what is left."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from dataclasses import dataclass

from fedge.client.evidence import build_front, find_known_modes
from fedge.client.round_state import RoundState, compute_probe_budget, remaining_goal
from fedge.decisions.measured_correction import correct_with_measurements, find_rows
from fedge.decisions.probe_choice import ProbeBudget
from fedge.types import Decision, Front, ModeMix, Modes, PowerMode, Predictions, RoundGoal


@dataclass(frozen=True, slots=True, eq=False)
class RoundSnapshot:
    """What a board sees in the middle of a round."""

    predictions: Predictions
    front: Front
    decision: Decision
    preferred_modes: tuple[PowerMode, ...]
    """The modes it would work in if it took every prediction as it is."""
    known_modes: frozenset[PowerMode]
    probe_budget: ProbeBudget | None
    """What is left of the round, exploration's slack included; None when there is no deadline."""


def observe_round(course: RoundState, fitted: Predictions) -> RoundSnapshot:
    """What is predicted and decided now: ``fitted``, with the board's own modes corrected by what it measured."""
    player = course.context
    predictions = correct_with_measurements(fitted, player.normalize(course.own_measurements))
    known = find_known_modes(predictions, course.own_measurements, course.shared)
    steps = course.steps_left + course.warm_up_steps_left
    front, goal = (
        build_front(player, predictions=predictions, own=course.own_measurements, steps=steps, link=course.link),
        remaining_goal(course, steps),
    )
    decision = _decide(course, predictions=predictions, known=known, front=front, goal=goal)
    plain = dataclasses.replace(goal, limits={**goal.limits, "confidence": 0.5})
    wish = player.policy(predictions, front, plain, player.device.spec) if known else decision
    wished = (wish.mode,) if wish.mix is None else (wish.mix.mode, wish.mode)
    return RoundSnapshot(
        predictions,
        front=front,
        decision=decision,
        preferred_modes=wished,
        known_modes=known,
        probe_budget=compute_probe_budget(course, steps, front),
    )


def _decide(
    course: RoundState, predictions: Predictions, known: frozenset[PowerMode], front: Front, goal: RoundGoal
) -> Decision:
    """The policy's decision: among known modes where modes are tried first, among all where these cannot do it.

    Nothing is faster than the fastest mode, so that once that is known a deadline asks for no unknown one.
    """
    player, exploration = course.context, course.context.exploration
    tries = exploration.modes is not None and exploration.share > 0 and exploration.probes > 0
    if tries and known and goal.deadline_s is not None:
        decision = player.policy(_select_modes(predictions, known), front, goal, player.device.spec)
        if decision.feasible or (player.fastest_mode in known and "power_w" not in goal.limits):
            return _subtract_warm_up(decision, course.warm_up_steps_left)
    return _subtract_warm_up(player.policy(predictions, front, goal, player.device.spec), course.warm_up_steps_left)


def _subtract_warm_up(decision: Decision, warm_up: float) -> Decision:
    """The slower part shortened by the warm-up, which was counted at the faster mode's speed but comes in it."""
    mix = decision.mix
    if mix is None or warm_up == 0:
        return decision
    steps = mix.steps - math.ceil(warm_up)
    return dataclasses.replace(decision, mix=ModeMix(mix.mode, steps) if steps > 0 else None)


def _select_modes(predictions: Predictions, modes: Collection[PowerMode]) -> Predictions:
    """The rows of ``modes`` alone."""
    rows = sorted(find_rows(predictions.modes, modes).values())
    return Predictions(
        Modes(predictions.modes.knobs[rows]),
        step_s=predictions.step_s[rows],
        power_w=predictions.power_w[rows],
        step_s_sd_log=predictions.step_s_sd_log[rows],
        power_w_sd_log=predictions.power_w_sd_log[rows],
    )
