"""A board's round beside its standing service: the modes that hold it, and a player who knows what is left in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.concurrency.service import (
    Demand,
    Inference,
    ServingExplorer,
    ServingPredictor,
    Standing,
    busy_factor,
    cheapest,
    standing,
    unloaded,
)
from fedge.experiment import ServingSpec
from fedge.interfaces import Explorer, Predictor
from fedge.modes import index_of
from fedge.policies import waiting_mode
from fedge.rounds.player import Player
from fedge.rounds.work import warm_up_steps
from fedge.types import DeviceSpec, Floats, Measurement, Modes, PowerMode

WARM_UP_STEPS = 1.5
"""So many minibatches longer than others a round's first one is taken to last before any was seen; estimated."""


@dataclass(frozen=True, slots=True, eq=False)
class Duty:
    """What a board's service asks of it in one round.

    ``inference`` and ``resting`` are over all modes that the board may choose, ``working`` over those that ``keep``
    marks: they hold the service beside a training minibatch, or have to stay.
    """

    inference: Inference
    resting: Standing
    working: Standing
    keep: NDArray[np.bool_]


def demand_of(spec: ServingSpec) -> Demand:
    """What an entry's ``serving`` asks for."""
    return Demand(spec.rate_hz, spec.latency_s, tuple(sorted(set(spec.batch_sizes))))


def duty_of(
    inference: Inference, demand: Demand, inner: Predictor, own: Sequence[Measurement], stay: Iterable[PowerMode]
) -> Duty:
    """The duty of a round, from what the board measured so far.

    ``inner`` predicts training alone. A minibatch counts one spread longer than predicted, since nothing can be served
    while it goes on. The modes ``stay`` may be chosen whatever they hold.
    """
    factor = busy_factor(own, inference, demand)
    alone = inner.fit([unloaded(measurement, inference) for measurement in own]).predict(inference.modes)
    train_s = alone.step_s * np.exp(alone.step_s_sd_log)
    every = standing(inference, demand, train_s, first_s(train_s, own), factor=factor)
    keep = every.holds.copy()
    keep[[row for mode in stay if (row := index_of(inference.modes, mode)) is not None]] = True
    # Waiting goes by what is known beforehand, so that the mode a board waits in stays the same.
    return Duty(inference, standing(inference, demand), every.where(keep), keep)


def first_s(train_s: Floats, own: Sequence[Measurement] = ()) -> Floats:
    """Seconds of a round's first minibatch, from those of the others and what the board itself measured."""
    warm_up = warm_up_steps(own) if own else WARM_UP_STEPS
    first: Floats = train_s * (1.0 + warm_up)
    return first


def waiting_beside(duty: Duty, policy: str, spec: DeviceSpec, idle_w: Floats) -> PowerMode:
    """The mode in which a board waits and serves: the cheapest that holds the service, unless the policy pins it.

    ``idle_w`` are the watts at rest in every mode of the duty's ``inference``.
    """
    modes = duty.inference.modes
    if policy == "maxn" or policy.startswith("preset:"):
        return waiting_mode(policy, spec, modes)
    return modes[cheapest(duty.resting, idle_w)] if duty.resting.holds.any() else spec.maxn


def beside_service(player: Player, duty: Duty, inner: Predictor) -> Player:
    """The player of a round beside the service; ``inner`` predicts the duty's kept modes without it."""
    predictor = ServingPredictor(inner, duty.inference, duty.working)
    made = player.explorer

    def explorer(modes: Modes) -> Explorer:
        assert made is not None
        return ServingExplorer(made(modes), duty.inference)

    return dataclasses.replace(
        player,
        candidates=duty.working.modes,
        predictor=predictor,
        explorer=None if made is None else explorer,
        usual=predictor.usual,
    )
