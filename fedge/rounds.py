"""One client's round without Flower: fit, predict, choose, set the mode, train, measure, offer the next front."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge import pareto
from fedge.experiment import ExplorationSpec
from fedge.explorers import optimistic
from fedge.interfaces import Device, Policy, Predictor, Training
from fedge.types import (
    Decision,
    Front,
    Goal,
    LinkUse,
    Measurement,
    Modes,
    PowerMode,
    Prediction,
    Predictions,
    TrainResult,
    Workload,
)

FLOOR_CORES = 2
FLOOR_CPU_MHZ = 400.0
"""The floor that keeps a board's own heartbeats alive while it trains."""


CHOOSABLE = 5_000
"""Modes among which a board chooses."""


@dataclass(frozen=True, slots=True)
class Player:
    """What one board brings to a round.

    ``candidates`` are the modes it may choose, ``maxn`` is the fastest of them, ``waiting`` the one it waits in.
    """

    board: str
    device: Device
    predictor: Predictor
    policy: Policy
    workload: Workload
    candidates: Modes
    maxn: PowerMode
    waiting: PowerMode
    exploration: ExplorationSpec


@dataclass(frozen=True, slots=True)
class Played:
    """What one round gave."""

    trained: TrainResult
    decision: Decision
    measured: Measurement
    probes: tuple[Measurement, ...]
    predicted: Prediction
    front: Front
    """The board's offer for the next round, with this round's measurement learnt."""


def steps_of(samples: int, batch_size: int, local_epochs: float) -> int:
    """Minibatches in a board's share of a round, at least one."""
    return max(1, round(math.ceil(samples / batch_size) * local_epochs))


def above_floor(modes: Modes) -> NDArray[np.bool_]:
    """Marks the modes that keep the board reachable; all of them when none does."""
    keep: NDArray[np.bool_] = (modes.knobs[:, 0] >= FLOOR_CORES) & (modes.knobs[:, 1] >= FLOOR_CPU_MHZ)
    return keep if keep.any() else np.ones(len(modes), dtype=np.bool_)


def choosable(modes: Modes, limit: int = CHOOSABLE) -> NDArray[np.bool_]:
    """Marks the modes above the floor, with every second value of the longest knob left out until ``limit`` are left.

    Neighbouring clocks differ by a few percent: predicting them all costs time on the board and finds nothing better.
    Both ends of a knob always stay.
    """
    keep = above_floor(modes)
    while keep.sum() > limit:
        values = [np.unique(modes.knobs[keep, knob]) for knob in range(4)]
        longest = int(np.argmax([len(v) for v in values]))
        stay = values[longest][::-1][::2]
        keep &= np.isin(modes.knobs[:, longest], [*stay, values[longest][0]])
    return keep


def offer(
    player: Player, measurements: Sequence[Measurement], steps: float, link: LinkUse
) -> tuple[Predictions, Front]:
    """The board's predictions and its front for ``steps`` minibatches' worth, from what it has measured so far."""
    predictions = player.predictor.fit(measurements).predict(player.candidates)
    link_s = link.down_s + link.up_s
    idle_w, maxn_idle_w = (player.device.idle_w(mode) for mode in (player.waiting, player.maxn))
    return predictions, pareto.offer(predictions, steps, idle_w, link_s, player.maxn, maxn_idle_w=maxn_idle_w)


def warm_up_steps(measurements: Sequence[Measurement]) -> float:
    """How many minibatches' worth of time a round's warm-up took so far, 0 before it was seen."""
    seen = [m.warm_up_s / m.step_s for m in measurements if m.warm_up_s > 0]
    return float(np.median(seen)) if seen else 0.0


def play(player: Player, goal: Goal, measurements: Sequence[Measurement], link: LinkUse, training: Training) -> Played:
    """One round of ``goal.steps`` minibatches: probes first, then the rest in the mode that the policy decides on."""
    steps = round(goal.steps)
    warm_up = warm_up_steps(measurements)
    probes: list[Measurement] = []
    while True:
        known = [*measurements, *probes]
        left = steps - sum(probe.steps for probe in probes)
        predictions, front = offer(player, known, left + (0.0 if probes else warm_up), link)
        present = _with_steps_left(goal, left + (0.0 if probes else warm_up), probes)
        decision = player.policy(predictions, front, present, player.device.spec)
        probe = _next_probe(player, predictions, front, decision, present, known, steps - left)
        if probe is None:
            break
        probes.append(_worked(player, *probe, training))
    measured = _worked(player, decision.mode, left, training)
    _, next_front = offer(player, [*known, measured], steps + warm_up_steps([*known, measured]), link)
    return Played(training.result(), decision, measured, tuple(probes), _row(predictions, decision.mode), next_front)


def _with_steps_left(goal: Goal, steps: float, probes: Sequence[Measurement]) -> Goal:
    """The goal for what is left of the round after the probes."""
    spent_s = sum(probe.work_s for probe in probes)
    limits = dict(goal.limits)
    if "deadline_s" in limits:
        limits["deadline_s"] -= spent_s
    deadline_s = None if goal.deadline_s is None else goal.deadline_s - spent_s
    return Goal(goal.policy, steps, deadline_s, limits)


def _next_probe(
    player: Player,
    predictions: Predictions,
    front: Front,
    decision: Decision,
    goal: Goal,
    known: Sequence[Measurement],
    spent_steps: int,
) -> tuple[PowerMode, int] | None:
    """The mode to try next and for how many minibatches; None when the round has no deadline or no room for it."""
    if goal.deadline_s is None:
        return None
    total = goal.steps + spent_steps
    left_s = goal.deadline_s + player.exploration.slack * (goal.deadline_s) - front.link_s
    room = optimistic.Room(goal.steps, left_s, player.exploration.probe_s)
    mode = optimistic.propose(predictions, front.idle_w, decision.mode, {m.mode for m in known}, room)
    if mode is None:
        return None
    steps = int(optimistic.probe_steps(np.array([_row(predictions, mode).step_s]), room)[0])
    return (mode, steps) if spent_steps + steps <= player.exploration.share * total else None


def _worked(player: Player, mode: PowerMode, steps: int, training: Training) -> Measurement:
    """``steps`` minibatches in ``mode``, metered."""
    with player.device.in_mode(mode):
        _, measured = player.device.measure(player.workload, steps, lambda: training.advance(steps))
    return measured


def _row(predictions: Predictions, mode: PowerMode) -> Prediction:
    i = pareto.nearest_row(predictions.modes, mode)
    return Prediction(
        mode,
        float(predictions.step_s[i]),
        float(predictions.power_w[i]),
        float(predictions.step_s_sd_log[i]),
        float(predictions.power_w_sd_log[i]),
    )
