"""A snapshot within a round: current predictions, front, decision and probe budget."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from fedge.client.corrections import normalize
from fedge.client.evidence import KNOWN_MODE_SD_LOG, build_front, find_known_modes, find_sure_modes
from fedge.client.round_state import RoundState, compute_probe_budget, remaining_goal
from fedge.decisions.measured_correction import correct_with_measurements, find_rows
from fedge.decisions.probe_choice import ProbeBudget
from fedge.pareto import MAX_FRONT_POINTS
from fedge.types import Decision, Front, ModeMix, PowerMode, Predictions, RoundGoal


@dataclass(frozen=True, slots=True, eq=False)
class RoundSnapshot:
    """Predictions and decision at one moment of a round.

    Attributes:
        predictions: Predictions of every candidate, corrected by the board's own measurements.
        front: Front for the steps left; without its points if the policy reads none.
        decision: The policy's decision for the steps left.
        preferred_modes: Modes that the policy would use if predictions were exact.
        known_modes: Modes that need no probe.
        probe_budget: Time left for probing, including slack; None without a deadline.
        sure_sd_log: Spread up to which a prediction makes a probe pointless, log units.
    """

    predictions: Predictions
    front: Front
    decision: Decision
    preferred_modes: tuple[PowerMode, ...]
    known_modes: frozenset[PowerMode]
    probe_budget: ProbeBudget | None
    sure_sd_log: float = 0.0


def observe_round(state: RoundState, fitted: Predictions) -> RoundSnapshot:
    """Return the current snapshot of a round.

    Args:
        state: The round so far.
        fitted: Predictions after the last fit; modes that the board measured are corrected by the measurements.
    """
    context = state.context
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
    plain = dataclasses.replace(goal, limits={**goal.limits, "confidence": 0.5})
    wish = context.policy(predictions, front, plain, context.device.spec) if known else decision
    wished = (wish.mode,) if wish.mix is None else (wish.mix.mode, wish.mode)
    if state.recalled and (sure := find_sure_modes(predictions, wished) - known):
        # What earlier runs measured predicts these modes about as well as a probe would.
        known |= sure
        decision = _decide(state, predictions=predictions, known=known, front=front, goal=goal)
    return RoundSnapshot(
        predictions,
        front=front,
        decision=decision,
        preferred_modes=wished,
        known_modes=known,
        probe_budget=compute_probe_budget(state, steps, front),
        sure_sd_log=KNOWN_MODE_SD_LOG if state.recalled else 0.0,
    )


def _decide(
    state: RoundState, predictions: Predictions, known: frozenset[PowerMode], front: Front, goal: RoundGoal
) -> Decision:
    """Apply the policy to the known modes if modes are probed first, or to all modes if no known mode is feasible.

    No mode is faster than the fastest one; so a deadline never requires an unknown mode once that is known. A client
    that knows no mode, and whose round is too short for a probe, works in the fastest one: what a prior predicts may
    be off by more than any mode saves.
    """
    context, exploration = state.context, state.context.exploration
    probes_first = exploration.modes is not None and exploration.share > 0 and exploration.probes > 0
    trusted = known or frozenset([context.fastest_mode] if context.learns else ())
    rows = sorted(find_rows(predictions.modes, trusted).values())
    if probes_first and rows and goal.deadline_s is not None:
        decision = context.policy(predictions.select_rows(rows), front, goal, context.device.spec)
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
