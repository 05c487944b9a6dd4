"""Which mode a round tries next, and for how many of its minibatches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from fedge.client.evidence import build_offer, fit_and_predict, nearest_prediction, select_consistent_peers
from fedge.client.round_context import RoundContext, RoundResult
from fedge.client.round_snapshot import RoundSnapshot, observe_round
from fedge.client.round_state import RoundState, step_budget_s
from fedge.client.step_accounting import warm_up_steps
from fedge.decisions import probe_choice
from fedge.protocols import Training
from fedge.types import Decision, LinkUse, Measurement, ModeMix, PowerMode, RoundGoal


def next_probe(course: RoundState, view: RoundSnapshot) -> tuple[PowerMode, int] | None:
    """The mode to try next and for how many minibatches; None when the round has no deadline or no room for it."""
    exploration, room = course.context.exploration, view.probe_budget
    if room is None or exploration.share == 0 or course.probe_count >= exploration.probes:
        return None
    mode = _choose_probe_mode(course.context, view, course.own_measurements, room)
    if mode is None:
        return None
    steps = int(probe_choice.count_probe_steps(np.array([nearest_prediction(view.predictions, mode).step_s]), room)[0])
    tried = course.total_steps - course.steps_left + steps
    if steps >= course.steps_left or (view.known_modes and tried > exploration.share * course.total_steps):
        return None
    return mode, steps


def _choose_probe_mode(
    player: RoundContext, view: RoundSnapshot, own: Sequence[Measurement], room: probe_choice.ProbeBudget
) -> PowerMode | None:
    """The fastest mode first, then a few that teach much, then what it would work in, then what may save most."""
    if not view.known_modes:
        return player.fastest_mode
    if player.exploration.modes is not None and len({m.mode for m in own}) >= player.exploration.modes:
        return None
    telling = probe_choice.list_informative_modes(view.predictions, view.front.idle_w, view.known_modes, room)
    if len(telling) and player.make_explorer is not None:
        explorer = player.make_explorer(telling)
        explorer.tell(own)
        if len(asked := explorer.ask(1)):
            return asked[0]
    for mode in view.preferred_modes:
        if mode not in view.known_modes and probe_choice.is_probe_safe(view.predictions, mode, room):
            return mode
    return probe_choice.find_most_saving_mode(view.predictions, view.front.idle_w, view.known_modes, room)


def run_round(
    player: RoundContext,
    goal: RoundGoal,
    measurements: Sequence[Measurement],
    link: LinkUse,
    training: Training,
    shared: Sequence[Measurement] = (),
) -> RoundResult:
    """One round of ``goal.steps`` minibatches: trials first, then the rest in the one or two modes decided on.

    ``shared`` is what other boards of this kind measured. With ``goal.stop_s`` the board stops in time to send what it
    has, whatever is left.
    """
    trusted = select_consistent_peers(player, measurements, shared)
    predictions = fit_and_predict(player, measurements, trusted)
    guessed_s = None if measurements else nearest_prediction(predictions, player.fastest_mode).step_s
    course = RoundState(
        player,
        goal=goal,
        link=link,
        training=training,
        earlier=tuple(measurements),
        shared=trusted,
        prior_step_s=guessed_s,
    )
    view = observe_round(course, predictions)
    while not course.stopped and (trial := next_probe(course, view)) is not None:
        course.run_probe(*trial)
        predictions = fit_and_predict(player, course.own_measurements, trusted)
        view = observe_round(course, predictions)
    while not course.stopped and view.decision.mix is not None and course.can_run_slow_part(view.decision.mix):
        course.run_slow_part(view.decision.mix)
        view = observe_round(course, predictions)  # no new fit: correcting the mode just worked in is enough
    if not course.stopped:
        course.run_remaining_steps(view.decision.mode)
    return _summarize_round(course, view)


def _summarize_round(course: RoundState, view: RoundSnapshot) -> RoundResult:
    *before, last = course.parts
    mixed = course.slow_part if course.slow_part is not last else None
    mix = None if mixed is None else ModeMix(mixed.mode, mixed.steps)
    steps = course.goal.steps + warm_up_steps(course.own_measurements)
    _, next_front = build_offer(
        course.context, own=course.own_measurements, shared=course.shared, steps=steps, link=course.link
    )
    return RoundResult(
        trained=course.training.result(),
        decision=dataclasses.replace(_executed_decision(view.decision, last), mix=mix),
        measured=last,
        probes=tuple(part for part in before if part is not course.slow_part),
        mixed=mixed,
        predicted=nearest_prediction(view.predictions, last.mode),
        predictions=view.predictions,
        own_samples=len(course.earlier) + course.probe_count,
        shared_samples=len(course.shared),
        front=next_front,
        step_budget_s=step_budget_s(course),
    )


def _executed_decision(decision: Decision, last: Measurement) -> Decision:
    """The decision; the mode the board stopped in where it could not be carried out."""
    if last.mode == decision.mode:
        return decision
    late = f"Stopped in {last.mode} before the decision could be carried out: no time was left."
    return Decision(last.mode, late, feasible=False)
