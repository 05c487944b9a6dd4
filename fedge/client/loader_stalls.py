"""Stalls of training caused by data loading: adding them to predictions and removing them from measurements.

Symbols for a step in one mode: X seconds of computing with its samples ready, T seconds in total beside loading
(``fedge.costs.input_pipeline.pipeline_model``), s = T - computing its stall, u = 1 - s / T, P watts while computing, W
watts while waiting:

    power = u P + (1 - u) W,   W = idle + (busy loading cores) x (watts of a busy core)

A predictor learns X and P: stalls, which are measured with every step, are removed from measurements, and predictions
get the stall of their mode. Idle power and the power of a busy core come from the physical model (``fedge.physics``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from fedge.costs.input_pipeline.pipeline_model import InputPipeline, SteadyStates, compute_host_factor, solve_modes
from fedge.modes import stack_modes
from fedge.physics.time_power_model import (
    POWER_NAMES,
    Coefficients,
    compute_idle_ratio,
    compute_time_parts,
    knob_shares,
)
from fedge.types import Floats, Measurement, Modes, PowerMode, Predictions

LOADING_SD_LOG = 0.1
# Uncertainty of the loading time (log units) before a stall was measured. Default; larger values widen predictions.
MEASURED_SD_LOG = 0.03
# Uncertainty of the loading time (log units) once stalls were measured. Default; larger values widen predictions.
WAITING_SD_LOG = 0.1
# Uncertainty of the power while waiting (log units). Default; it only matters for modes with long stalls.
PRIOR_STALLS = 0.5
# Weight of the prior loading time in units of measured stalls. Default: one stall already outweighs the prior.
MAX_FACTOR_LOG = 0.7
# Limit on the correction of the loading time, e^0.7 = 2. Default: protects against single faulty measurements.
ITERATIONS = 4
# Fixed-point iterations where loading and computing slow each other down.
MIN_WORK_POWER_SHARE = 0.2
# Lower bound on the power left after removing the waiting, as a share of the measured one. Default: keeps it positive.


@dataclass(frozen=True, slots=True, eq=False)
class LoaderModel:
    """A board's input pipeline at the top clocks and the power while waiting for samples.

    Attributes:
        costs: Coefficients of a step on such a board; they give the host's share and the power of a busy core.
        idle_w: Power at rest in the top mode, watts.
    """

    pipeline: InputPipeline
    maxn: PowerMode
    costs: Coefficients
    idle_w: float

    def with_batch_size(self, batch_size: int) -> LoaderModel:
        """Return the model for another batch size."""
        return dataclasses.replace(self, pipeline=dataclasses.replace(self.pipeline, batch_size=batch_size))

    def slow_down(self, factor: float) -> LoaderModel:
        """Return the model with loading ``factor`` times as slow, on the cores and from the storage."""
        old, disk = self.pipeline.samples, self.pipeline.storage
        samples = dataclasses.replace(old, fetch_s=old.fetch_s * factor, preprocess_s=old.preprocess_s * factor)
        storage = dataclasses.replace(disk, mb_per_s=disk.mb_per_s / factor, latency_s=disk.latency_s * factor)
        return dataclasses.replace(self, pipeline=dataclasses.replace(self.pipeline, samples=samples, storage=storage))


@dataclass(frozen=True, slots=True, eq=False)
class StalledSteps:
    """Steps including loading, one row per mode.

    Attributes:
        step_s: Seconds per step, shape (n,).
        stall_s: Seconds of it that wait for samples, shape (n,).
        power_w: Mean power in watts, shape (n,).
    """

    step_s: Floats
    stall_s: Floats
    power_w: Floats


def compute_paces(loading: LoaderModel, modes: Modes, compute_s: Floats) -> SteadyStates:
    """Solve the pipeline's steady state in every mode.

    Args:
        compute_s: Seconds of computing a step without loading, shape (n,).
    """
    x = knob_shares(loading.maxn, modes)
    parts = compute_time_parts(loading.costs.time, x)
    host_share = np.clip((parts.launch_s + parts.host_s) / parts.total_s, 0.0, 1.0)
    return solve_modes(loading.pipeline, shares=x, cores=modes.knobs[:, 0], compute_s=compute_s, host_share=host_share)


def add_stalls(loading: LoaderModel, modes: Modes, compute_s: Floats, power_w: Floats) -> StalledSteps:
    """Add the effect of loading to steps.

    Args:
        compute_s: Seconds of computing a step without loading, shape (n,).
        power_w: Power while computing in watts, shape (n,).
    """
    paces = compute_paces(loading, modes, compute_s)
    waits = paces.stall_s / paces.step_s
    watts = (1.0 - waits) * power_w + waits * np.minimum(waiting_power_w(loading, modes), power_w)
    return StalledSteps(paces.step_s, paces.stall_s, watts)


def waiting_power_w(loading: LoaderModel, modes: Modes) -> Floats:
    """Return the power in watts while training waits for samples that are being loaded, shape (n,)."""
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
    """Return the measurements as if all samples had been ready, with stalls and the power of waiting removed."""
    if not measurements:
        return []
    modes = stack_modes(one.mode for one in measurements)
    beside_s = np.array([one.step_s - one.stall_s for one in measurements])
    # Loading also slows computing down, by an amount that depends on its duration without loading.
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
    """Fit the slow-down of loading relative to the model from the board's own stalls.

    Args:
        measurements: Measurements; those of peers, throttled ones and those at other scales are ignored.

    Returns:
        The factor, between e^-0.7 and e^0.7, and the number of stalls used.
    """
    own = [m for m in measurements if m.stall_s > 0.0 and m.board is None and not m.throttled and m.scale is None]
    if not own:
        return 1.0, 0
    modes, beside_s = stack_modes(one.mode for one in own), np.array([one.step_s - one.stall_s for one in own])
    seen_s = np.array([one.step_s if loading.pipeline.loader.workers else one.stall_s for one in own])
    log = 0.0
    for _ in range(ITERATIONS):  # the mutual slow-down depends on the factor itself
        log += float(np.mean(np.log(seen_s / compute_paces(loading.slow_down(np.exp(log)), modes, beside_s).load_s)))
    return float(np.exp(np.clip(log * len(own) / (len(own) + PRIOR_STALLS), -MAX_FACTOR_LOG, MAX_FACTOR_LOG))), len(own)


@dataclass(frozen=True, slots=True, eq=False)
class LoaderCorrection:
    """A ``fedge.client.prediction_requests.Correction`` for stalls.

    Attributes:
        sd_log: Uncertainty of its loading time, log units.
    """

    loading: LoaderModel
    sd_log: float = LOADING_SD_LOG

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Return the correction with the loader's speed fitted to the measured stalls."""
        factor, stalls = fit_loading_factor(measurements, self.loading)
        return dataclasses.replace(
            self, loading=self.loading.slow_down(factor), sd_log=MEASURED_SD_LOG if stalls else self.sd_log
        )

    def to_reference(self, measurements: Sequence[Measurement]) -> Sequence[Measurement]:
        return remove_stalls(measurements, self.loading)

    def from_reference(self, predictions: Predictions) -> Predictions:
        modes, power_w = predictions.modes, predictions.power_w
        stalled = add_stalls(self.loading, modes, predictions.step_s, power_w)
        waits = stalled.stall_s / stalled.step_s
        # With workers the loader alone sets the pace wherever there is a stall.
        loading = (stalled.stall_s > 0).astype(np.float64) if self.loading.pipeline.loader.workers else waits
        waiting_sd = WAITING_SD_LOG * waits * waiting_power_w(self.loading, modes) / stalled.power_w
        work_sd = predictions.power_w_sd_log * (1.0 - waits) * power_w / stalled.power_w
        return Predictions(
            modes,
            step_s=stalled.step_s,
            power_w=stalled.power_w,
            step_s_sd_log=np.hypot((1.0 - waits) * predictions.step_s_sd_log, loading * self.sd_log),
            power_w_sd_log=np.hypot(work_sd, waiting_sd),
        )

    def normalize(self, measurements: Sequence[Measurement]) -> Sequence[Measurement]:
        return measurements
