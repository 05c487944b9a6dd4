"""The standing inference service of a client: expected batch costs and the plan for a round."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fedge.client.round_state import warm_up_steps
from fedge.costs.cost_priors import estimate_inference_cost
from fedge.costs.cost_profile import CostProfile
from fedge.costs.layered_work import network_from_spec
from fedge.costs.layers.network_cost import NetworkCost, sum_layers
from fedge.costs.layers.network_record import find_known_network
from fedge.decisions.policies import choose_waiting_mode
from fedge.devices import catalogue
from fedge.experiment import NetworkSpec, PlacedBatchSpec, ServingSpec
from fedge.modes import find_mode_index
from fedge.pareto import find_nearest_row
from fedge.physics import time_power_model
from fedge.serving.standing_service import (
    InferenceCosts,
    ServiceDemand,
    ServiceTable,
    add_service_load,
    add_service_to_predictions,
    build_service_table,
    estimate_service_time_factor,
    find_cheapest_row,
    remove_service_load,
)
from fedge.types import DeviceSpec, Floats, LayerWork, Measurement, Modes, PowerMode, Predictions


@dataclass(frozen=True, slots=True)
class InferenceWork:
    """A network, or one that the name of a cost stands for, that is inferred in batches of ascending sizes.

    Attributes:
        placed: A planned batch at the top clocks, to which the costs are scaled; None without a plan.
    """

    cost: str
    network: NetworkSpec | None
    batch_sizes: tuple[int, ...]
    placed: PlacedBatchSpec | None = None


def describe_service(spec: ServingSpec) -> InferenceWork:
    """Return what a fleet entry's ``serving`` section infers."""
    return InferenceWork(spec.cost, spec.network, build_demand(spec).batch_sizes, spec.placed)


def price_inference(device: DeviceSpec, work: InferenceWork) -> list[CostProfile]:
    """Return the cost of every batch size: by the name of its cost, or from the layers of its network.

    Raises:
        BadInput: If the cost profile or a batch size is unknown.
    """
    network = find_inferred_network(work.cost, work.network)
    layers = None if network is None else LayerWork(work.cost, sum_layers(network), loading="cached")
    specs = catalogue.load_catalogue()
    return [estimate_inference_cost(device, work.cost, size, specs, layers=layers) for size in work.batch_sizes]


def find_inferred_network(cost: str, network: NetworkSpec | None) -> NetworkCost | None:
    """Return ``network``, or the one that the name ``cost`` stands for; None if its layers are not known."""
    return find_known_network(cost) if network is None else network_from_spec(network)


def average_inference_costs(device: DeviceSpec, work: InferenceWork, modes: Modes) -> InferenceCosts:
    """Return the batch costs of an average board in ``modes``.

    Raises:
        BadInput: If the cost profile or a batch size is unknown.
    """
    return inference_costs_and_profiles(device, work, modes)[0]


def inference_costs_and_profiles(
    device: DeviceSpec, work: InferenceWork, modes: Modes
) -> tuple[InferenceCosts, tuple[CostProfile, ...]]:
    """Return the batch costs of an average board, and the profiles behind them.

    Returns:
        Costs of shape (n, k), and the profile of each batch size.

    Raises:
        BadInput: If the cost profile or a batch size is unknown.
    """
    profiles = price_inference(device, work)
    infer_s = [time_power_model.compute_step_s(profile.coefficients, device.maxn, modes) for profile in profiles]
    power_w = [time_power_model.compute_power_w(profile.coefficients, device.maxn, modes) for profile in profiles]
    table = InferenceCosts(modes, work.batch_sizes, np.stack(infer_s, axis=1), np.stack(power_w, axis=1))
    if work.placed is not None:
        table = _scale_to_plan(table, work.placed, find_nearest_row(modes, device.maxn))
    return table, tuple(profiles)


def _scale_to_plan(costs: InferenceCosts, placed: PlacedBatchSpec, top: int) -> InferenceCosts:
    """Scale all costs so that the planned batch's in row ``top``, the top clocks, are the planned ones."""
    column = costs.batch_sizes.index(placed.batch_size)
    return dataclasses.replace(
        costs,
        infer_s=costs.infer_s * (placed.batch_s / costs.infer_s[top, column]),
        power_w=costs.power_w * (placed.power_w / costs.power_w[top, column]),
    )


DEFAULT_WARM_UP_STEPS = 1.5
# Extra time of a round's first step in units of steps, until one was measured; an estimate.


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedService:
    """A client's standing service as expected before any measurement.

    Attributes:
        idle_w: Power at rest in them, watts, shape (n,).
        one_batch_size: Whether all modes of a round use one batch size, because a worker has to warm up for each.
    """

    demand: ServiceDemand
    inference: InferenceCosts
    idle_w: Floats
    one_batch_size: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class RoundService:
    """The plan of a board's service for one round.

    Attributes:
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
    service: ExpectedService,
    predict_alone: Callable[[Sequence[Measurement]], Predictions],
    own_measurements: Sequence[Measurement],
    fastest_mode: PowerMode,
    other_modes: Iterable[PowerMode] = (),
) -> RoundService:
    """Plan the service of a round from the measurements so far.

    Args:
        predict_alone: Predicts the candidate modes without the service from measurements without it.
        fastest_mode: The fastest mode, which remains available even if it does not sustain the service.

    Returns:
        The plan. Steps count as one standard deviation longer than predicted, since nothing is served during a step.
    """
    inference, demand = service.inference, service.demand
    if service.one_batch_size:
        demand = dataclasses.replace(demand, batch_sizes=(_choose_batch_size(service, predict_alone, fastest_mode),))
    factor = estimate_service_time_factor(own_measurements, inference, demand)
    alone = predict_alone([remove_service_load(measurement, inference) for measurement in own_measurements])
    train_s = alone.step_s * np.exp(alone.step_s_sd_log)
    every = build_service_table(inference, demand, train_s, first_step_s(train_s, own_measurements), factor=factor)
    keep = every.holds.copy()
    for mode in (fastest_mode, *other_modes):
        if (row := find_mode_index(inference.modes, mode)) is not None:
            keep[row] = True
    # Idle serving uses expected costs only, so that the waiting mode stays the same over the rounds.
    return RoundService(inference, build_service_table(inference, demand), every.select_rows(keep), keep)


def _choose_batch_size(
    service: ExpectedService, predict_alone: Callable[[Sequence[Measurement]], Predictions], fastest_mode: PowerMode
) -> int:
    """Choose the batch size for the fastest mode, beside a step as long as predicted without measurements."""
    row = find_nearest_row(service.inference.modes, fastest_mode)
    train_s = predict_alone(()).step_s
    table = build_service_table(service.inference, service.demand, train_s, first_step_s(train_s))
    return int(table.batch_size[row])


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
        idle_w: Power at rest in every mode of ``service_plan.inference``, watts, shape (n,).
    """
    modes = service_plan.inference.modes
    if policy == "maxn" or policy.startswith("preset:"):
        return choose_waiting_mode(policy, spec, modes)
    return (
        modes[find_cheapest_row(service_plan.while_idle, idle_w)] if service_plan.while_idle.holds.any() else spec.maxn
    )


@dataclass(frozen=True, slots=True, eq=False)
class ServiceCorrection:
    """A ``fedge.client.prediction_requests.Correction`` for a standing service, whose share of the time varies."""

    plan: RoundService

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        return self

    def to_reference(self, measurements: Sequence[Measurement]) -> Sequence[Measurement]:
        return [remove_service_load(one, self.plan.inference) for one in measurements]

    def from_reference(self, predictions: Predictions) -> Predictions:
        table, keep = self.plan.while_training, self.plan.keep
        kept = Predictions(
            table.modes,
            step_s=predictions.step_s[keep],
            power_w=predictions.power_w[keep],
            step_s_sd_log=predictions.step_s_sd_log[keep],
            power_w_sd_log=predictions.power_w_sd_log[keep],
        )
        return add_service_to_predictions(kept, table)

    def normalize(self, measurements: Sequence[Measurement]) -> Sequence[Measurement]:
        return [self._normalize_one(one) for one in measurements]

    def _normalize_one(self, measurement: Measurement) -> Measurement:
        """Convert a measurement from the share of serving that it happened to see to the expected one."""
        table, use = self.plan.while_training, measurement.service
        row = find_mode_index(table.modes, measurement.mode)
        if use is None or row is None:
            return measurement
        expected = dataclasses.replace(
            use, batch_size=int(table.batch_size[row]), busy_s=use.seconds * float(table.share[row])
        )
        return add_service_load(remove_service_load(measurement, self.plan.inference), table, row, expected)
