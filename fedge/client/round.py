"""One client's round: probe modes, then train in one or two modes until the steps are done or the time is up."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedge.client.corrections import normalize, to_reference
from fedge.client.evidence import (
    KNOWN_MODE_SD_LOG,
    build_front,
    build_offer,
    find_known_modes,
    find_sure_modes,
    fit_and_predict,
    keeps_to_known_modes,
    nearest_prediction,
    select_consistent_peers,
    select_recalled,
)
from fedge.client.prediction_requests import Asking, run_alone
from fedge.client.round_state import (
    RoundContext,
    RoundResult,
    RoundState,
    compute_probe_budget,
    remaining_goal,
    step_budget_s,
    warm_up_steps,
)
from fedge.decisions import probe_choice
from fedge.decisions.measured_correction import (
    correct_with_measurements,
    find_doubted_measurements,
    find_rows,
)
from fedge.decisions.probe_choice import ProbeBudget
from fedge.pareto import MAX_FRONT_POINTS
from fedge.protocols import Training
from fedge.types import Decision, Front, LinkUse, Measurement, ModeMix, PowerMode, Predictions, RoundGoal


@dataclass(frozen=True, slots=True, eq=False)
class RoundSnapshot:
    """Predictions and decision at one moment of a round.

    Attributes:
        fitted: Predictions of every candidate after the last fit.
        predictions: The same, corrected by the board's own measurements.
        goal: Goal for the rest of the round.
        probe_budget: Time left for probing, including slack; None without a deadline.
        preferred_modes: Modes that the policy would use if predictions were exact; None if they have not been needed.
        sure_sd_log: Spread up to which a prediction makes a probe pointless, log units.
    """

    fitted: Predictions
    predictions: Predictions
    front: Front
    goal: RoundGoal
    decision: Decision
    known_modes: frozenset[PowerMode]
    probe_budget: ProbeBudget | None
    preferred_modes: tuple[PowerMode, ...] | None = None
    sure_sd_log: float = 0.0


def observe_round(state: RoundState, fitted: Predictions) -> RoundSnapshot:
    """Return the current snapshot of a round.

    Args:
        fitted: Predictions after the last fit; modes that the board measured are corrected by the measurements.
    """
    context, wished = state.context, None
    predictions = correct_with_measurements(fitted, normalize(context.corrections, state.own_measurements))
    known = find_known_modes(predictions, state.own_measurements, state.shared)
    steps = state.steps_left + state.warm_up_steps_left
    front, goal = (
        build_front(
            context,
            predictions=predictions,
            own_measurements=state.own_measurements,
            steps=steps,
            link=state.link,
            limit=MAX_FRONT_POINTS if context.policy_reads_points else 0,
        ),
        remaining_goal(state, steps),
    )
    decision = _decide(state, predictions=predictions, known=known, front=front, goal=goal)
    if state.recalled:
        wished = _list_preferred_modes(context, predictions, front, goal) if known else _list_modes(decision)
        if sure := find_sure_modes(predictions, wished) - known:
            # What earlier runs measured predicts these modes about as well as a probe would.
            known |= sure
            decision = _decide(state, predictions=predictions, known=known, front=front, goal=goal)
    return RoundSnapshot(
        fitted,
        predictions=predictions,
        front=front,
        goal=goal,
        decision=decision,
        known_modes=known,
        probe_budget=compute_probe_budget(state, steps, front),
        preferred_modes=wished,
        sure_sd_log=KNOWN_MODE_SD_LOG if state.recalled else 0.0,
    )


def _list_preferred_modes(
    context: RoundContext, predictions: Predictions, front: Front, goal: RoundGoal
) -> tuple[PowerMode, ...]:
    """Return the modes that the policy would use if predictions were exact."""
    plain = dataclasses.replace(goal, limits={**goal.limits, "confidence": 0.5})
    return _list_modes(context.policy(predictions, front, plain, context.device.spec))


def _list_modes(decision: Decision) -> tuple[PowerMode, ...]:
    return (decision.mode,) if decision.mix is None else (decision.mix.mode, decision.mode)


def _decide(
    state: RoundState, predictions: Predictions, known: frozenset[PowerMode], front: Front, goal: RoundGoal
) -> Decision:
    """Apply the policy to the known modes if modes are probed first, or to all modes if no known mode is feasible.

    No mode is faster than the fastest one; so a deadline never requires an unknown mode once that is known. A client
    that knows no mode, and whose round is too short for a probe, works in the fastest one: what a prior predicts may
    be off by more than any mode saves.
    """
    context = state.context
    trusted = known or frozenset([context.fastest_mode] if context.learns else ())
    rows = sorted(find_rows(predictions.modes, trusted).values())
    if keeps_to_known_modes(context.exploration) and rows and goal.deadline_s is not None:
        decision = context.policy(predictions.select_rows(rows), front, goal, context.device.spec)
        if len(rows) < len(predictions.modes) and not decision.feasible:
            why = f"{decision.why} Only known modes count: {len(rows)} of {len(predictions.modes)}."
            decision = dataclasses.replace(decision, why=why)
        if decision.feasible or (context.fastest_mode in trusted and "power_w" not in goal.limits):
            return _subtract_warm_up(decision, state.warm_up_steps_left)
    return _subtract_warm_up(context.policy(predictions, front, goal, context.device.spec), state.warm_up_steps_left)


def _subtract_warm_up(decision: Decision, warm_up: float) -> Decision:
    """Shorten the slower part by the warm-up, which was counted at the faster mode's speed but happens in this part."""
    mix = decision.mix
    if mix is None or warm_up == 0:
        return decision
    steps = mix.steps - math.ceil(warm_up)
    return dataclasses.replace(decision, mix=ModeMix(mix.mode, steps) if steps > 0 else None)


TRIAL_REASON = "Tried for the whole round, which is too short for a probe."


def next_probe(state: RoundState, snapshot: RoundSnapshot) -> tuple[PowerMode, int] | None:
    """Return the next mode to probe and its number of steps, or None without a deadline or without time for a probe."""
    exploration, room = state.context.exploration, snapshot.probe_budget
    if room is None or exploration.share == 0 or state.probe_count >= exploration.probes:
        return None
    most = state.steps_left - 1.0
    if snapshot.known_modes:
        most = min(most, exploration.share * state.total_steps - (state.total_steps - state.steps_left))
    # A round of few steps has room for no mode's probe: then none is chosen, which takes longer than all else.
    if np.nanmin(probe_choice.count_probe_steps(snapshot.predictions.step_s, room)) > most:
        return None
    mode = _choose_probe_mode(state, snapshot, room)
    if mode is None:
        return None
    step_s = np.array([nearest_prediction(snapshot.predictions, mode).step_s])
    steps = int(probe_choice.count_probe_steps(step_s, room)[0])
    return (mode, steps) if steps <= most else None


def _choose_probe_mode(state: RoundState, snapshot: RoundSnapshot, room: probe_choice.ProbeBudget) -> PowerMode | None:
    """Choose the fastest mode first, then one whose doubted measurement is worth a repeat, then informative modes, then
    one for later runs, then preferred modes, then the one that may save most.
    """
    context, own_measurements = state.context, state.own_measurements
    if not snapshot.known_modes:
        return context.fastest_mode
    # Those that the predictions ignore as outliers until they are repeated.
    doubted = find_doubted_measurements(snapshot.fitted, normalize(context.corrections, own_measurements))
    repeated = probe_choice.find_mode_to_repeat(
        snapshot.predictions, idle_w=snapshot.front.idle_w, known=snapshot.known_modes, doubted=doubted, room=room
    )
    if repeated is not None:
        return repeated
    if context.exploration.modes is not None and len({m.mode for m in own_measurements}) >= context.exploration.modes:
        return None
    informative_modes = probe_choice.list_informative_modes(
        snapshot.predictions, snapshot.front.idle_w, snapshot.known_modes, room
    )
    if len(informative_modes) and context.make_explorer is not None:
        explorer = context.make_explorer(informative_modes)
        explorer.tell(to_reference(context.corrections, own_measurements)[1])
        if len(suggested := explorer.ask(1)):
            return suggested[0]
    wished = None
    if context.gives_back and "deadline_s" not in state.goal.limits:
        measured = {measurement.mode for measurement in (*own_measurements, *state.shared)}
        wished = probe_choice.find_anchor_mode(snapshot.predictions, context.fastest_mode, measured, room)
    preferred = snapshot.preferred_modes
    if preferred is None:
        preferred = _list_preferred_modes(context, snapshot.predictions, snapshot.front, snapshot.goal)
    worthwhile = (
        mode
        for mode in preferred
        if mode not in snapshot.known_modes
        and probe_choice.is_probe_worthwhile(
            snapshot.predictions, snapshot.front.idle_w, mode=mode, known=snapshot.known_modes, room=room
        )
    )
    return (
        wished
        or next(worthwhile, None)
        or probe_choice.find_most_saving_mode(
            snapshot.predictions, snapshot.front.idle_w, snapshot.known_modes, room, sure_sd_log=snapshot.sure_sd_log
        )
    )


def choose_trial(state: RoundState, snapshot: RoundSnapshot) -> PowerMode | None:
    """Return a mode to try for a whole round that is too short for any probe, or None."""
    context, exploration, room = state.context, state.context.exploration, snapshot.probe_budget
    if room is None or state.parts or not snapshot.known_modes or "power_w" in state.goal.limits:
        return None
    fastest_s = nearest_prediction(snapshot.predictions, context.fastest_mode).step_s
    steps = float(probe_choice.count_probe_steps(np.array([fastest_s]), room)[0])
    tried = len({measurement.mode for measurement in state.own_measurements})
    may_probe = exploration.share > 0 and exploration.probes > 0 and tried < (exploration.modes or math.inf)
    if not may_probe or steps <= exploration.share * state.total_steps:
        return None
    return probe_choice.find_trial_mode(snapshot.predictions, snapshot.front.idle_w, snapshot.known_modes, room)


def run_round(
    context: RoundContext,
    goal: RoundGoal,
    measurements: Sequence[Measurement],
    link: LinkUse,
    training: Training,
    peer_measurements: Sequence[Measurement] = (),
    *,
    recalled: Sequence[Measurement] = (),
) -> RoundResult:
    """Run a whole round: ``begin_round``, then ``finish_round``."""

    def ask() -> Asking[RoundResult]:
        state = yield from begin_round(
            context,
            goal=goal,
            measurements=measurements,
            link=link,
            training=training,
            peer_measurements=peer_measurements,
            recalled=recalled,
        )
        return (yield from finish_round(state))

    return run_alone(ask())


def begin_round(
    context: RoundContext,
    goal: RoundGoal,
    measurements: Sequence[Measurement],
    link: LinkUse,
    training: Training,
    peer_measurements: Sequence[Measurement] = (),
    *,
    recalled: Sequence[Measurement] = (),
) -> Asking[RoundState]:
    """Begin a round.

    Args:
        goal: The server's goal; with ``goal.stop_s`` the client stops in time to upload what it has.
        measurements: The board's own measurements from earlier rounds.
        recalled: The board's own measurements of earlier runs.
    """
    trusted = yield from select_recalled(context, measurements, recalled)
    contradicted = context.learns and len(trusted) < len(recalled)
    peers = yield from select_consistent_peers(context, (*trusted, *measurements), peer_measurements)
    return RoundState(
        context,
        goal=goal,
        link=link,
        training=training,
        earlier=tuple(measurements),
        shared=peers,
        recalled=trusted,
        contradicts_recalled=contradicted,
    )


def finish_round(state: RoundState) -> Asking[RoundResult]:
    """Probe modes while the deadline allows, then run the remaining steps in the mode or two modes of the decision.

    A round that is too short for a probe may be a trial of one mode.

    Returns:
        The training result, all measurements, the decision and the front for the next round. If the work raises, the
        parts that were measured before are in ``state.parts``.
    """
    predictions = yield from fit_and_predict(state.context, state.own_measurements, state.shared)
    if not state.own_measurements:
        state.prior_step_s = nearest_prediction(predictions, state.context.fastest_mode).step_s
    snapshot = observe_round(state, predictions)
    if state.recalled and not state.earlier:
        snapshot = yield from _verify_recalled(state, snapshot)
    while not state.stopped and (probe := next_probe(state, snapshot)) is not None:
        state.run_probe(*probe)
        predictions = yield from fit_and_predict(state.context, state.own_measurements, state.shared)
        snapshot = observe_round(state, predictions)
    if (trial := choose_trial(state, snapshot)) is not None:
        decision = Decision(trial, TRIAL_REASON, feasible=snapshot.decision.feasible)
        snapshot = dataclasses.replace(snapshot, decision=decision)
    while not state.stopped and snapshot.decision.mix is not None and state.can_run_slow_part(snapshot.decision.mix):
        state.run_slow_part(snapshot.decision.mix)
        snapshot = observe_round(state, predictions)  # no new fit: correcting the current mode suffices
    if not state.stopped:
        state.run_remaining_steps(snapshot.decision.mode)
    return (yield from _summarize_round(state, snapshot))


def _verify_recalled(state: RoundState, snapshot: RoundSnapshot) -> Asking[RoundSnapshot]:
    """Run the first steps in the mode of the decision, compare them with what was recalled, and decide again.

    They are no probe: the round goes on in that mode unless they contradict what was recalled, which is then dropped.
    """
    mode = snapshot.decision.mode if snapshot.decision.mix is None else snapshot.decision.mix.mode
    step_s, least_s = nearest_prediction(snapshot.predictions, mode).step_s, state.context.exploration.probe_s
    state.run_first_steps(mode, min(state.steps_left, math.ceil(least_s / step_s) or 1))
    if not (yield from select_recalled(state.context, state.parts, state.recalled)):
        state.drop_recalled()
    if state.stopped:
        return snapshot
    predictions = yield from fit_and_predict(state.context, state.own_measurements, state.shared)
    return observe_round(state, predictions)


def _summarize_round(state: RoundState, snapshot: RoundSnapshot) -> Asking[RoundResult]:
    state.context.reporter.report("sending")
    *before, last = state.parts
    mixed = state.slow_part if state.slow_part is not last else None
    mix = None if mixed is None else ModeMix(mixed.mode, mixed.steps)
    steps = state.goal.steps / state.goal.share + warm_up_steps(state.own_measurements)
    next_front = yield from build_offer(
        state.context,
        own_measurements=state.own_measurements,
        peer_measurements=state.shared,
        steps=steps,
        link=state.link,
        # Measurements of peers come for the first time after the first round.
        used_again=bool(state.earlier) and (state.context.keeps_peers or not state.shared),
    )
    return RoundResult(
        trained=state.training.result(),
        decision=dataclasses.replace(_executed_decision(snapshot.decision, last), mix=mix),
        measured=last,
        probes=tuple(part for part in before if part is not state.slow_part),
        mixed=mixed,
        predicted=nearest_prediction(snapshot.predictions, last.mode),
        predictions=snapshot.predictions,
        own_samples=len(state.earlier) + state.probe_count,
        shared_samples=len(state.shared),
        recalled_samples=len(state.recalled),
        contradicts_recalled=state.contradicts_recalled,
        front=next_front,
        step_budget_s=step_budget_s(state),
    )


def _executed_decision(decision: Decision, last: Measurement) -> Decision:
    """Return the decision, or an infeasible one in the mode where the board stopped if it could not be carried out."""
    if last.mode == decision.mode:
        return decision
    late = f"Stopped in {last.mode} before the decision could be carried out: no time was left."
    return Decision(last.mode, late, feasible=False)
