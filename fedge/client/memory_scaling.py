"""Which network a board's minibatches are of, as far as its layers are known."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

from fedge.client.round_context import RoundContext
from fedge.costs.layer_estimate import estimate_network_cost
from fedge.costs.layered_work import build_workload, find_known_layers, network_from_spec
from fedge.costs.layers.known_networks import find_known_network
from fedge.costs.layers.layer_sums import sum_layers
from fedge.costs.layers.network_cost import NetworkCost
from fedge.costs.memory.scale_choice import (
    ScaleChoice,
    build_memory_belief,
    choose_scale,
    describe_scaling,
    extend_history,
    list_scales,
)
from fedge.costs.memory.step_need import StepNeed, predict_step_need
from fedge.costs.memory.width_scaling import narrow_network
from fedge.devices.catalogue import load_catalogue
from fedge.devices.device_wrapper import DeviceWrapper
from fedge.experiment import DEFAULT_WIDTHS, Experiment, FleetEntry, MemorySpec, WorkloadSpec
from fedge.modes import stack_modes
from fedge.physics.time_power_model import compute_step_s
from fedge.protocols import Device, Explorer, Predictor
from fedge.types import (
    DeviceSpec,
    LayerWork,
    Measurement,
    MemoryObservation,
    MemoryUse,
    Modes,
    Predictions,
    TrainingScale,
    TrainOptions,
    Workload,
)
from fedge.wire import ClientState, RequestMessage


def find_network(experiment: Experiment, cost: str) -> NetworkCost | None:
    """The network behind a cost's name: the experiment's own, or that of a known workload; None where nobody knows."""
    own = experiment.workload.network
    if own is not None and cost == experiment.workload.cost:
        return network_from_spec(own)
    return find_known_network(cost)


SYSTEM_SHARE = 0.3
"""The part of a board's memory that its system takes (desktop or not, buffers, what shares the GPU's memory); chosen by
us, and what ``memory_mb`` of a fleet's entry is there for."""
AVERAGING_STRATEGIES = ("FedAvg", "FedAvgM", "FedProx", "FedAdam", "FedAdagrad", "FedYogi", "FedAsync", "FedBuff")
"""Strategies of which a narrow client's update can be a part: they average, channel by channel. Those that compare
whole updates with each other (Krum, medians, trimmed means), weigh them by their loss or clip them cannot have gaps."""


@dataclass(frozen=True, slots=True, eq=False)
class ScalingContext:
    """What a board has to train with: its memory, the network, what it is asked for and what it may lower.

    ``work`` is a minibatch as it is priced: a fleet entry's own cost may be of another batch size than is trained.
    ``narrow`` is asked, once that matters, whether the task's network can be narrowed.
    """

    network: NetworkCost
    device: DeviceSpec
    asked: TrainingScale
    work: Workload
    limit_mb: float
    spec: MemorySpec
    can_narrow: Callable[[], bool]
    _needs: dict[TrainingScale, StepNeed] = field(default_factory=dict)
    _seconds: dict[TrainingScale, float] = field(default_factory=dict)

    def estimate_need(self, scale: TrainingScale) -> StepNeed:
        """What a step needs, before the board's history corrects it."""
        if scale not in self._needs:
            network, batch_size = narrow_network(self.network, scale.width), self._priced_batch_size(scale)
            self._needs[scale] = predict_step_need(network, self.device, batch_size)
        return self._needs[scale]

    def step_time_ratio(self, scale: TrainingScale | None) -> float:
        """How many times as long a step takes as at the scale that is asked for; 1 for None, which is that."""
        if scale is None or scale == self.asked:
            return 1.0
        return self._top_clock_step_s(scale) / self._top_clock_step_s(self.asked)

    def _priced_batch_size(self, scale: TrainingScale) -> int:
        """The batch size of the priced workload that is as much smaller as the scale's."""
        return max(1, round(scale.batch_size * self.work.batch_size / self.asked.batch_size))

    def _top_clock_step_s(self, scale: TrainingScale) -> float:
        """Seconds of a step at the top clocks, as estimated from the layers."""
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

    def rescale_measurement(self, measurement: Measurement, scale: TrainingScale | None) -> Measurement:
        """A measurement as it would have been at another scale; itself where it was made at that."""
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
        """What may be tried, in order of preference; narrow ones only where the network can be."""
        if not self.spec.guard:
            return (self.asked,)
        every = list_scales(
            self.asked, min(self.spec.min_batch, self.asked.batch_size), self._allowed_widths, self.spec.lower
        )
        return (scale for scale in every if scale.width == 1.0 or self.can_narrow())

    @property
    def _allowed_widths(self) -> tuple[float, ...]:
        return DEFAULT_WIDTHS if self.spec.widths is None else self.spec.widths


def build_scaling_context(
    experiment: Experiment, entry: FleetEntry, device: DeviceSpec, narrow: Callable[[], bool]
) -> ScalingContext | None:
    """What the boards of an entry have to train with; None where nobody knows the network of what they work on.

    ``narrow`` tells whether the task's network can be narrowed; the strategy has to allow it too.
    """
    workload, strategy = experiment.workload, experiment.strategy.name
    network = find_network(experiment, entry.cost or workload.cost)
    if network is None:
        return None
    work, asked = build_workload(entry, workload), TrainingScale(workload.batch_size)
    if work.layers is None:
        work = dataclasses.replace(work, layers=find_known_layers(work.name))

    def may() -> bool:
        return can_narrow_clients(workload, strategy) and narrow()

    return ScalingContext(
        network,
        device=device,
        asked=asked,
        work=work,
        limit_mb=memory_limit_mb(entry, device),
        spec=workload.memory,
        can_narrow=may,
    )


def _narrow_layer_work(layers: LayerWork, network: NetworkCost, width: float) -> LayerWork:
    return dataclasses.replace(layers, counted=sum_layers(narrow_network(network, width)))


def memory_limit_mb(entry: FleetEntry, device: DeviceSpec) -> float:
    """What training may use on an entry's boards, MB."""
    return entry.memory_mb or estimate_usable_mb(device)


def estimate_usable_mb(device: DeviceSpec) -> float:
    """What a board's system leaves for training, MB; estimated."""
    return (1.0 - SYSTEM_SHARE) * 1000.0 * device.ram_gb.value


def can_narrow_clients(workload: WorkloadSpec, strategy: str) -> bool:
    """Whether a run's clients may train narrow networks, as far as its strategy goes.

    Widths that the user names count also with a strategy of the user's own.
    """
    return strategy in AVERAGING_STRATEGIES or (workload.memory.widths is not None and ":" in strategy)


@dataclass(frozen=True, slots=True)
class ScaleAttempt:
    """What a round is tried at, and what was lost in it before: to whom the tries before it were too large."""

    choice: ScaleChoice
    seen: tuple[MemoryObservation, ...]
    failures: int = 0
    lost_s: float = 0.0

    @property
    def scale(self) -> TrainingScale:
        return self.choice.scale


def choose_first_attempt(means: ScalingContext, state: ClientState) -> ScaleAttempt:
    """What a board's round is tried at first, from what its memory taught so far."""
    chosen = _choose_scale(means, state.memory)
    assert chosen is not None, "the scale that is asked for is among those that may be tried"
    return ScaleAttempt(chosen, state.memory)


def will_change_scale(means: ScalingContext | None, tried: ScaleAttempt | None, state: ClientState | None) -> bool:
    """Whether the round after one at ``tried``, which left ``state``, will be tried at another scale."""
    if means is None or tried is None or state is None:
        return False
    return choose_first_attempt(means, state).scale != tried.scale


def rechoose_attempt(means: ScalingContext, tried: ScaleAttempt) -> ScaleAttempt:
    """The try once more, after what may be tried has become less."""
    chosen = _choose_scale(means, tried.seen)
    assert chosen is not None, "the scale that is asked for is among those that may be tried"
    return dataclasses.replace(tried, choice=chosen)


def choose_next_attempt(means: ScalingContext, failed: ScaleAttempt, lost_s: float) -> ScaleAttempt | None:
    """The next smaller one after one ran out of memory, ``lost_s`` later; None where there is none."""
    seen = update_memory_history(means, failed, None)
    chosen = _choose_scale(means, seen, failed.choice) if means.spec.guard else None
    return None if chosen is None else ScaleAttempt(chosen, seen, failed.failures + 1, failed.lost_s + lost_s)


def _choose_scale(
    means: ScalingContext, seen: Sequence[MemoryObservation], failed: ScaleChoice | None = None
) -> ScaleChoice | None:
    return choose_scale(
        means.list_scales(),
        need=means.estimate_need,
        belief=build_memory_belief(seen),
        limit_mb=means.limit_mb,
        margin=means.spec.margin,
        failed=failed,
    )


def update_memory_history(
    means: ScalingContext, tried: ScaleAttempt, peak_mb: float | None
) -> tuple[MemoryObservation, ...]:
    """What is remembered after a try; ``peak_mb`` None: it ran out of memory."""
    return extend_history(tried.seen, MemoryObservation(tried.choice.uncorrected_mb, means.limit_mb, peak_mb))


def summarize_memory_use(
    means: ScalingContext, tried: ScaleAttempt, state: ClientState, peak_mb: float | None
) -> MemoryUse:
    """What a round's report tells of its memory."""
    first = choose_first_attempt(means, state).choice if tried.failures else tried.choice
    predicted_mb = _requested_scale_mb(means, tried.seen)
    why = describe_scaling(
        means.asked, used=tried.scale, predicted_mb=predicted_mb, limit_mb=means.limit_mb, margin=means.spec.margin
    )
    if tried.failures:
        times = "once" if tried.failures == 1 else f"{tried.failures} times"
        why = f"{why or first.scale}; ran out of memory {times} first, at {first.scale}"
    return MemoryUse(
        asked=means.asked,
        used=tried.scale,
        predicted_mb=tried.choice.need.memory_mb,
        limit_mb=means.limit_mb,
        peak_mb=peak_mb,
        failures=tried.failures,
        lost_s=tried.lost_s,
        changed=tried.failures > 0 or tried.scale != _previous_scale(means, state),
        why=why,
        label=tried.choice.need.label,
    )


def _requested_scale_mb(means: ScalingContext, seen: Sequence[MemoryObservation]) -> float:
    """What is believed of the scale that was asked for."""
    chosen = choose_scale(
        (means.asked,),
        need=means.estimate_need,
        belief=build_memory_belief(seen),
        limit_mb=means.limit_mb,
        margin=means.spec.margin,
    )
    assert chosen is not None, "there is one"
    return chosen.need.memory_mb


def _previous_scale(means: ScalingContext, state: ClientState) -> TrainingScale:
    last = state.measurements[-1].scale if state.measurements else None
    return means.asked if last is None else last


def explain_out_of_memory(means: ScalingContext, tried: ScaleAttempt) -> str:
    """Why a round failed that ran out of memory at the last of its tries."""
    predicted = f"{tried.choice.need.memory_mb:,.0f} MB predicted, {means.limit_mb:,.0f} MB allowed"
    smaller = "nothing smaller may be tried: workload.memory says what may be lowered"
    remedy = smaller if means.spec.guard else "workload.memory.guard is off, so nothing was lowered"
    return f"out of memory at {tried.scale} ({predicted}); {remedy}"


def build_failed_state(means: ScalingContext, tried: ScaleAttempt, ask: RequestMessage, lost_s: float) -> ClientState:
    """What the board remembers of a round of which every try ran out of memory."""
    end_s = ask.start_s + tried.lost_s + lost_s
    return dataclasses.replace(ask.state, memory=update_memory_history(means, tried, None), rested_at_s=end_s)


def count_steps_at(steps: int, asked: TrainingScale, scale: TrainingScale) -> int:
    """Minibatches of ``scale`` that hold as many samples as ``steps`` of those that are asked for."""
    return math.ceil(steps * asked.batch_size / scale.batch_size)


def build_train_options(work: WorkloadSpec, steps: int, scale: TrainingScale, proximal_mu: float) -> TrainOptions:
    """How to train at a scale: the learning rate follows the batch size, so that a sample moves the model as far.

    That is the linear scaling rule (Goyal et al. 2017, arXiv 1706.02677, section 2.1).
    """
    rate = work.learning_rate
    if scale.batch_size != work.batch_size:
        rate *= scale.batch_size / work.batch_size
    return TrainOptions(
        steps,
        batch_size=scale.batch_size,
        learning_rate=rate,
        momentum=work.momentum,
        proximal_mu=proximal_mu,
        width=scale.width,
    )


def measurement_scale(means: ScalingContext | None, scale: TrainingScale | None) -> TrainingScale | None:
    """How measurements at ``scale`` are marked: not at all where it is what the experiment asks for."""
    return None if means is None or scale == means.asked else scale


class RescalingPredictor:
    """A ``Predictor`` around one of the scale that is asked for: what it predicts is of another one."""

    def __init__(self, inner: Predictor, means: ScalingContext, scale: TrainingScale | None) -> None:
        self._inner, self._means, self._scale = inner, means, scale

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        self._inner = self._inner.fit([self._means.rescale_measurement(one, None) for one in measurements])
        return self

    def predict(self, modes: Modes) -> Predictions:
        predictions, ratio = self._inner.predict(modes), self._means.step_time_ratio(self._scale)
        if ratio == 1.0:
            return predictions
        return dataclasses.replace(predictions, step_s=predictions.step_s * ratio)


class ScaleLabelDevice(DeviceWrapper):
    """A ``fedge.protocols.Device`` in front of another: its measurements say what was trained at."""

    def __init__(self, device: Device, scale: TrainingScale) -> None:
        super().__init__(device)
        self._scale = scale

    def measure(
        self, workload: Workload, steps: int, work: Callable[[int], object], limit_s: float | None = None
    ) -> Measurement:
        measured = self._device.measure(workload, steps, work, limit_s)
        return dataclasses.replace(measured, scale=self._scale)


class RescalingExplorer:
    """An ``Explorer`` that is told of every measurement as it would be at the scale that is asked for."""

    def __init__(self, inner: Explorer, means: ScalingContext) -> None:
        self._inner, self._means = inner, means

    def ask(self, count: int) -> Modes:
        return self._inner.ask(count)

    def tell(self, measurements: Sequence[Measurement]) -> None:
        self._inner.tell([self._means.rescale_measurement(one, None) for one in measurements])


def apply_scale(player: RoundContext, means: ScalingContext, tried: ScaleAttempt, state: ClientState) -> RoundContext:
    """The player of a round at a try's scale, whose predictor knows of it already.

    What earlier rounds allowed per minibatch says nothing of minibatches of another scale.
    """
    scale, made, usual = measurement_scale(means, tried.scale), player.make_explorer, player.normalize
    workload = player.workload
    if scale is not None:
        workload = dataclasses.replace(workload, batch_size=tried.scale.batch_size)

    def explorer(modes: Modes) -> Explorer:
        assert made is not None
        return RescalingExplorer(made(modes), means)

    def carried(own: Sequence[Measurement]) -> Sequence[Measurement]:
        return usual([means.rescale_measurement(one, scale) for one in own])

    return dataclasses.replace(
        player,
        device=player.device if scale is None else ScaleLabelDevice(player.device, scale),
        workload=workload,
        step_budgets_s=player.step_budgets_s if tried.scale == _previous_scale(means, state) else (),
        make_explorer=None if made is None else explorer,
        normalize=carried,
        lost_s=tried.lost_s,
    )
