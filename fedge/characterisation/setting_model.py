"""Model of one setting: its pipeline fitted to the sweep, and predictions for changes of a knob."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from fedge.characterisation.point_statistics import PointStats, PooledSetting
from fedge.characterisation.sweep_plan import KnobValue, SweepPoint, get_knob_value, without_knob
from fedge.confidence_interval import Estimate
from fedge.costs.input_pipeline.pipeline_fit import LoaderMeans, fit_pipeline, with_loader
from fedge.costs.input_pipeline.pipeline_model import InputPipeline, solve_steady_state
from fedge.groups import group_by


@dataclass(frozen=True, slots=True, eq=False)
class KnobChange:
    """A knob's next value, the pipeline that results from it, and the reason in words."""

    knob: str
    then: KnobValue
    pipeline: InputPipeline
    why: str
    error: float | None = None
    """The model's relative error for this change of the epoch, below which changes are not reported; None for that of
    its fit."""
    same_work: bool = True
    """Whether the board's computing is unchanged, so that energy follows from time."""
    e2e_s: Estimate | None = None
    """Given where the pipeline alone does not determine the interval."""
    power: Estimate | None = None
    """Ratio of the new to the present power, if the work changes and the ratio is known."""


SLOPE_UNCERTAINTY = 0.5
"""Relative half-width of a change extrapolated by a slope from other settings; a default that still asserts the
direction."""

StatsFigure = Callable[[PointStats], float | None]


def estimate_slope(now: SweepPoint, group: Sequence[PooledSetting], knob: str, figure: StatsFigure) -> float | None:
    """Estimate d log(figure) / d log(knob), from two settings that differ in an ordered knob alone; None without any.

    Settings near ``now`` are preferred, and those otherwise equal to it; ``group`` is of one board and workload.
    """
    own = get_knob_value(now, knob)
    if own is None or float(own) <= 0:
        return None
    known = (one for one in group if get_knob_value(one.point, knob))
    chains = group_by(known, lambda one: without_knob(one.point, knob))
    like = without_knob(now, knob)
    found: list[tuple[bool, float, float]] = []
    for key, settings in chains.items():
        ordered = sorted((float(get_knob_value(one.point, knob) or 0.0), figure(one.stats) or 0.0) for one in settings)
        for (x, y), (x2, y2) in pairwise(ordered):
            if y > 0 and y2 > 0 and x2 > x > 0:
                away = abs(math.log(math.sqrt(x * x2) / float(own)))
                found.append((key != like, away, math.log(y2 / y) / math.log(x2 / x)))
    return min(found)[2] if found else None


def scale_by_slope(slope: float, ratio: float) -> Estimate:
    """Return the factor of a figure when its knob is multiplied by ``ratio``.

    Its interval is ``SLOPE_UNCERTAINTY`` of the log-log slope.
    """
    value, other, another = (ratio ** (slope * (1.0 + by)) for by in (0.0, -SLOPE_UNCERTAINTY, SLOPE_UNCERTAINTY))
    return Estimate(value, min(other, another), max(other, another), 0)


MIN_ERROR = 0.02
"""Lower limit of the model's relative error of an epoch; a default equal to the smallest change that findings
report."""
UNCHECKED_ERROR = 0.1
"""The model's relative error if it was fitted to one setting and cannot be checked against another; a cautious
default."""
INTERVAL_ERRORS = 2.0
"""Half-width of an interval in multiples of the error: about 95 % of a normal distribution."""
UNKNOWN_CORES = 4.0
"""Number of cores if neither the mode nor the rig gives it; a default, which determines how much loaders and
training contend."""
UNKNOWN_HOST_SHARE = 0.3
"""Part of computing in which a GPU waits for launches, if not given; a default between small and large networks.
Without a GPU it is 1."""
MIN_TIME_DIFFERENCE = 0.02
"""Relative difference of epoch times below which they do not determine the power of waiting; a default."""


@dataclass(frozen=True, slots=True, eq=False)
class SettingModel:
    """A setting, its pipeline, and the model's relative error of an epoch's time."""

    now: PointStats
    pipeline: InputPipeline
    error: float
    loaders: tuple[PointStats, ...]
    """The settings that it was fitted to, this one first."""

    @property
    def step_s(self) -> float:
        """The model's steady-state duration of a minibatch, in seconds."""
        return solve_steady_state(self.pipeline).step_s

    def predict_e2e_s(self, then: InputPipeline) -> Estimate:
        """Predict the epoch's duration with another pipeline: the measured one scaled by the model's ratio.

        It is for the same number of samples; its interval is the model's error, and ``n`` is 0.
        """
        per = then.batch_size / self.pipeline.batch_size
        factor = solve_steady_state(then).step_s / per / self.step_s
        return make_model_estimate(self.now.e2e_s.value * factor, self.error)

    def predict_energy_j(self, then_s: Estimate) -> Estimate | None:
        """Predict an epoch's energy for another duration of the same work; None if not metered.

        If the power of waiting is unknown, the interval covers everything from zero to the present mean power.
        """
        if self.now.energy_j is None:
            return None
        now_s, now_j = self.now.e2e_s.value, self.now.energy_j.value
        per_s = waiting_power_w(self.loaders)
        if per_s is not None:
            value, low, high = (now_j + per_s * (t - now_s) for t in (then_s.value, then_s.low, then_s.high))
            return Estimate(value, low, high, 0)
        # The power of waiting is unknown: between zero and the board's mean power.
        whole_w = now_j / now_s
        ends = [now_j + whole_w * (then_s.low - now_s), now_j, now_j + whole_w * (then_s.high - now_s)]
        return Estimate(now_j + 0.5 * whole_w * (then_s.value - now_s), min(ends), max(ends), 0)


def make_model_estimate(value: float, error: float) -> Estimate:
    """Return a model's value with the interval of its relative error."""
    return Estimate(value, value * math.exp(-INTERVAL_ERRORS * error), value * math.exp(INTERVAL_ERRORS * error), 0)


PipelineFits = dict[SweepPoint, tuple[InputPipeline, float]]
"""Fitted pipelines and their errors by the setting without its loader, which settings with other loaders share."""


def fit_setting_model(
    now: PooledSetting, points: Sequence[PooledSetting], fits: PipelineFits | None = None
) -> SettingModel:
    """Fit a setting's model to itself and to settings that differ in the loader alone.

    ``points`` are of the same board and workload; ``fits`` is a cache of fitted pipelines, extended by this call.
    """
    own = _without_loader(now.point)
    beside = [one.stats for one in points if one is not now and _without_loader(one.point) == own]
    settings = (now.stats, *beside)
    fits = {} if fits is None else fits
    if own not in fits:
        fits[own] = _fit_pipeline(settings)
    pipeline, error = fits[own]
    pipeline = with_loader(pipeline, now.point.workers, now.point.prefetch)
    return SettingModel(now.stats, pipeline=pipeline, error=error, loaders=settings)


def _fit_pipeline(settings: Sequence[PointStats]) -> tuple[InputPipeline, float]:
    now = settings[0]
    share = UNKNOWN_HOST_SHARE if has_gpu(now) else 1.0
    pipeline = fit_pipeline(
        [minibatch_means(one) for one in settings],
        count_online_cores(now),
        host_share=now.parameters.get("host_share", share),
    )

    def step_s(one: PointStats) -> float:
        return solve_steady_state(with_loader(pipeline, one.point.workers, one.point.prefetch)).step_s

    missed = [abs(math.log(step_s(one) / minibatch_means(one).step_s)) for one in settings]
    return pipeline, max(MIN_ERROR, *missed) if len(settings) > 1 else UNCHECKED_ERROR


def minibatch_means(stats: PointStats) -> LoaderMeans:
    per = 1.0 / stats.steps
    point = stats.point
    parts = (stats.fetch_s, stats.preprocess_s, stats.stall_s, stats.copy_s, stats.compute_s, stats.overhead_s)
    return LoaderMeans(point.workers, point.prefetch, point.batch_size, *(max(part.value, 0.0) * per for part in parts))


def count_online_cores(stats: PointStats) -> float:
    mode = stats.point.mode
    return float(mode.cores) if mode is not None else stats.parameters.get("cores", UNKNOWN_CORES)


def has_gpu(stats: PointStats) -> bool:
    """Return whether a GPU computes: its load is known, or there are power modes."""
    return stats.gpu_load is not None or stats.point.mode is not None


def waiting_power_w(loaders: Sequence[PointStats]) -> float | None:
    """Estimate the power while waiting, in watts, from epochs that did the same work with other loaders.

    It is the slope of energy over time, at least 0; None if fewer than two settings were metered or all took about as
    long.
    """
    known = [(one.e2e_s.value, one.energy_j.value) for one in loaders if one.energy_j is not None]
    if len(known) < 2:
        return None
    times, joules = np.array(known).T
    if float(times.max() / times.min()) < 1.0 + MIN_TIME_DIFFERENCE:
        return None
    centred = times - times.mean()
    return max(float(centred @ joules / (centred @ centred)), 0.0)


def _without_loader(point: SweepPoint) -> SweepPoint:
    return replace(point, workers=0, prefetch=0, repeat=0)
