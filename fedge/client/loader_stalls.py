"""A board's round with a loader that may keep it waiting: what loading adds to a minibatch, and how it is taken off.

Symbols of a minibatch in one mode: X seconds of its computing with its samples there, T from end to end beside the
loading (``fedge.costs.input_pipeline.steady_state``), s = T - computing its stall, u = 1 - s / T, watts P at work, W
while it waits:

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

from fedge.client.round_context import RoundContext
from fedge.costs.input_pipeline.pipeline_model import InputPipeline
from fedge.costs.input_pipeline.pipeline_modes import compute_host_factor, solve_modes
from fedge.costs.input_pipeline.steady_state import SteadyStates
from fedge.devices.device_wrapper import DeviceWrapper
from fedge.devices.mode_surface import ModeSurface
from fedge.modes import stack_modes
from fedge.physics.time_power_model import (
    POWER_NAMES,
    Coefficients,
    compute_idle_ratio,
    compute_time_parts,
    knob_shares,
)
from fedge.protocols import Device, Explorer, Predictor
from fedge.types import Floats, Measurement, Modes, PowerMode, Predictions, Workload

LOADING_SD_LOG = 0.1
"""How far loading may be off what is believed of it, log units, before a stall was seen; chosen by us."""
MEASURED_SD_LOG = 0.03
"""The same after; chosen by us."""
WAITING_SD_LOG = 0.1
"""How far the watts of waiting may be off, log units; chosen by us."""
PRIOR_STALLS = 0.5
"""So many measured stalls count as much as what was believed of the loading beforehand; chosen by us."""
MAX_FACTOR_LOG = 0.7
"""No more than e^0.7 off what was believed is made of measured stalls; chosen by us."""
ITERATIONS = 4
"""Of iterations where one figure hangs on another."""
MIN_WORK_POWER_SHARE = 0.2
"""What is left of a measured power when waiting is taken off it is at least this part of it; chosen by us."""


@dataclass(frozen=True, slots=True, eq=False)
class LoaderModel:
    """How a board's samples come: an input pipeline with the seconds of the top clocks, and what waiting draws.

    ``costs`` are those of a minibatch like the board's: they say what of it is the host's, and a busy core's watts.
    """

    pipeline: InputPipeline
    maxn: PowerMode
    costs: Coefficients
    idle_w: float
    """At rest in the top mode."""

    def with_batch_size(self, batch_size: int) -> LoaderModel:
        """The same for minibatches of another size."""
        return dataclasses.replace(self, pipeline=dataclasses.replace(self.pipeline, batch_size=batch_size))

    def slow_down(self, factor: float) -> LoaderModel:
        """Loading that takes ``factor`` times as long, on the cores and from the storage."""
        old, disk = self.pipeline.samples, self.pipeline.storage
        samples = dataclasses.replace(old, fetch_s=old.fetch_s * factor, preprocess_s=old.preprocess_s * factor)
        storage = dataclasses.replace(disk, mb_per_s=disk.mb_per_s / factor, latency_s=disk.latency_s * factor)
        return dataclasses.replace(self, pipeline=dataclasses.replace(self.pipeline, samples=samples, storage=storage))


@dataclass(frozen=True, slots=True, eq=False)
class StalledSteps:
    """Minibatches beside the loading, arrays of shape (n,), a row per mode."""

    step_s: Floats
    stall_s: Floats
    power_w: Floats


def compute_paces(loading: LoaderModel, modes: Modes, compute_s: Floats) -> SteadyStates:
    """The pipeline's steady state where computing alone takes ``compute_s`` (n,) in the modes."""
    x = knob_shares(loading.maxn, modes)
    parts = compute_time_parts(loading.costs.time, x)
    host_share = np.clip((parts.launch_s + parts.host_s) / parts.total_s, 0.0, 1.0)
    return solve_modes(loading.pipeline, shares=x, cores=modes.knobs[:, 0], compute_s=compute_s, host_share=host_share)


def add_stalls(loading: LoaderModel, modes: Modes, compute_s: Floats, power_w: Floats) -> StalledSteps:
    """What the loading makes of minibatches of ``compute_s`` seconds and ``power_w`` watts, shape (n,) each."""
    paces = compute_paces(loading, modes, compute_s)
    waits = paces.stall_s / paces.step_s
    watts = (1.0 - waits) * power_w + waits * np.minimum(waiting_power_w(loading, modes), power_w)
    return StalledSteps(paces.step_s, paces.stall_s, watts)


def waiting_power_w(loading: LoaderModel, modes: Modes) -> Floats:
    """Watts while the training waits for samples, which are made meanwhile; shape (n,)."""
    x, pipeline = knob_shares(loading.maxn, modes), loading.pipeline
    power = dict(zip(POWER_NAMES, np.exp(loading.costs.power), strict=True))
    core_w = power["cores_busy_w"] / loading.maxn.cores * x[:, 1] ** (1.0 + power["cpu_exponent"])
    samples = pipeline.samples
    making_s = (samples.fetch_s + samples.preprocess_s) * compute_host_factor(x[:, 1], x[:, 3])
    missing = (1.0 - pipeline.cached) if samples.file_mb else 0.0
    reading_s = missing * (pipeline.storage.latency_s + samples.file_mb / pipeline.storage.mb_per_s)
    busy = np.minimum(max(pipeline.loader.workers, 1), modes.knobs[:, 0]) * making_s / (making_s + reading_s + 1e-12)
    watts: Floats = loading.idle_w * compute_idle_ratio(loading.costs, loading.maxn, modes) + busy * core_w
    return watts


def remove_stalls(measurements: Sequence[Measurement], loading: LoaderModel) -> list[Measurement]:
    """Measurements as if their samples had been there: stalls taken off their seconds, waiting off their watts."""
    if not measurements:
        return []
    modes = stack_modes(one.mode for one in measurements)
    beside_s = np.array([one.step_s - one.stall_s for one in measurements])
    # Beside the loading computing is slower as well; by how much hangs on how long it takes alone.
    alone_s = beside_s
    for _ in range(ITERATIONS):
        paces = compute_paces(loading, modes, alone_s)
        alone_s = alone_s * beside_s / (paces.step_s - paces.stall_s)
    waiting = waiting_power_w(loading, modes)
    return [
        _remove_stall(one, float(seconds), float(watts))
        for one, seconds, watts in zip(measurements, alone_s, waiting, strict=True)
    ]


def _remove_stall(one: Measurement, alone_s: float, waiting_w: float) -> Measurement:
    waits = one.stall_s / one.step_s
    left = 1.0 - waits
    work_w = max(one.power_w - waits * waiting_w, MIN_WORK_POWER_SHARE * one.power_w * left)
    return dataclasses.replace(
        one,
        step_s=alone_s,
        warm_up_s=one.warm_up_s * alone_s / one.step_s,
        power_w=work_w / left,
        power_se_log=one.power_se_log * one.power_w / work_w,
        stall_s=0.0,
    )


def fit_loading_factor(measurements: Sequence[Measurement], loading: LoaderModel) -> tuple[float, int]:
    """How many times as long loading took as believed, on this board itself, and how many stalls say so."""
    own = [m for m in measurements if m.stall_s > 0.0 and m.board is None and not m.throttled and m.scale is None]
    if not own:
        return 1.0, 0
    modes, beside_s = stack_modes(one.mode for one in own), np.array([one.step_s - one.stall_s for one in own])
    seen_s = np.array([one.step_s if loading.pipeline.loader.workers else one.stall_s for one in own])
    log = 0.0
    for _ in range(ITERATIONS):  # how loading and computing slow each other hangs on the factor itself
        log += float(np.mean(np.log(seen_s / compute_paces(loading.slow_down(np.exp(log)), modes, beside_s).load_s)))
    return float(np.exp(np.clip(log * len(own) / (len(own) + PRIOR_STALLS), -MAX_FACTOR_LOG, MAX_FACTOR_LOG))), len(own)


class LoaderPredictor:
    """A ``Predictor`` around one of computing alone: what it learns from and what it predicts holds stalls.

    Learnt: ``loading_``, as it is believed after the stalls that were seen, and how sure that is.
    """

    def __init__(self, inner: Predictor, loading: LoaderModel) -> None:
        self._inner, self._loading = inner, loading
        self.loading_, self._sd_log = loading, LOADING_SD_LOG

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        factor, stalls = fit_loading_factor(measurements, self._loading)
        self.loading_ = self._loading.slow_down(factor)
        self._sd_log = MEASURED_SD_LOG if stalls else LOADING_SD_LOG
        self._inner = self._inner.fit(remove_stalls(measurements, self.loading_))
        return self

    def predict(self, modes: Modes) -> Predictions:
        alone = self._inner.predict(modes)
        said = add_stalls(self.loading_, modes, alone.step_s, alone.power_w)
        waits = said.stall_s / said.step_s
        # With workers the loader alone sets the pace wherever there is a stall.
        loading = (said.stall_s > 0).astype(np.float64) if self._loading.pipeline.loader.workers else waits
        waiting_sd = WAITING_SD_LOG * waits * waiting_power_w(self.loading_, modes) / said.power_w
        work_sd = alone.power_w_sd_log * (1.0 - waits) * alone.power_w / said.power_w
        return Predictions(
            modes,
            step_s=said.step_s,
            power_w=said.power_w,
            step_s_sd_log=np.hypot((1.0 - waits) * alone.step_s_sd_log, loading * self._sd_log),
            power_w_sd_log=np.hypot(work_sd, waiting_sd),
        )


class LoaderExplorer:
    """An ``Explorer`` around one of computing alone, which is told of every measurement without its stall."""

    def __init__(self, inner: Explorer, loading: LoaderModel) -> None:
        self._inner, self._loading = inner, loading

    def ask(self, count: int) -> Modes:
        return self._inner.ask(count)

    def tell(self, measurements: Sequence[Measurement]) -> None:
        self._inner.tell(remove_stalls(measurements, self._loading))


class StallDevice(DeviceWrapper):
    """A ``fedge.protocols.Device`` in front of another: its measurements say what of a minibatch was its stall.

    ``surface`` are the modes that ``waits`` (n,) belongs to, the share of a minibatch that is stall.
    """

    def __init__(self, device: Device, surface: ModeSurface, waits: Floats) -> None:
        super().__init__(device)
        self._surface, self._waits = surface, waits

    def measure(
        self, workload: Workload, steps: int, work: Callable[[int], object], limit_s: float | None = None
    ) -> Measurement:
        measured = self._device.measure(workload, steps, work, limit_s)
        share = float(self._waits[self._surface.find_row(measured.mode)])
        return dataclasses.replace(measured, stall_s=share * measured.step_s)


def attach_loader(player: RoundContext, loading: LoaderModel, device: Device) -> RoundContext:
    """The player of a round whose ``device`` measures stalls; its predictor must reckon with them already."""
    made = player.make_explorer

    def explorer(modes: Modes) -> Explorer:
        assert made is not None
        return LoaderExplorer(made(modes), loading)

    return dataclasses.replace(player, device=device, make_explorer=None if made is None else explorer)
