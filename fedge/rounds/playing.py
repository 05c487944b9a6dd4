"""Plays a round: trials first, then a part in a slower mode where that saves, then the rest in the mode decided on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from fedge.interfaces import Training
from fedge.rounds.course import Course
from fedge.rounds.deadline import allowed_s
from fedge.rounds.learning import believed, fitted, offer, prediction_of
from fedge.rounds.player import Played, Player
from fedge.rounds.trials import next_trial
from fedge.rounds.view import View, look
from fedge.rounds.work import warm_up_steps
from fedge.types import Decision, Goal, LinkUse, Measurement, Mix


def play(
    player: Player,
    goal: Goal,
    measurements: Sequence[Measurement],
    link: LinkUse,
    training: Training,
    shared: Sequence[Measurement] = (),
) -> Played:
    """One round of ``goal.steps`` minibatches: trials first, then the rest in the one or two modes decided on.

    ``shared`` is what other boards of this kind measured. With ``goal.stop_s`` the board stops in time to send what it
    has, whatever is left.
    """
    trusted = believed(player, measurements, shared)
    predictions = fitted(player, measurements, trusted)
    guessed_s = None if measurements else prediction_of(predictions, player.maxn).step_s
    course = Course(player, goal, link, training, tuple(measurements), trusted, guessed_s)
    view = look(course, predictions)
    while not course.stopped and (trial := next_trial(course, view)) is not None:
        course.try_out(*trial)
        predictions = fitted(player, course.own, trusted)
        view = look(course, predictions)
    while not course.stopped and view.decision.mix is not None and course.may_mix(view.decision.mix):
        course.work_slowly(view.decision.mix)
        view = look(course, predictions)  # no new fit: correcting the mode just worked in is enough
    if not course.stopped:
        course.finish(view.decision.mode)
    return _played(course, view)


def _played(course: Course, view: View) -> Played:
    *before, last = course.parts
    mixed = course.mixed if course.mixed is not last else None
    mix = None if mixed is None else Mix(mixed.mode, mixed.steps)
    steps = course.goal.steps + warm_up_steps(course.own)
    _, next_front = offer(course.player, course.own, course.shared, steps, course.link)
    return Played(
        trained=course.training.result(),
        decision=dataclasses.replace(_carried_out(view.decision, last), mix=mix),
        measured=last,
        probes=tuple(part for part in before if part is not course.mixed),
        mixed=mixed,
        predicted=prediction_of(view.predictions, last.mode),
        predictions=view.predictions,
        own_samples=len(course.earlier) + course.trials,
        shared_samples=len(course.shared),
        front=next_front,
        allowed_s=allowed_s(course),
    )


def _carried_out(decision: Decision, last: Measurement) -> Decision:
    """The decision; the mode the board stopped in where it could not be carried out."""
    if last.mode == decision.mode:
        return decision
    late = f"Stopped in {last.mode} before the decision could be carried out: no time was left."
    return Decision(last.mode, late, feasible=False)
