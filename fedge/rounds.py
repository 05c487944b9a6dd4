"""One client's round without Flower: fit, predict, choose, set the mode, train, measure, offer the next front."""

from __future__ import annotations

import dataclasses
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
SURE_SD_LOG = 0.05
"""A mode that another board tried counts as tried here too once its time and power are predicted this surely, log
units. Chosen by us: boards of one kind differ by about as much."""
DOUBT_LOG = 0.05
"""What other boards measured is left out when, with it, half of a board's own measurements lie this far off their
predictions, log units. Chosen by us: it is 0.01 where boards differ by a few percent, 0.5 where one is off by half."""


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
    predictions: Predictions
    """Of every candidate, as the decision was made."""
    own_samples: int
    """How many of the board's own measurements they were fitted to, and how many of other boards'."""
    shared_samples: int
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
    Both ends of a knob always stay, also where that is more than ``limit``.
    """
    keep = above_floor(modes)
    while keep.sum() > limit:
        values = [np.unique(modes.knobs[keep, knob]) for knob in range(4)]
        longest = int(np.argmax([len(v) for v in values]))
        if len(values[longest]) <= 2:
            break  # nothing but ends is left
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


def play(
    player: Player,
    goal: Goal,
    measurements: Sequence[Measurement],
    link: LinkUse,
    training: Training,
    shared: Sequence[Measurement] = (),
) -> Played:
    """One round of ``goal.steps`` minibatches: probes first, then the rest in the mode that the policy decides on.

    ``shared`` is what other boards of this kind measured.
    """
    steps = round(goal.steps)
    known = _Known(tuple(measurements), believed(player, measurements, shared))
    left = steps
    view = _view(player, goal, known, link)
    while (probe := _next_probe(player, view, steps, left)) is not None:
        known = known.with_probe(_worked(player, *probe, training))
        left -= known.probes[-1].steps
        view = _view(player, goal, known, link)
    measured = _worked(player, view.decision.mode, left, training)
    own = (*known.own, measured)
    _, next_front = offer(player, (*own, *known.shared), steps + warm_up_steps(own), link)
    predicted = _row(view.predictions, view.decision.mode)
    return Played(
        training.result(),
        view.decision,
        measured,
        known.probes,
        predicted,
        view.predictions,
        len(known.own),
        len(known.shared),
        next_front,
    )


def believed(player: Player, own: Sequence[Measurement], shared: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """``shared``; nothing of it when a fit that includes it misses what the board has measured itself.

    Then one of the others measures wrongly, or this board is not like them, and its own measurements look like outliers
    among theirs.
    """
    usual = [measurement for measurement in own if not measurement.throttled]
    if not shared or not usual:
        return tuple(shared)
    predictions = player.predictor.fit([*own, *shared]).predict(player.candidates)
    rows = {mode: _row(predictions, mode) for mode in {measurement.mode for measurement in usual}}
    time = np.median([abs(np.log(rows[m.mode].step_s / m.step_s)) for m in usual])
    power = np.median([abs(np.log(rows[m.mode].power_w / m.power_w)) for m in usual])
    return () if max(time, power) > DOUBT_LOG else tuple(shared)


@dataclass(frozen=True, slots=True)
class _Known:
    """What a board knows in the middle of a round: measurements of earlier rounds, other boards', and its probes."""

    earlier: tuple[Measurement, ...]
    shared: tuple[Measurement, ...]
    probes: tuple[Measurement, ...] = ()

    @property
    def own(self) -> tuple[Measurement, ...]:
        """All its own measurements."""
        return (*self.earlier, *self.probes)

    def with_probe(self, probe: Measurement) -> _Known:
        return dataclasses.replace(self, probes=(*self.probes, probe))


@dataclass(frozen=True, slots=True, eq=False)
class _View:
    """What a board sees in the middle of a round: its predictions, the goal for what is left, and what it would do."""

    predictions: Predictions
    front: Front
    goal: Goal
    decision: Decision
    tried: frozenset[PowerMode]
    room_s: float | None
    """Seconds left for work, exploration's slack included; None when there is no deadline."""


def _view(player: Player, goal: Goal, known: _Known, link: LinkUse) -> _View:
    spent_s = sum(probe.work_s for probe in known.probes)
    warm_up = 0.0 if known.probes else warm_up_steps(known.earlier)
    steps = goal.steps - sum(probe.steps for probe in known.probes) + warm_up
    left = _left_of(goal, steps, spent_s, player.exploration.slack if known.probes else 0.0)
    predictions, front = offer(player, (*known.own, *known.shared), steps, link)
    decision = player.policy(predictions, front, left, player.device.spec)
    end_s = _deadline_s(goal, player.exploration.slack)
    room_s = None if end_s is None else end_s - spent_s - front.link_s
    return _View(predictions, front, left, decision, _tried(predictions, known), room_s)


def _tried(predictions: Predictions, known: _Known) -> frozenset[PowerMode]:
    """The modes that need no probe: the board's own, and those of other boards whose prediction is sure."""
    theirs = frozenset(measurement.mode for measurement in known.shared)
    rows = ((mode, _row(predictions, mode)) for mode in theirs)
    sure = {mode for mode, row in rows if max(row.step_s_sd_log, row.power_w_sd_log) <= SURE_SD_LOG}
    return frozenset(measurement.mode for measurement in known.own) | sure


def _deadline_s(goal: Goal, slack: float) -> float | None:
    """When the round must end: by the user's own deadline as it is, by a planned one with ``slack``."""
    planned_s = None if goal.deadline_s is None else goal.deadline_s * (1.0 + slack)
    return min((d for d in (goal.limits.get("deadline_s"), planned_s) if d is not None), default=None)


def _left_of(goal: Goal, steps: float, spent_s: float, slack: float) -> Goal:
    """The goal for the rest of the round: fewer minibatches, and the deadline ``spent_s`` nearer."""
    end_s = _deadline_s(goal, slack)
    left_s = None if end_s is None else end_s - spent_s
    limits = {name: value - spent_s if name == "deadline_s" else value for name, value in goal.limits.items()}
    return Goal(goal.policy, steps, left_s, limits)


def _next_probe(player: Player, view: _View, total_steps: int, left: int) -> tuple[PowerMode, int] | None:
    """The mode to try next and for how many minibatches; None when the round has no deadline or no room for it."""
    if view.room_s is None:
        return None
    room = optimistic.Room(view.goal.steps, view.room_s, player.exploration.probe_s)
    mode = optimistic.propose(view.predictions, view.front.idle_w, view.decision.mode, view.tried, room)
    if mode is None:
        return None
    steps = int(optimistic.probe_steps(np.array([_row(view.predictions, mode).step_s]), room)[0])
    return (mode, steps) if total_steps - left + steps <= player.exploration.share * total_steps else None


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
