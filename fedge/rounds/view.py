"""What a board sees in the middle of a round: its predictions, its front, and what it would do with what is left."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from dataclasses import dataclass

from fedge.choice.measured import rows_of, with_measured
from fedge.explorers.improving import Room
from fedge.rounds.course import Course
from fedge.rounds.deadline import goal_of_the_rest, room_for_trials
from fedge.rounds.learning import front_of, known_modes
from fedge.types import Decision, Front, Goal, Mix, Modes, PowerMode, Predictions


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """What a board sees in the middle of a round."""

    predictions: Predictions
    front: Front
    decision: Decision
    wished: tuple[PowerMode, ...]
    """The modes it would work in if it took every prediction as it is."""
    known: frozenset[PowerMode]
    room: Room | None
    """What is left of the round, exploration's slack included; None when there is no deadline."""


def look(course: Course, fitted: Predictions) -> View:
    """What is predicted and decided now: ``fitted``, with the board's own modes corrected by what it measured."""
    player = course.player
    predictions = with_measured(fitted, player.usual(course.own))
    known = known_modes(predictions, course.own, course.shared)
    steps = course.left + course.warm_up
    front, goal = front_of(player, predictions, course.own, steps, course.link), goal_of_the_rest(course, steps)
    decision = _decided(course, predictions, known, front, goal)
    plain = dataclasses.replace(goal, limits={**goal.limits, "confidence": 0.5})
    wish = player.policy(predictions, front, plain, player.device.spec) if known else decision
    wished = (wish.mode,) if wish.mix is None else (wish.mix.mode, wish.mode)
    return View(predictions, front, decision, wished, known, room_for_trials(course, steps, front))


def _decided(
    course: Course, predictions: Predictions, known: frozenset[PowerMode], front: Front, goal: Goal
) -> Decision:
    """The policy's decision: among known modes where modes are tried first, among all where these cannot do it.

    Nothing is faster than the fastest mode, so that once that is known a deadline asks for no unknown one.
    """
    player, exploration = course.player, course.player.exploration
    tries = exploration.modes is not None and exploration.share > 0 and exploration.probes > 0
    if tries and known and goal.deadline_s is not None:
        decision = player.policy(_only(predictions, known), front, goal, player.device.spec)
        if decision.feasible or (player.maxn in known and "power_w" not in goal.limits):
            return _with_warm_up(decision, course.warm_up)
    return _with_warm_up(player.policy(predictions, front, goal, player.device.spec), course.warm_up)


def _with_warm_up(decision: Decision, warm_up: float) -> Decision:
    """The slower part shortened by the warm-up, which was counted at the faster mode's speed but comes in it."""
    mix = decision.mix
    if mix is None or warm_up == 0:
        return decision
    steps = mix.steps - math.ceil(warm_up)
    return dataclasses.replace(decision, mix=Mix(mix.mode, steps) if steps > 0 else None)


def _only(predictions: Predictions, modes: Collection[PowerMode]) -> Predictions:
    """The rows of ``modes`` alone."""
    rows = sorted(rows_of(predictions.modes, modes).values())
    return Predictions(
        Modes(predictions.modes.knobs[rows]),
        predictions.step_s[rows],
        predictions.power_w[rows],
        predictions.step_s_sd_log[rows],
        predictions.power_w_sd_log[rows],
    )
