"""A setting's input pipeline by what the sweep measured around it, and how far that model is off.

The pipeline is fitted to the setting and to those that differ from it in their loaders alone
(``fedge.pipeline.fitting``). Its error is the largest by which it misses the pace of one of them; where none was
measured nobody has checked it, and ``UNCHECKED`` stands for the error. Joules follow the epoch's time: E = a T + b, by
least squares where settings with other loaders were metered (a is what the board draws while it waits).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedge.characterisation.judging.estimate import Estimate
from fedge.characterisation.judging.pooling import Pooled
from fedge.characterisation.judging.statistics import PointStats
from fedge.characterisation.point import Point
from fedge.pipeline.fitting import Means, fitted, with_loader
from fedge.pipeline.records import Pipeline
from fedge.pipeline.steady import steady

LEAST_ERROR = 0.02
"""The model is never taken for better than this, relative to the epoch; chosen by us."""
UNCHECKED = 0.1
"""Its error where it was fitted to one setting alone; chosen by us."""
SURE = 2.0
"""Intervals are so many errors to each side; chosen by us."""
UNKNOWN_CORES = 4.0
"""Where neither a mode nor the rig says how many there are; chosen by us."""
UNKNOWN_HOST_SHARE = 0.3
"""The part of computing in which a GPU waits for launches, where nobody says; chosen by us. Without a GPU it is 1."""
CLOSE = 0.02
"""Epochs whose times differ by less say nothing about what waiting costs; chosen by us."""


@dataclass(frozen=True, slots=True, eq=False)
class Modelled:
    """A setting, its pipeline, and the model's relative error of an epoch's time."""

    now: PointStats
    pipeline: Pipeline
    error: float
    checked: int
    """Against so many settings with other loaders."""
    loaders: tuple[PointStats, ...]
    """The settings that it was fitted to, this one first."""

    @property
    def step_s(self) -> float:
        """A minibatch in the steady state, by the model."""
        return steady(self.pipeline).step_s

    def e2e_s(self, then: Pipeline) -> Estimate:
        """An epoch with another pipeline: the measured one times what the model says of the two; ``n`` is 0."""
        per = then.batch_size / self.pipeline.batch_size
        factor = steady(then).step_s / per / self.step_s
        return around(self.now.e2e_s.value * factor, self.error)

    def energy_j(self, then_s: Estimate) -> Estimate | None:
        """An epoch's joules when it takes ``then_s`` and does the same work; None where nobody metered."""
        if self.now.energy_j is None:
            return None
        now_s, now_j = self.now.e2e_s.value, self.now.energy_j.value
        per_s = waiting_w(self.loaders)
        if per_s is not None:
            value, low, high = (now_j + per_s * (t - now_s) for t in (then_s.value, then_s.low, then_s.high))
            return Estimate(value, low, high, 0)
        # nobody knows what waiting draws: between nothing and what the board draws anyway
        whole_w = now_j / now_s
        ends = [now_j + whole_w * (then_s.low - now_s), now_j, now_j + whole_w * (then_s.high - now_s)]
        return Estimate(now_j + 0.5 * whole_w * (then_s.value - now_s), min(ends), max(ends), 0)


def around(value: float, error: float) -> Estimate:
    """A model's figure with its relative error."""
    return Estimate(value, value * math.exp(-SURE * error), value * math.exp(SURE * error), 0)


Fits = dict[Point, tuple[Pipeline, float]]
"""Pipelines and their errors by the setting without its loader: settings that differ in loaders share one."""


def modelled(now: Pooled, points: Sequence[Pooled], fits: Fits | None = None) -> Modelled:
    """The model of a setting by itself and by those of ``points`` that differ in their loaders alone."""
    own = _but_loader(now.point)
    beside = [one.stats for one in points if one is not now and _but_loader(one.point) == own]
    settings = (now.stats, *beside)
    fits = {} if fits is None else fits
    if own not in fits:
        fits[own] = _fit(settings)
    pipeline, error = fits[own]
    pipeline = with_loader(pipeline, now.point.workers, now.point.prefetch)
    return Modelled(now.stats, pipeline, error, len(beside), settings)


def _fit(settings: Sequence[PointStats]) -> tuple[Pipeline, float]:
    now = settings[0]
    share = UNKNOWN_HOST_SHARE if has_gpu(now) else 1.0
    pipeline = fitted(
        [means_of(one) for one in settings], cores_of(now), host_share=now.parameters.get("host_share", share)
    )
    missed = [abs(math.log(_step_s(pipeline, one) / means_of(one).step_s)) for one in settings]
    return pipeline, max(LEAST_ERROR, *missed) if len(settings) > 1 else UNCHECKED


def means_of(stats: PointStats) -> Means:
    """Mean seconds per minibatch."""
    per = 1.0 / stats.steps
    point = stats.point
    parts = (stats.fetch_s, stats.preprocess_s, stats.stall_s, stats.copy_s, stats.compute_s, stats.overhead_s)
    return Means(point.workers, point.prefetch, point.batch_size, *(max(part.value, 0.0) * per for part in parts))


def cores_of(stats: PointStats) -> float:
    """Cores that are on."""
    mode = stats.point.mode
    return float(mode.cores) if mode is not None else stats.parameters.get("cores", UNKNOWN_CORES)


def has_gpu(stats: PointStats) -> bool:
    """Whether a GPU computes: its load is known, or there are power modes."""
    return stats.gpu_load is not None or stats.point.mode is not None


def waiting_w(loaders: Sequence[PointStats]) -> float | None:
    """What a second of waiting costs, watts, from epochs that did the same work with other loaders.

    None where fewer than two were metered, or all took about as long.
    """
    known = [(one.e2e_s.value, one.energy_j.value) for one in loaders if one.energy_j is not None]
    if len(known) < 2:
        return None
    times, joules = np.array(known).T
    if float(times.max() / times.min()) < 1.0 + CLOSE:
        return None
    centred = times - times.mean()
    return max(float(centred @ joules / (centred @ centred)), 0.0)


def _step_s(pipeline: Pipeline, stats: PointStats) -> float:
    return steady(with_loader(pipeline, stats.point.workers, stats.point.prefetch)).step_s


def _but_loader(point: Point) -> Point:
    return replace(point, workers=0, prefetch=0, repeat=0)
