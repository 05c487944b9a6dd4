"""Choice of the training scale (batch size and network width) of a client with limited memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Self

from fedge.client.inference_service import find_inferred_network
from fedge.costs.layer_estimate import estimate_network_cost
from fedge.costs.layered_work import build_workload, find_known_layers, find_priced_network
from fedge.costs.layers.network_cost import NetworkCost, narrow_network, sum_layers
from fedge.costs.memory.scale_choice import (
    ScaleChoice,
    build_memory_belief,
    choose_scale,
    describe_scaling,
    extend_history,
    list_scales,
)
from fedge.costs.memory.step_need import (
    MEASURED_SETUP,
    MOST_OPTIMIZER_STATE,
    StepNeed,
    TrainingSetup,
    predict_step_need,
)
from fedge.decisions.planning import JOINT_POLICY
from fedge.devices.catalogue import load_catalogue
from fedge.errors import BadInput
from fedge.experiment import (
    DEFAULT_WIDTHS,
    Experiment,
    FleetEntry,
    MemorySpec,
    ServingSpec,
    StrategySpec,
    WorkloadSpec,
)
from fedge.modes import stack_modes
from fedge.physics.time_power_model import compute_step_s
from fedge.protocols import LearningTask
from fedge.types import (
    DeviceSpec,
    LayerWork,
    Measurement,
    MemoryObservation,
    MemoryUse,
    NarrowOffer,
    Predictions,
    TrainingScale,
    TrainOptions,
    Workload,
)
from fedge.wire import ClientState, RequestMessage
from fedge.workloads import TASK_FILE_SUFFIX

SYSTEM_SHARE = 0.3
# Share of a board's memory used by the operating system, the desktop and buffers. A default; it differs between
# installations, for which a fleet entry has ``memory_mb``.
AVERAGING_STRATEGIES = ("FedAvg", "FedAvgM", "FedProx", "FedAdam", "FedAdagrad", "FedYogi", "FedAsync", "FedBuff")
# Strategies that average channel by channel, so that a narrow client's update can take part. Strategies that compare
# whole updates (Krum, medians, trimmed means), weight them by loss or clip them need all channels.


@dataclass(frozen=True, slots=True, eq=False)
class ScalingContext:
    """A board's memory, its network, the requested training scale and what may be lowered.

    Attributes:
        requested: The run's requested scale, to which step times refer.
        work: The step as it is priced; its batch size may differ from the trained one.
        limit_mb: Memory available for training in MB.
        can_narrow: Returns whether the task's network can be narrowed; called only if needed.
        width: Largest width that the board may train.
        is_width_planned: Whether the server's plan may ask for a narrower network.
        setup: The optimiser's state and the precision of steps.
    """

    network: NetworkCost
    device: DeviceSpec
    requested: TrainingScale
    work: Workload
    limit_mb: float
    spec: MemorySpec
    can_narrow: Callable[[], bool]
    width: float = 1.0
    is_width_planned: bool = False
    setup: TrainingSetup = MEASURED_SETUP
    _needs: dict[TrainingScale, StepNeed] = field(default_factory=dict)
    _seconds: dict[TrainingScale, float] = field(default_factory=dict)
    _shares: dict[float, float] = field(default_factory=dict)
    _by_width: dict[float, ScalingContext] = field(init=False, default_factory=dict)

    @property
    def asked_scale(self) -> TrainingScale:
        """Return the scale that the board trains if it has the memory."""
        return TrainingScale(self.requested.batch_size, self.width)

    def estimate_need(self, scale: TrainingScale) -> StepNeed:
        """Return the predicted memory of a step, not corrected by the board's history."""
        if scale not in self._needs:
            network, batch_size = narrow_network(self.network, scale.width), self._priced_batch_size(scale)
            self._needs[scale] = predict_step_need(network, self.device, batch_size, self.setup)
        return self._needs[scale]

    def parameter_share(self, scale: TrainingScale | None) -> float:
        """Return the share of the network's parameters that a client trains; None stands for the requested scale."""
        if scale is None or scale.width == 1.0:
            return 1.0
        if scale.width not in self._shares:
            narrow = narrow_network(self.network, scale.width)
            self._shares[scale.width] = narrow.trained_parameters / max(1, self.network.trained_parameters)
        return self._shares[scale.width]

    def limit_width(self, width: float) -> ScalingContext:
        """Return the options with another largest width; the same object each time, so that its choices are kept."""
        if width not in self._by_width:
            self._by_width[width] = dataclasses.replace(self, width=width)
        return self._by_width[width]

    def step_time_ratio(self, scale: TrainingScale | None) -> float:
        """Return the step time relative to the requested scale; 1 for None, which stands for that scale."""
        if scale is None or scale == self.requested:
            return 1.0
        return self._top_clock_step_s(scale) / self._top_clock_step_s(self.requested)

    def _priced_batch_size(self, scale: TrainingScale) -> int:
        """Return the batch size of the priced workload, scaled like the trained one."""
        return max(1, round(scale.batch_size * self.work.batch_size / self.requested.batch_size))

    def _top_clock_step_s(self, scale: TrainingScale) -> float:
        """Return the seconds of a step at the top clocks, estimated from the layers."""
        layers = self.work.layers
        if layers is None:
            return self.estimate_need(scale).step_s
        if scale not in self._seconds:
            held = layers if scale.width == 1.0 else _narrow_layer_work(layers, self.network, scale.width)
            work = dataclasses.replace(self.work, batch_size=self._priced_batch_size(scale), layers=held)
            cost = estimate_network_cost(self.device, work, load_catalogue()).coefficients
            top = self.device.maxn
            self._seconds[scale] = float(compute_step_s(cost, top, stack_modes([top]))[0])
        return self._seconds[scale]

    def rescale_measurements(
        self, measurements: Sequence[Measurement], scale: TrainingScale | None
    ) -> Sequence[Measurement]:
        """Convert measurements to another scale by the estimated ratio of step times; power is left unchanged."""
        return [one if one.scale == scale else self.rescale_measurement(one, scale) for one in measurements]

    def rescale_measurement(self, measurement: Measurement, scale: TrainingScale | None) -> Measurement:
        if measurement.scale == scale:
            return measurement
        factor = self.step_time_ratio(scale) / self.step_time_ratio(measurement.scale)
        return dataclasses.replace(
            measurement,
            step_s=measurement.step_s * factor,
            warm_up_s=measurement.warm_up_s * factor,
            stall_s=measurement.stall_s * factor,
            scale=scale,
        )

    def list_scales(self) -> Iterable[TrainingScale]:
        """Return the scales to try in order of preference; narrow ones only if the network can be narrowed."""
        if not self.spec.guard:
            return (self.asked_scale,)
        every = list_scales(
            self.asked_scale, min(self.spec.min_batch, self.requested.batch_size), self.allowed_widths, self.spec.lower
        )
        return (scale for scale in every if scale.width == 1.0 or self.can_narrow())

    @property
    def allowed_widths(self) -> tuple[float, ...]:
        """Return the widths that the board may train, the requested one aside."""
        return DEFAULT_WIDTHS if self.spec.widths is None else self.spec.widths


def build_scaling_context(
    experiment: Experiment, entry: FleetEntry, device: DeviceSpec, narrow: Callable[[], bool]
) -> ScalingContext | None:
    """Build the memory and scaling options of a fleet entry's boards.

    Args:
        narrow: Returns whether the task's network can be narrowed; the strategy must allow it too.

    Returns:
        The options, or None if the network of the workload is unknown.
    """
    workload = experiment.workload
    network = find_priced_network(entry, workload)
    if network is None:
        return None
    work, requested = build_workload(entry, workload), TrainingScale(workload.batch_size)
    if work.layers is None:
        work = dataclasses.replace(work, layers=find_known_layers(work.name))

    @cache
    def may() -> bool:
        return can_narrow_clients(experiment) and narrow()

    return ScalingContext(
        network,
        device=device,
        requested=requested,
        work=work,
        limit_mb=max(0.0, memory_limit_mb(entry, device) - service_memory_mb(entry.serving)),
        spec=workload.memory,
        can_narrow=may,
        width=entry.width,
        is_width_planned=experiment.policy.name == JOINT_POLICY,
        setup=describe_training_setup(experiment, entry),
    )


def describe_training_setup(experiment: Experiment, entry: FleetEntry) -> TrainingSetup:
    """Return the optimiser's state and the precision of an entry's steps.

    An own optimiser that was not counted is taken to keep the most. FedProx keeps the weights that it started from.
    """
    work = experiment.workload
    priced_mixed = entry.cost is None and work.network is not None and work.network.mixed
    is_own = ":" in work.task or work.task.endswith(TASK_FILE_SUFFIX)
    assumed = work.optimizer_state is None and is_own
    state = work.optimizer_state
    if state is None:
        state = MOST_OPTIMIZER_STATE if assumed else MEASURED_SETUP.optimizer_state
    starts = 1.0 if _is_proximal(experiment.strategy) else 0.0
    return TrainingSetup(state + starts, mixed=work.mixed_precision or priced_mixed, assumed=assumed)


def _is_proximal(strategy: StrategySpec) -> bool:
    return bool(strategy.options.get("proximal_mu")) or (strategy.wraps is not None and _is_proximal(strategy.wraps))


def _narrow_layer_work(layers: LayerWork, network: NetworkCost, width: float) -> LayerWork:
    narrow = narrow_network(network, width)
    counted = sum_layers(narrow, training=True, optimizer_state=layers.optimizer_state)
    return dataclasses.replace(layers, counted=counted)


def memory_limit_mb(entry: FleetEntry, device: DeviceSpec) -> float:
    """Return the memory available for training on an entry's boards in MB."""
    return entry.memory_mb or estimate_usable_mb(device)


def service_memory_mb(spec: ServingSpec | None) -> float:
    """Return the memory that a standing service keeps in MB: the weights and the activations of its largest batch.

    Inference frees activations once they are used, so the operator that reads and writes most sets them. 0 without
    a service, or if the layers of its network are not known.
    """
    network = None if spec is None else find_inferred_network(spec.cost, spec.network)
    if spec is None or network is None:
        return 0.0
    return network.inference_memory_mb(max(spec.batch_sizes))


def estimate_usable_mb(device: DeviceSpec) -> float:
    """Return an estimate of the memory that a board's system leaves for training in MB."""
    return (1.0 - SYSTEM_SHARE) * 1000.0 * device.ram_gb.value


def can_narrow_clients(experiment: Experiment) -> bool:
    """Return whether a run's strategy and mods allow clients to train narrow networks.

    A strategy of the user's own is allowed if the user sets the widths. Mods compare a result with the whole model.
    """
    workload, strategy = experiment.workload, experiment.strategy.name
    if experiment.mods:
        return False
    return strategy in AVERAGING_STRATEGIES or (workload.memory.widths is not None and ":" in strategy)


def explain_narrowing_failure(task: LearningTask, widths: Iterable[float] = DEFAULT_WIDTHS) -> str:
    """Return why a task's network cannot have one of ``widths``, or an empty string if it can have all."""
    shapes = getattr(task, "narrow_shapes", None)
    if shapes is None:
        return "a task of your own without narrow_shapes(width)"
    try:
        for width in widths:
            if width < 1.0:
                shapes(width)
    except BadInput as error:
        return str(error)
    return ""


@dataclass(frozen=True, slots=True)
class ScaleAttempt:
    """One attempt of a round at a scale.

    Attributes:
        observations: Memory observations before the attempt.
        lost_s: Seconds that those took.
    """

    choice: ScaleChoice
    observations: tuple[MemoryObservation, ...]
    failures: int = 0
    lost_s: float = 0.0

    @property
    def scale(self) -> TrainingScale:
        return self.choice.scale


def choose_first_attempt(scaling: ScalingContext, state: ClientState) -> ScaleAttempt:
    """Choose a round's first attempt from the memory observations in ``state``."""
    chosen = _choose_scale(scaling, state.memory)
    assert chosen is not None, "the scale that is asked for is among those that may be tried"
    return ScaleAttempt(chosen, state.memory)


def build_narrow_offers(scaling: ScalingContext, attempt: ScaleAttempt, state: ClientState) -> tuple[NarrowOffer, ...]:
    """Return what the allowed widths below the scale of ``attempt`` cost relative to it, those that memory allows."""
    if not scaling.can_narrow():
        return ()
    offers, whole = [], attempt.scale
    for width in sorted({width for width in scaling.allowed_widths if width < whole.width}, reverse=True):
        narrow = choose_first_attempt(scaling.limit_width(width), state).scale
        if narrow.width != width:
            continue
        per_step = scaling.step_time_ratio(narrow) / scaling.step_time_ratio(whole)
        sent = scaling.parameter_share(narrow) / scaling.parameter_share(whole)
        offers.append(NarrowOffer(width, work=per_step * whole.batch_size / narrow.batch_size, sent=sent))
    return tuple(offers)


def will_change_scale(scaling: ScalingContext, attempt: ScaleAttempt, state: ClientState) -> bool:
    """Return whether the round after the attempt ``attempt``, which left ``state``, will use another scale."""
    return choose_first_attempt(scaling, state).scale != attempt.scale


def rechoose_attempt(scaling: ScalingContext, attempt: ScaleAttempt) -> ScaleAttempt:
    """Repeat the choice of an attempt after the set of allowed scales has shrunk."""
    chosen = _choose_scale(scaling, attempt.observations)
    assert chosen is not None, "the scale that is asked for is among those that may be tried"
    return dataclasses.replace(attempt, choice=chosen)


def choose_next_attempt(scaling: ScalingContext, failed: ScaleAttempt, lost_s: float) -> ScaleAttempt | None:
    """Return the next smaller attempt after an out-of-memory failure that took ``lost_s`` seconds, or None."""
    observations = update_memory_history(scaling, failed, None)
    chosen = _choose_scale(scaling, observations, failed.choice) if scaling.spec.guard else None
    return None if chosen is None else ScaleAttempt(chosen, observations, failed.failures + 1, failed.lost_s + lost_s)


@lru_cache(maxsize=4096)
def _choose_scale(
    scaling: ScalingContext, observations: tuple[MemoryObservation, ...], failed: ScaleChoice | None = None
) -> ScaleChoice | None:
    """Choose a scale; kept, as the end of a client's round asks what the beginning of its next one asks again."""
    return choose_scale(
        scaling.list_scales(),
        need=scaling.estimate_need,
        belief=build_memory_belief(observations),
        limit_mb=scaling.limit_mb,
        margin=scaling.spec.margin,
        failed=failed,
    )


def update_memory_history(
    scaling: ScalingContext, attempt: ScaleAttempt, peak_mb: float | None
) -> tuple[MemoryObservation, ...]:
    """Return the memory observations after an attempt; ``peak_mb`` None means that it ran out of memory."""
    return extend_history(
        attempt.observations, MemoryObservation(attempt.choice.uncorrected_mb, scaling.limit_mb, peak_mb)
    )


def summarize_memory_use(
    scaling: ScalingContext, attempt: ScaleAttempt, state: ClientState, peak_mb: float | None
) -> MemoryUse:
    """Build the memory section of a round's report."""
    asked = scaling.asked_scale
    first = choose_first_attempt(scaling, state).choice if attempt.failures else attempt.choice
    why = describe_scaling(
        asked,
        used=attempt.scale,
        need=attempt.choice.need if attempt.scale == asked else _predict_asked_scale(scaling, attempt.observations),
        limit_mb=scaling.limit_mb,
        margin=scaling.spec.margin,
    )
    if attempt.failures:
        times = "once" if attempt.failures == 1 else f"{attempt.failures} times"
        why = f"{why or first.scale}; ran out of memory {times} first, at {first.scale}"
    return MemoryUse(
        asked=asked,
        used=attempt.scale,
        predicted_mb=attempt.choice.need.memory_mb,
        limit_mb=scaling.limit_mb,
        peak_mb=peak_mb,
        failures=attempt.failures,
        lost_s=attempt.lost_s,
        changed=attempt.failures > 0 or attempt.scale != previous_scale(scaling, state),
        why=why,
        label=attempt.choice.need.label,
    )


def _predict_asked_scale(scaling: ScalingContext, observations: Sequence[MemoryObservation]) -> StepNeed:
    """Return the predicted need at the scale that is asked for, corrected by the history."""
    chosen = choose_scale(
        (scaling.asked_scale,),
        need=scaling.estimate_need,
        belief=build_memory_belief(observations),
        limit_mb=scaling.limit_mb,
        margin=scaling.spec.margin,
    )
    assert chosen is not None, "there is one"
    return chosen.need


def previous_scale(scaling: ScalingContext, state: ClientState) -> TrainingScale:
    """Return the scale of the client's last measurement, or the one that is asked for before the first."""
    last = state.measurements[-1].scale if state.measurements else None
    return scaling.asked_scale if last is None else last


def explain_out_of_memory(scaling: ScalingContext, attempt: ScaleAttempt) -> str:
    """Return the message of a round whose last attempt ran out of memory."""
    predicted = f"{attempt.choice.need.memory_mb:,.0f} MB predicted, {scaling.limit_mb:,.0f} MB allowed"
    smaller = (
        "nothing smaller may be tried: workload.memory says what may be lowered, memory_mb of the fleet entry what the "
        "board has for training"
    )
    remedy = smaller if scaling.spec.guard else "workload.memory.guard is off, so nothing was lowered"
    return f"out of memory at {attempt.scale} ({predicted}); {remedy}"


def build_failed_state(
    scaling: ScalingContext, attempt: ScaleAttempt, request: RequestMessage, lost_s: float
) -> ClientState:
    """Return the client's state after a round in which every attempt ran out of memory."""
    end_s = request.start_s + attempt.lost_s + lost_s
    return dataclasses.replace(request.state, memory=update_memory_history(scaling, attempt, None), rested_at_s=end_s)


def count_steps_at(steps: int, requested: TrainingScale, scale: TrainingScale) -> int:
    """Return the number of steps at ``scale`` that cover as many samples as ``steps`` at the requested scale."""
    return math.ceil(steps * requested.batch_size / scale.batch_size)


def build_train_options(work: WorkloadSpec, steps: int, scale: TrainingScale, request: RequestMessage) -> TrainOptions:
    """Build the training options of a request at a scale; the learning rate is proportional to the batch size.

    References:
        Goyal et al. (2017), arXiv 1706.02677, section 2.1: linear scaling rule.
    """
    rate = work.learning_rate if request.learning_rate is None else request.learning_rate
    if scale.batch_size != work.batch_size:
        rate *= scale.batch_size / work.batch_size
    return TrainOptions(
        steps,
        batch_size=scale.batch_size,
        learning_rate=rate,
        momentum=work.momentum,
        proximal_mu=request.proximal_mu,
        width=scale.width,
        mixed=work.mixed_precision,
    )


def measurement_scale(scaling: ScalingContext | None, scale: TrainingScale | None) -> TrainingScale | None:
    """Return the scale label of measurements: None if it is the requested scale."""
    return None if scaling is None or scale == scaling.requested else scale


@dataclass(frozen=True, slots=True, eq=False)
class ScaleCorrection:
    """A ``fedge.client.prediction_requests.Correction`` for a training scale other than the requested one.

    Attributes:
        scale: Scale of the round; None for the requested one.
    """

    scaling: ScalingContext
    scale: TrainingScale | None

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        return self

    def to_reference(self, measurements: Sequence[Measurement]) -> Sequence[Measurement]:
        return self.scaling.rescale_measurements(measurements, None)

    def from_reference(self, predictions: Predictions) -> Predictions:
        ratio = self.scaling.step_time_ratio(self.scale)
        return predictions if ratio == 1.0 else dataclasses.replace(predictions, step_s=predictions.step_s * ratio)

    def normalize(self, measurements: Sequence[Measurement]) -> Sequence[Measurement]:
        return self.scaling.rescale_measurements(measurements, self.scale)
