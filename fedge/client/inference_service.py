"""What a service's batches cost on boards of a kind, before the board at hand has measured any."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.client.round_context import RoundContext
from fedge.client.step_accounting import warm_up_steps
from fedge.costs.inference_cost import estimate_inference_cost
from fedge.decisions.policies import choose_waiting_mode
from fedge.devices import catalogue
from fedge.experiment import ServingSpec
from fedge.modes import find_mode_index
from fedge.physics import time_power_model
from fedge.protocols import Explorer, Predictor
from fedge.serving.standing_service import (
    InferenceCosts,
    ServiceDemand,
    ServiceTable,
    ServingExplorer,
    ServingPredictor,
    build_service_table,
    estimate_service_time_factor,
    find_cheapest_row,
    remove_service_load,
)
from fedge.types import DeviceSpec, Floats, Measurement, Modes, PowerMode


def average_inference_costs(
    device: DeviceSpec, cost: str, batch_sizes: tuple[int, ...], modes: Modes
) -> InferenceCosts:
    """What batches cost in ``modes``; raises ``BadInput`` for the cost or a batch size."""
    return inference_costs_and_spreads(device, cost, batch_sizes, modes)[0]


def inference_costs_and_spreads(
    device: DeviceSpec, cost: str, batch_sizes: tuple[int, ...], modes: Modes
) -> tuple[InferenceCosts, tuple[tuple[float, float], ...]]:
    """Likewise, and how far a board may lie off in seconds and in watts, log units, for every batch size."""
    specs = catalogue.load_catalogue()
    profiles = [estimate_inference_cost(device, cost, size, specs) for size in batch_sizes]
    infer_s = [time_power_model.compute_step_s(profile.coefficients, device.maxn, modes) for profile in profiles]
    power_w = [time_power_model.compute_power_w(profile.coefficients, device.maxn, modes) for profile in profiles]
    table = InferenceCosts(modes, batch_sizes, np.stack(infer_s, axis=1), np.stack(power_w, axis=1))
    return table, tuple((profile.residual_time_sd_log, profile.residual_power_sd_log) for profile in profiles)


DEFAULT_WARM_UP_STEPS = 1.5
"""So many minibatches longer than others a round's first one is taken to last before any was seen; estimated."""


@dataclass(frozen=True, slots=True, eq=False)
class RoundService:
    """What a board's service asks of it in one round.

    ``inference`` and ``resting`` are over all modes that the board may choose, ``working`` over those that ``keep``
    marks: they hold the service beside a training minibatch, or have to stay.
    """

    inference: InferenceCosts
    while_idle: ServiceTable
    while_training: ServiceTable
    keep: NDArray[np.bool_]


def build_demand(spec: ServingSpec) -> ServiceDemand:
    """What an entry's ``serving`` asks for."""
    return ServiceDemand(spec.rate_hz, spec.latency_s, tuple(sorted(set(spec.batch_sizes))))


def plan_round_service(
    inference: InferenceCosts,
    demand: ServiceDemand,
    inner: Predictor,
    own: Sequence[Measurement],
    stay: Iterable[PowerMode],
) -> RoundService:
    """The duty of a round, from what the board measured so far.

    ``inner`` predicts training alone. A minibatch counts one spread longer than predicted, since nothing can be served
    while it goes on. The modes ``stay`` may be chosen whatever they hold.
    """
    factor = estimate_service_time_factor(own, inference, demand)
    alone = inner.fit([remove_service_load(measurement, inference) for measurement in own]).predict(inference.modes)
    train_s = alone.step_s * np.exp(alone.step_s_sd_log)
    every = build_service_table(inference, demand, train_s, first_step_s(train_s, own), factor=factor)
    keep = every.holds.copy()
    keep[[row for mode in stay if (row := find_mode_index(inference.modes, mode)) is not None]] = True
    # Waiting goes by what is known beforehand, so that the mode a board waits in stays the same.
    return RoundService(inference, build_service_table(inference, demand), every.select_rows(keep), keep)


def first_step_s(train_s: Floats, own: Sequence[Measurement] = ()) -> Floats:
    """Seconds of a round's first minibatch, from those of the others and what the board itself measured."""
    warm_up = warm_up_steps(own) if own else DEFAULT_WARM_UP_STEPS
    first: Floats = train_s * (1.0 + warm_up)
    return first


def choose_serving_wait_mode(duty: RoundService, policy: str, spec: DeviceSpec, idle_w: Floats) -> PowerMode:
    """The mode in which a board waits and serves: the cheapest that holds the service, unless the policy pins it.

    ``idle_w`` are the watts at rest in every mode of the duty's ``inference``.
    """
    modes = duty.inference.modes
    if policy == "maxn" or policy.startswith("preset:"):
        return choose_waiting_mode(policy, spec, modes)
    return modes[find_cheapest_row(duty.while_idle, idle_w)] if duty.while_idle.holds.any() else spec.maxn


def attach_service(player: RoundContext, duty: RoundService, inner: Predictor) -> RoundContext:
    """The player of a round beside the service; ``inner`` predicts the duty's kept modes without it."""
    predictor = ServingPredictor(inner, duty.inference, duty.while_training)
    made = player.make_explorer

    def explorer(modes: Modes) -> Explorer:
        assert made is not None
        return ServingExplorer(made(modes), duty.inference)

    return dataclasses.replace(
        player,
        candidates=duty.while_training.modes,
        predictor=predictor,
        make_explorer=None if made is None else explorer,
        normalize=predictor.normalize,
    )
