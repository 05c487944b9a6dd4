"""A board's round at the batch size and width that fit into its memory: what is chosen, and what that changes.

What was measured at one scale tells of another by the ratio of their steps, estimated from the layers at top clocks:
seconds are carried over, watts stay those of the mode. So predictors go on learning when a board changes its scale, and
from boards at other scales.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

from fedge.costs.from_layers import network_cost
from fedge.costs.layered import known_layers, work_of
from fedge.devices.catalogue import load_catalogue
from fedge.devices.front import InFront
from fedge.experiment import WIDTHS, Experiment, FleetEntry, MemorySpec, WorkloadSpec
from fedge.interfaces import Device, Explorer, Predictor
from fedge.layers.counted import counted
from fedge.layers.network import NetworkCost
from fedge.memory.fitting import Chosen, belief_of, choose, ladder, remembered, told
from fedge.memory.narrower import narrower
from fedge.memory.need import StepNeed, need
from fedge.modes import modes_of
from fedge.physics.model import step_s
from fedge.rounds.networks import network_for
from fedge.rounds.player import Player
from fedge.types import (
    DeviceSpec,
    LayerWork,
    Measurement,
    MemorySeen,
    MemoryUse,
    Modes,
    Predictions,
    Scale,
    TrainOptions,
    Workload,
)
from fedge.wire import Ask, BoardState

SYSTEM_SHARE = 0.3
"""The part of a board's memory that its system takes (desktop or not, buffers, what shares the GPU's memory); chosen by
us, and what ``memory_mb`` of a fleet's entry is there for."""
AVERAGING = ("FedAvg", "FedAvgM", "FedProx", "FedAdam", "FedAdagrad", "FedYogi", "FedAsync", "FedBuff")
"""Strategies of which a narrow client's update can be a part: they average, channel by channel. Those that compare
whole updates with each other (Krum, medians, trimmed means), weigh them by their loss or clip them cannot have gaps."""


@dataclass(frozen=True, slots=True, eq=False)
class Means:
    """What a board has to train with: its memory, the network, what it is asked for and what it may lower.

    ``work`` is a minibatch as it is priced: a fleet entry's own cost may be of another batch size than is trained.
    ``narrow`` is asked, once that matters, whether the task's network can be narrowed.
    """

    network: NetworkCost
    device: DeviceSpec
    asked: Scale
    work: Workload
    limit_mb: float
    spec: MemorySpec
    narrow: Callable[[], bool]
    _needs: dict[Scale, StepNeed] = field(default_factory=dict)
    _seconds: dict[Scale, float] = field(default_factory=dict)

    def need(self, scale: Scale) -> StepNeed:
        """What a step needs, before the board's history corrects it."""
        if scale not in self._needs:
            network, batch_size = narrower(self.network, scale.width), self._priced(scale)
            self._needs[scale] = need(network, self.device, batch_size)
        return self._needs[scale]

    def ratio(self, scale: Scale | None) -> float:
        """How many times as long a step takes as at the scale that is asked for; 1 for None, which is that."""
        if scale is None or scale == self.asked:
            return 1.0
        return self._step_s(scale) / self._step_s(self.asked)

    def _priced(self, scale: Scale) -> int:
        """The batch size of the priced workload that is as much smaller as the scale's."""
        return max(1, round(scale.batch_size * self.work.batch_size / self.asked.batch_size))

    def _step_s(self, scale: Scale) -> float:
        """Seconds of a step at the top clocks, as estimated from the layers."""
        layers = self.work.layers
        if layers is None:
            return self.need(scale).step_s
        if scale not in self._seconds:
            held = layers if scale.width == 1.0 else _narrow_layers(layers, self.network, scale.width)
            work = dataclasses.replace(self.work, batch_size=self._priced(scale), layers=held)
            cost = network_cost(self.device, work, load_catalogue()).coefficients
            top = self.device.maxn
            self._seconds[scale] = float(step_s(cost, top, modes_of([top]))[0])
        return self._seconds[scale]

    def carried(self, measurement: Measurement, scale: Scale | None) -> Measurement:
        """A measurement as it would have been at another scale; itself where it was made at that."""
        if measurement.scale == scale:
            return measurement
        factor = self.ratio(scale) / self.ratio(measurement.scale)
        return dataclasses.replace(
            measurement,
            step_s=measurement.step_s * factor,
            warm_up_s=measurement.warm_up_s * factor,
            stall_s=measurement.stall_s * factor,
            scale=scale,
        )

    def scales(self) -> Iterable[Scale]:
        """What may be tried, in order of preference; narrow ones only where the network can be."""
        if not self.spec.guard:
            return (self.asked,)
        every = ladder(self.asked, min(self.spec.min_batch, self.asked.batch_size), self._widths, self.spec.lower)
        return (scale for scale in every if scale.width == 1.0 or self.narrow())

    @property
    def _widths(self) -> tuple[float, ...]:
        return WIDTHS if self.spec.widths is None else self.spec.widths


def means_of(experiment: Experiment, entry: FleetEntry, device: DeviceSpec, narrow: Callable[[], bool]) -> Means | None:
    """What the boards of an entry have to train with; None where nobody knows the network of what they work on.

    ``narrow`` tells whether the task's network can be narrowed; the strategy has to allow it too.
    """
    workload, strategy = experiment.workload, experiment.strategy.name
    network = network_for(experiment, entry.cost or workload.cost)
    if network is None:
        return None
    work, asked = work_of(entry, workload), Scale(workload.batch_size)
    if work.layers is None:
        work = dataclasses.replace(work, layers=known_layers(work.name))

    def may() -> bool:
        return may_narrow(workload, strategy) and narrow()

    return Means(network, device, asked, work, limit_mb(entry, device), workload.memory, may)


def _narrow_layers(layers: LayerWork, network: NetworkCost, width: float) -> LayerWork:
    return dataclasses.replace(layers, counted=counted(narrower(network, width)))


def limit_mb(entry: FleetEntry, device: DeviceSpec) -> float:
    """What training may use on an entry's boards, MB."""
    return entry.memory_mb or usable_mb(device)


def usable_mb(device: DeviceSpec) -> float:
    """What a board's system leaves for training, MB; estimated."""
    return (1.0 - SYSTEM_SHARE) * 1000.0 * device.ram_gb.value


def may_narrow(workload: WorkloadSpec, strategy: str) -> bool:
    """Whether a run's clients may train narrow networks, as far as its strategy goes.

    Widths that the user names count also with a strategy of the user's own.
    """
    return strategy in AVERAGING or (workload.memory.widths is not None and ":" in strategy)


@dataclass(frozen=True, slots=True)
class Try:
    """What a round is tried at, and what was lost in it before: to whom the tries before it were too large."""

    chosen: Chosen
    seen: tuple[MemorySeen, ...]
    failures: int = 0
    lost_s: float = 0.0

    @property
    def scale(self) -> Scale:
        return self.chosen.scale


def first_try(means: Means, state: BoardState) -> Try:
    """What a board's round is tried at first, from what its memory taught so far."""
    chosen = _chosen(means, state.memory)
    assert chosen is not None, "the scale that is asked for is among those that may be tried"
    return Try(chosen, state.memory)


def changes(means: Means | None, tried: Try | None, state: BoardState | None) -> bool:
    """Whether the round after one at ``tried``, which left ``state``, will be tried at another scale."""
    if means is None or tried is None or state is None:
        return False
    return first_try(means, state).scale != tried.scale


def again(means: Means, tried: Try) -> Try:
    """The try once more, after what may be tried has become less."""
    chosen = _chosen(means, tried.seen)
    assert chosen is not None, "the scale that is asked for is among those that may be tried"
    return dataclasses.replace(tried, chosen=chosen)


def next_try(means: Means, failed: Try, lost_s: float) -> Try | None:
    """The next smaller one after one ran out of memory, ``lost_s`` later; None where there is none."""
    seen = learnt(means, failed, None)
    chosen = _chosen(means, seen, failed.chosen) if means.spec.guard else None
    return None if chosen is None else Try(chosen, seen, failed.failures + 1, failed.lost_s + lost_s)


def _chosen(means: Means, seen: Sequence[MemorySeen], failed: Chosen | None = None) -> Chosen | None:
    return choose(means.scales(), means.need, belief_of(seen), means.limit_mb, means.spec.margin, failed)


def learnt(means: Means, tried: Try, peak_mb: float | None) -> tuple[MemorySeen, ...]:
    """What is remembered after a try; ``peak_mb`` None: it ran out of memory."""
    return remembered(tried.seen, MemorySeen(tried.chosen.own_mb, means.limit_mb, peak_mb))


def use_of(means: Means, tried: Try, state: BoardState, peak_mb: float | None) -> MemoryUse:
    """What a round's report tells of its memory."""
    first = first_try(means, state).chosen if tried.failures else tried.chosen
    predicted_mb = _asked_mb(means, tried.seen)
    why = told(means.asked, tried.scale, predicted_mb, means.limit_mb, means.spec.margin)
    if tried.failures:
        times = "once" if tried.failures == 1 else f"{tried.failures} times"
        why = f"{why or first.scale}; ran out of memory {times} first, at {first.scale}"
    return MemoryUse(
        asked=means.asked,
        used=tried.scale,
        predicted_mb=tried.chosen.need.memory_mb,
        limit_mb=means.limit_mb,
        peak_mb=peak_mb,
        failures=tried.failures,
        lost_s=tried.lost_s,
        changed=tried.failures > 0 or tried.scale != _last_scale(means, state),
        why=why,
        label=tried.chosen.need.label,
    )


def _asked_mb(means: Means, seen: Sequence[MemorySeen]) -> float:
    """What is believed of the scale that was asked for."""
    chosen = choose((means.asked,), means.need, belief_of(seen), means.limit_mb, means.spec.margin)
    assert chosen is not None, "there is one"
    return chosen.need.memory_mb


def _last_scale(means: Means, state: BoardState) -> Scale:
    last = state.measurements[-1].scale if state.measurements else None
    return means.asked if last is None else last


def refusal(means: Means, tried: Try) -> str:
    """Why a round failed that ran out of memory at the last of its tries."""
    predicted = f"{tried.chosen.need.memory_mb:,.0f} MB predicted, {means.limit_mb:,.0f} MB allowed"
    smaller = "nothing smaller may be tried: workload.memory says what may be lowered"
    remedy = smaller if means.spec.guard else "workload.memory.guard is off, so nothing was lowered"
    return f"out of memory at {tried.scale} ({predicted}); {remedy}"


def state_after_failure(means: Means, tried: Try, ask: Ask, lost_s: float) -> BoardState:
    """What the board remembers of a round of which every try ran out of memory."""
    end_s = ask.start_s + tried.lost_s + lost_s
    return dataclasses.replace(ask.state, memory=learnt(means, tried, None), rested_at_s=end_s)


def steps_at(steps: int, asked: Scale, scale: Scale) -> int:
    """Minibatches of ``scale`` that hold as many samples as ``steps`` of those that are asked for."""
    return math.ceil(steps * asked.batch_size / scale.batch_size)


def options_at(work: WorkloadSpec, steps: int, scale: Scale, proximal_mu: float) -> TrainOptions:
    """How to train at a scale: the learning rate follows the batch size, so that a sample moves the model as far.

    That is the linear scaling rule (Goyal et al. 2017, arXiv 1706.02677, section 2.1).
    """
    rate = work.learning_rate
    if scale.batch_size != work.batch_size:
        rate *= scale.batch_size / work.batch_size
    return TrainOptions(steps, scale.batch_size, rate, work.momentum, proximal_mu, scale.width)


def mark_of(means: Means | None, scale: Scale | None) -> Scale | None:
    """How measurements at ``scale`` are marked: not at all where it is what the experiment asks for."""
    return None if means is None or scale == means.asked else scale


class CarryingPredictor:
    """A ``Predictor`` around one of the scale that is asked for: what it predicts is of another one."""

    def __init__(self, inner: Predictor, means: Means, scale: Scale | None) -> None:
        self._inner, self._means, self._scale = inner, means, scale

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        self._inner = self._inner.fit([self._means.carried(one, None) for one in measurements])
        return self

    def predict(self, modes: Modes) -> Predictions:
        predictions, ratio = self._inner.predict(modes), self._means.ratio(self._scale)
        if ratio == 1.0:
            return predictions
        return dataclasses.replace(predictions, step_s=predictions.step_s * ratio)


class ScaledDevice(InFront):
    """A ``fedge.interfaces.Device`` in front of another: its measurements say what was trained at."""

    def __init__(self, device: Device, scale: Scale) -> None:
        super().__init__(device)
        self._scale = scale

    def measure(
        self, workload: Workload, steps: int, work: Callable[[int], object], limit_s: float | None = None
    ) -> Measurement:
        measured = self._device.measure(workload, steps, work, limit_s)
        return dataclasses.replace(measured, scale=self._scale)


class CarryingExplorer:
    """An ``Explorer`` that is told of every measurement as it would be at the scale that is asked for."""

    def __init__(self, inner: Explorer, means: Means) -> None:
        self._inner, self._means = inner, means

    def ask(self, count: int) -> Modes:
        return self._inner.ask(count)

    def tell(self, measurements: Sequence[Measurement]) -> None:
        self._inner.tell([self._means.carried(one, None) for one in measurements])


def at_scale(player: Player, means: Means, tried: Try, state: BoardState) -> Player:
    """The player of a round at a try's scale, whose predictor knows of it already.

    What earlier rounds allowed per minibatch says nothing of minibatches of another scale.
    """
    scale, made, usual = mark_of(means, tried.scale), player.explorer, player.usual
    workload = player.workload
    if scale is not None:
        workload = dataclasses.replace(workload, batch_size=tried.scale.batch_size)

    def explorer(modes: Modes) -> Explorer:
        assert made is not None
        return CarryingExplorer(made(modes), means)

    def carried(own: Sequence[Measurement]) -> Sequence[Measurement]:
        return usual([means.carried(one, scale) for one in own])

    return dataclasses.replace(
        player,
        device=player.device if scale is None else ScaledDevice(player.device, scale),
        workload=workload,
        allowed_s=player.allowed_s if tried.scale == _last_scale(means, state) else (),
        explorer=None if made is None else explorer,
        usual=carried,
        lost_s=tried.lost_s,
    )
