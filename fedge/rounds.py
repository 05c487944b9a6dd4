"""One client's round without Flower: fit, predict, choose, set the mode, train, measure, offer the next front."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge import pareto
from fedge.interfaces import Device, Policy, Predictor
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


@dataclass(frozen=True, slots=True)
class Played:
    """What one round gave."""

    trained: TrainResult
    decision: Decision
    measured: Measurement
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


def offer(player: Player, measurements: Sequence[Measurement], steps: int, link: LinkUse) -> tuple[Predictions, Front]:
    """The board's predictions and its front for ``steps`` minibatches, from what it has measured so far."""
    predictions = player.predictor.fit(measurements).predict(player.candidates)
    link_s = link.down_s + link.up_s
    idle_w, maxn_idle_w = (player.device.idle_w(mode) for mode in (player.waiting, player.maxn))
    return predictions, pareto.offer(predictions, steps, idle_w, link_s, player.maxn, maxn_idle_w=maxn_idle_w)


def play(
    player: Player, goal: Goal, measurements: Sequence[Measurement], link: LinkUse, train: Callable[[], TrainResult]
) -> Played:
    """One round of ``goal.steps`` minibatches; ``train`` does them while the device meters."""
    predictions, front = offer(player, measurements, goal.steps, link)
    decision = player.policy(predictions, front, goal, player.device.spec)
    with player.device.in_mode(decision.mode):
        trained, measured = player.device.measure(player.workload, goal.steps, train)
    _, next_front = offer(player, [*measurements, measured], goal.steps, link)
    return Played(trained, decision, measured, _row(predictions, decision.mode), next_front)


def _row(predictions: Predictions, mode: PowerMode) -> Prediction:
    i = pareto.nearest_row(predictions.modes, mode)
    return Prediction(
        mode,
        float(predictions.step_s[i]),
        float(predictions.power_w[i]),
        float(predictions.step_s_sd_log[i]),
        float(predictions.power_w_sd_log[i]),
    )
