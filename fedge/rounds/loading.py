"""A board's round with a loader that may keep it waiting: what loading adds to a minibatch, and how it is taken off.

Symbols of a minibatch in one mode: X seconds of its computing with its samples there, T from end to end beside the
loading (``fedge.pipeline.steady``), s = T - computing its stall, u = 1 - s / T, watts P at work, W while it waits:

    power = u P + (1 - u) W,   W = idle + (busy loading cores) x (watts of a busy core)

A predictor learns X and P: what was measured is rid of its stall, whose seconds are measured with it, and what is
predicted gets the stall of its mode. Watts of idling and of a busy core are the physical model's (``fedge.physics``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from fedge.devices.front import InFront
from fedge.devices.truth import Surface
from fedge.interfaces import Device, Explorer, Predictor
from fedge.modes import modes_of
from fedge.physics.model import POWER_NAMES, Coefficients, idle_shape, shares, time_parts
from fedge.pipeline.modes import host_factor, paces_at
from fedge.pipeline.records import Pipeline
from fedge.pipeline.steady import Paces
from fedge.rounds.player import Player
from fedge.types import Floats, Measurement, Modes, PowerMode, Predictions, Workload

LOADING_SD_LOG = 0.1
"""How far loading may be off what is believed of it, log units, before a stall was seen; chosen by us."""
SEEN_SD_LOG = 0.03
"""The same after; chosen by us."""
WAITING_SD_LOG = 0.1
"""How far the watts of waiting may be off, log units; chosen by us."""
TRUST = 0.5
"""So many measured stalls count as much as what was believed of the loading beforehand; chosen by us."""
MOST_LOG = 0.7
"""No more than e^0.7 off what was believed is made of measured stalls; chosen by us."""
ROUNDS = 4
"""Of iterations where one figure hangs on another."""
LEAST_WORK_W = 0.2
"""What is left of a measured power when waiting is taken off it is at least this part of it; chosen by us."""


@dataclass(frozen=True, slots=True, eq=False)
class Loading:
    """How a board's samples come: an input pipeline with the seconds of the top clocks, and what waiting draws.

    ``costs`` are those of a minibatch like the board's: they say what of it is the host's, and a busy core's watts.
    """

    pipeline: Pipeline
    maxn: PowerMode
    costs: Coefficients
    idle_w: float
    """At rest in the top mode."""

    def at_batch(self, batch_size: int) -> Loading:
        """The same for minibatches of another size."""
        return dataclasses.replace(self, pipeline=dataclasses.replace(self.pipeline, batch_size=batch_size))

    def slower(self, factor: float) -> Loading:
        """Loading that takes ``factor`` times as long, on the cores and from the storage."""
        old, disk = self.pipeline.samples, self.pipeline.storage
        samples = dataclasses.replace(old, fetch_s=old.fetch_s * factor, preprocess_s=old.preprocess_s * factor)
        storage = dataclasses.replace(disk, mb_per_s=disk.mb_per_s / factor, latency_s=disk.latency_s * factor)
        return dataclasses.replace(self, pipeline=dataclasses.replace(self.pipeline, samples=samples, storage=storage))


@dataclass(frozen=True, slots=True, eq=False)
class Stalled:
    """Minibatches beside the loading, arrays of shape (n,), a row per mode."""

    step_s: Floats
    stall_s: Floats
    power_w: Floats


def paces_in(loading: Loading, modes: Modes, compute_s: Floats) -> Paces:
    """The pipeline's steady state where computing alone takes ``compute_s`` (n,) in the modes."""
    x = shares(loading.maxn, modes)
    parts = time_parts(loading.costs.time, x)
    host_share = np.clip((parts.launch_s + parts.host_s) / parts.total_s, 0.0, 1.0)
    return paces_at(loading.pipeline, x, modes.knobs[:, 0], compute_s, host_share)


def with_stalls(loading: Loading, modes: Modes, compute_s: Floats, power_w: Floats) -> Stalled:
    """What the loading makes of minibatches of ``compute_s`` seconds and ``power_w`` watts, shape (n,) each."""
    paces = paces_in(loading, modes, compute_s)
    waits = paces.stall_s / paces.step_s
    watts = (1.0 - waits) * power_w + waits * np.minimum(waiting_w(loading, modes), power_w)
    return Stalled(paces.step_s, paces.stall_s, watts)


def waiting_w(loading: Loading, modes: Modes) -> Floats:
    """Watts while the training waits for samples, which are made meanwhile; shape (n,)."""
    x, pipeline = shares(loading.maxn, modes), loading.pipeline
    power = dict(zip(POWER_NAMES, np.exp(loading.costs.power), strict=True))
    core_w = power["cores_busy_w"] / loading.maxn.cores * x[:, 1] ** (1.0 + power["cpu_exponent"])
    samples = pipeline.samples
    making_s = (samples.fetch_s + samples.preprocess_s) * host_factor(x[:, 1], x[:, 3])
    missing = (1.0 - pipeline.cached) if samples.file_mb else 0.0
    reading_s = missing * (pipeline.storage.latency_s + samples.file_mb / pipeline.storage.mb_per_s)
    busy = np.minimum(max(pipeline.loader.workers, 1), modes.knobs[:, 0]) * making_s / (making_s + reading_s + 1e-12)
    watts: Floats = loading.idle_w * idle_shape(loading.costs, loading.maxn, modes) + busy * core_w
    return watts


def without_stalls(measurements: Sequence[Measurement], loading: Loading) -> list[Measurement]:
    """Measurements as if their samples had been there: stalls taken off their seconds, waiting off their watts."""
    if not measurements:
        return []
    modes = modes_of(one.mode for one in measurements)
    beside_s = np.array([one.step_s - one.stall_s for one in measurements])
    # Beside the loading computing is slower as well; by how much hangs on how long it takes alone.
    alone_s = beside_s
    for _ in range(ROUNDS):
        paces = paces_in(loading, modes, alone_s)
        alone_s = alone_s * beside_s / (paces.step_s - paces.stall_s)
    waiting = waiting_w(loading, modes)
    return [
        _without_stall(one, float(seconds), float(watts))
        for one, seconds, watts in zip(measurements, alone_s, waiting, strict=True)
    ]


def _without_stall(one: Measurement, alone_s: float, waiting_w: float) -> Measurement:
    waits = one.stall_s / one.step_s
    left = 1.0 - waits
    work_w = max(one.power_w - waits * waiting_w, LEAST_WORK_W * one.power_w * left)
    return dataclasses.replace(
        one,
        step_s=alone_s,
        warm_up_s=one.warm_up_s * alone_s / one.step_s,
        power_w=work_w / left,
        power_se_log=one.power_se_log * one.power_w / work_w,
        stall_s=0.0,
    )


def seen_factor(measurements: Sequence[Measurement], loading: Loading) -> tuple[float, int]:
    """How many times as long loading took as believed, on this board itself, and how many stalls say so."""
    own = [m for m in measurements if m.stall_s > 0.0 and m.board is None and not m.throttled and m.scale is None]
    if not own:
        return 1.0, 0
    modes, beside_s = modes_of(one.mode for one in own), np.array([one.step_s - one.stall_s for one in own])
    seen_s = np.array([one.step_s if loading.pipeline.loader.workers else one.stall_s for one in own])
    log = 0.0
    for _ in range(ROUNDS):  # how loading and computing slow each other hangs on the factor itself
        log += float(np.mean(np.log(seen_s / paces_in(loading.slower(np.exp(log)), modes, beside_s).load_s)))
    return float(np.exp(np.clip(log * len(own) / (len(own) + TRUST), -MOST_LOG, MOST_LOG))), len(own)


class LoadingPredictor:
    """A ``Predictor`` around one of computing alone: what it learns from and what it predicts holds stalls.

    Learnt: ``loading_``, as it is believed after the stalls that were seen, and how sure that is.
    """

    def __init__(self, inner: Predictor, loading: Loading) -> None:
        self._inner, self._loading = inner, loading
        self.loading_, self._sd_log = loading, LOADING_SD_LOG

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        factor, stalls = seen_factor(measurements, self._loading)
        self.loading_ = self._loading.slower(factor)
        self._sd_log = SEEN_SD_LOG if stalls else LOADING_SD_LOG
        self._inner = self._inner.fit(without_stalls(measurements, self.loading_))
        return self

    def predict(self, modes: Modes) -> Predictions:
        alone = self._inner.predict(modes)
        said = with_stalls(self.loading_, modes, alone.step_s, alone.power_w)
        waits = said.stall_s / said.step_s
        # With workers the loader alone sets the pace wherever there is a stall.
        loading = (said.stall_s > 0).astype(np.float64) if self._loading.pipeline.loader.workers else waits
        waiting_sd = WAITING_SD_LOG * waits * waiting_w(self.loading_, modes) / said.power_w
        work_sd = alone.power_w_sd_log * (1.0 - waits) * alone.power_w / said.power_w
        return Predictions(
            modes,
            said.step_s,
            said.power_w,
            np.hypot((1.0 - waits) * alone.step_s_sd_log, loading * self._sd_log),
            np.hypot(work_sd, waiting_sd),
        )


class LoadingExplorer:
    """An ``Explorer`` around one of computing alone, which is told of every measurement without its stall."""

    def __init__(self, inner: Explorer, loading: Loading) -> None:
        self._inner, self._loading = inner, loading

    def ask(self, count: int) -> Modes:
        return self._inner.ask(count)

    def tell(self, measurements: Sequence[Measurement]) -> None:
        self._inner.tell(without_stalls(measurements, self._loading))


class StallingDevice(InFront):
    """A ``fedge.interfaces.Device`` in front of another: its measurements say what of a minibatch was its stall.

    ``surface`` are the modes that ``waits`` (n,) belongs to, the share of a minibatch that is stall.
    """

    def __init__(self, device: Device, surface: Surface, waits: Floats) -> None:
        super().__init__(device)
        self._surface, self._waits = surface, waits

    def measure(
        self, workload: Workload, steps: int, work: Callable[[int], object], limit_s: float | None = None
    ) -> Measurement:
        measured = self._device.measure(workload, steps, work, limit_s)
        share = float(self._waits[self._surface.row(measured.mode)])
        return dataclasses.replace(measured, stall_s=share * measured.step_s)


def with_loader(player: Player, loading: Loading, device: Device) -> Player:
    """The player of a round whose ``device`` measures stalls; its predictor must reckon with them already."""
    made = player.explorer

    def explorer(modes: Modes) -> Explorer:
        assert made is not None
        return LoadingExplorer(made(modes), loading)

    return dataclasses.replace(player, device=device, explorer=None if made is None else explorer)
