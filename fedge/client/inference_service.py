"""The standing inference service of a client: expected batch costs and the plan for a round."""

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
    """Return the batch costs of an average board in ``modes``.

    Raises:
        BadInput: If the cost profile or a batch size is unknown.
    """
    return inference_costs_and_spreads(device, cost, batch_sizes, modes)[0]


def inference_costs_and_spreads(
    device: DeviceSpec, cost: str, batch_sizes: tuple[int, ...], modes: Modes
) -> tuple[InferenceCosts, tuple[tuple[float, float], ...]]:
    """Return the batch costs of an average board and their spread between boards.

    Args:
        device: The board's specification.
        cost: Name of the inference cost profile.
        batch_sizes: The k batch sizes.
        modes: The n modes.

    Returns:
        Costs of shape (n, k), and per batch size the standard deviations of log time and log power between boards.

    Raises:
        BadInput: If the cost profile or a batch size is unknown.
    """
    specs = catalogue.load_catalogue()
    profiles = [estimate_inference_cost(device, cost, size, specs) for size in batch_sizes]
    infer_s = [time_power_model.compute_step_s(profile.coefficients, device.maxn, modes) for profile in profiles]
    power_w = [time_power_model.compute_power_w(profile.coefficients, device.maxn, modes) for profile in profiles]
    table = InferenceCosts(modes, batch_sizes, np.stack(infer_s, axis=1), np.stack(power_w, axis=1))
    return table, tuple((profile.residual_time_sd_log, profile.residual_power_sd_log) for profile in profiles)


DEFAULT_WARM_UP_STEPS = 1.5
# Extra time of a round's first step in units of steps, until one was measured; an estimate.


@dataclass(frozen=True, slots=True, eq=False)
class RoundService:
    """The plan of a board's service for one round.

    Attributes:
        inference: Batch costs in the n candidate modes.
        while_idle: Service while the board waits, over the candidates.
        while_training: Service beside training, over the modes marked by ``keep``.
        keep: Candidates that sustain the service beside training or must stay available, shape (n,).
    """

    inference: InferenceCosts
    while_idle: ServiceTable
    while_training: ServiceTable
    keep: NDArray[np.bool_]


def build_demand(spec: ServingSpec) -> ServiceDemand:
    """Return the demand of a fleet entry's ``serving`` section."""
    return ServiceDemand(spec.rate_hz, spec.latency_s, tuple(sorted(set(spec.batch_sizes))))


def plan_round_service(
    inference: InferenceCosts,
    demand: ServiceDemand,
    inner: Predictor,
    own_measurements: Sequence[Measurement],
    stay: Iterable[PowerMode],
) -> RoundService:
    """Plan the service of a round from the measurements so far.

    Args:
        inference: Expected batch costs in the candidate modes.
        demand: Request rate, latency budget and batch sizes.
        inner: Predictor of training without the service.
        own_measurements: The board's own measurements.
        stay: Modes that remain available even if they do not sustain the service.

    Returns:
        The plan. Steps count as one standard deviation longer than predicted, since nothing is served during a step.
    """
    factor = estimate_service_time_factor(own_measurements, inference, demand)
    alone = inner.fit([remove_service_load(measurement, inference) for measurement in own_measurements]).predict(
        inference.modes
    )
    train_s = alone.step_s * np.exp(alone.step_s_sd_log)
    every = build_service_table(inference, demand, train_s, first_step_s(train_s, own_measurements), factor=factor)
    keep = every.holds.copy()
    keep[[row for mode in stay if (row := find_mode_index(inference.modes, mode)) is not None]] = True
    # Idle serving uses expected costs only, so that the waiting mode stays the same over the rounds.
    return RoundService(inference, build_service_table(inference, demand), every.select_rows(keep), keep)


def first_step_s(train_s: Floats, own_measurements: Sequence[Measurement] = ()) -> Floats:
    """Return the seconds of a round's first step.

    Args:
        train_s: Seconds of other steps, shape (n,).
        own_measurements: The board's measurements, from which the warm-up is taken if there are any.
    """
    warm_up = warm_up_steps(own_measurements) if own_measurements else DEFAULT_WARM_UP_STEPS
    first: Floats = train_s * (1.0 + warm_up)
    return first


def choose_serving_wait_mode(service_plan: RoundService, policy: str, spec: DeviceSpec, idle_w: Floats) -> PowerMode:
    """Choose the mode in which a board waits and serves: the cheapest that sustains the service, unless the policy
    fixes it.

    Args:
        service_plan: The round's plan.
        policy: Name of the policy.
        spec: The board's specification.
        idle_w: Power at rest in every mode of ``service_plan.inference``, watts, shape (n,).
    """
    modes = service_plan.inference.modes
    if policy == "maxn" or policy.startswith("preset:"):
        return choose_waiting_mode(policy, spec, modes)
    return (
        modes[find_cheapest_row(service_plan.while_idle, idle_w)] if service_plan.while_idle.holds.any() else spec.maxn
    )


def attach_service(context: RoundContext, service_plan: RoundService, inner: Predictor) -> RoundContext:
    """Return the context of a round beside the service; ``inner`` predicts the plan's kept modes without it."""
    predictor = ServingPredictor(inner, service_plan.inference, service_plan.while_training)
    made = context.make_explorer

    def explorer(modes: Modes) -> Explorer:
        assert made is not None
        return ServingExplorer(made(modes), service_plan.inference)

    return dataclasses.replace(
        context,
        candidates=service_plan.while_training.modes,
        predictor=predictor,
        make_explorer=None if made is None else explorer,
        normalize=predictor.normalize,
    )
