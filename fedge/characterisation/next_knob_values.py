"""Proposed next values of each knob, with the pipeline that the model expects from them.

Clocks: work on a core follows the clocks of CPU and memory (``fedge.costs.input_pipeline.pipeline_model``). The
dependence of computing and of power on a clock is taken from the sweep (``estimate_slope``). Without such points,
computing follows the GPU's clock as far as the GPU does not wait for launches, and the memory's clock by
``MEMORY_SLOPE``; power is then not predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from fedge.characterisation.confidence_interval import Estimate
from fedge.characterisation.findings import format_seconds
from fedge.characterisation.point_knobs import CLOCK_FORMATS, without_knob
from fedge.characterisation.point_statistics import PointStats, PooledSetting
from fedge.characterisation.setting_model import (
    MIN_ERROR,
    SLOPE_UNCERTAINTY,
    KnobChange,
    SettingModel,
    estimate_slope,
    has_gpu,
    mean_power_w,
    minibatch_means,
    scale_by_slope,
    step_compute_s,
)
from fedge.characterisation.sweep_plan import device_name
from fedge.costs.input_pipeline.pipeline_fit import with_loader
from fedge.costs.input_pipeline.pipeline_model import InputPipeline, compute_host_factor, solve_steady_state
from fedge.types import DeviceSpec, PowerMode

MEMORY_SLOPE = -0.5
"""Log-log slope of compute time against the memory's clock if the sweep does not determine it: twice the clock
saves 26 to 33 % in the characterisation paper (doi 10.1145/3570604), a slope of -0.43 to -0.58."""


def propose_clocks(model: SettingModel, group: Sequence[PooledSetting]) -> Iterator[KnobChange]:
    """Propose one step up and one step down of every clock of a board in the catalogue."""
    mode, spec = model.now.point.mode, _load_spec(model.now.point.board)
    if mode is None or spec is None:
        return
    for knob, table in (("cpu_mhz", spec.cpu_mhz), ("gpu_mhz", spec.gpu_mhz), ("mem_mhz", spec.mem_mhz)):
        own = getattr(mode, knob)
        higher, lower = (
            [one for one in table if one > own * (1 + 1e-6)],
            [one for one in table if one < own * (1 - 1e-6)],
        )
        for value in (min(higher, default=None), max(lower, default=None)):
            if value is not None:
                yield _propose_clock_step(model, group, knob=knob, then=value, spec=spec)


def propose_cores(model: SettingModel, group: Sequence[PooledSetting]) -> Iterator[KnobChange]:
    """Propose the next larger number of cores, which loaders and training share."""
    mode, spec = model.now.point.mode, _load_spec(model.now.point.board)
    more = None if mode is None or spec is None else min((n for n in spec.cores if n > mode.cores), default=None)
    if mode is None or more is None:
        return
    pipeline = replace(model.pipeline, host=replace(model.pipeline.host, cores=float(more)))
    why = f"{mode.cores} cores are shared by the training and {pipeline.loader.workers} loader workers"
    yield KnobChange("cores", more, pipeline, why, same_work=False)


def _propose_clock_step(
    model: SettingModel, group: Sequence[PooledSetting], knob: str, then: float, spec: DeviceSpec
) -> KnobChange:
    mode = model.now.point.mode
    assert mode is not None
    value = getattr(mode, knob)
    other: dict[str, Any] = {knob: then}
    host = _host_time_factor(replace(mode, **other), spec) / _host_time_factor(mode, spec)
    slope = estimate_slope(model.now.point, group, knob, step_compute_s)
    host_share = model.pipeline.step.host_share
    compute = _compute_time_factor(knob, then / value, host=host, host_share=host_share, slope=slope)
    pipeline = _scale_pipeline(model.pipeline, host, compute)
    e2e_s = model.predict_e2e_s(pipeline)
    change = e2e_s.value - model.now.e2e_s.value
    ends = [e2e_s.value + by * SLOPE_UNCERTAINTY * change for by in (-1.0, 1.0)]
    by = "as host and device times follow their clocks" if slope is None else "as the sweep shows near it"
    slower = f"; an epoch takes {100 * change / model.now.e2e_s.value:.0f} % longer" if change > 0 else ""
    return KnobChange(
        knob,
        then,
        pipeline,
        f"one step from {value:g} MHz to {CLOCK_FORMATS[knob].format(then)}, {by}{slower}",
        error=MIN_ERROR,
        same_work=False,
        e2e_s=Estimate(e2e_s.value, min(ends), max(ends), 0),
        power=_scale_power(model, group, knob, then / value),
    )


def _scale_power(model: SettingModel, group: Sequence[PooledSetting], knob: str, ratio: float) -> Estimate | None:
    slope = estimate_slope(model.now.point, group, knob, mean_power_w)
    return None if slope is None else scale_by_slope(slope, ratio)


def _compute_time_factor(knob: str, ratio: float, host: float, host_share: float, slope: float | None) -> float:
    """Return the factor of computing when a clock is multiplied by ``ratio`` and work on a core by ``host``."""
    if slope is not None:
        return float(ratio**slope)
    device = {"gpu_mhz": 1.0 / ratio, "mem_mhz": ratio**MEMORY_SLOPE}.get(knob, 1.0)
    return float(host_share * (1.0 if knob == "gpu_mhz" else host) + (1.0 - host_share) * device)


def _host_time_factor(mode: PowerMode, spec: DeviceSpec) -> float:
    shares = np.array([[mode.cpu_mhz / max(spec.cpu_mhz)], [mode.mem_mhz / max(spec.mem_mhz)]])
    return float(compute_host_factor(*shares)[0])


def _scale_pipeline(pipeline: InputPipeline, host: float, compute: float) -> InputPipeline:
    samples, step = pipeline.samples, pipeline.step
    parts = {name: getattr(step, name) * host for name in ("copy_s", "collate_s", "handover_s", "overhead_s")}
    return replace(
        pipeline,
        samples=replace(samples, fetch_s=samples.fetch_s * host, preprocess_s=samples.preprocess_s * host),
        step=replace(step, compute_s=step.compute_s * compute, **parts),
    )


def _load_spec(board: str) -> DeviceSpec | None:
    from fedge.devices.catalogue import load_catalogue

    return load_catalogue().get(device_name(board) or "")


MORE_WORKERS = (1, 2)
COPY_PINNED = 0.5
"""Assumed time of copying from pinned relative to pageable memory; a default in the middle of its interval of 0 to
1."""
QUEUE_HIDES = 0.5
"""Assumed part of the random stall that a queue of twice the length hides; a default in the middle of its interval
of 0 to 1."""
SAME_POWER = Estimate(1.0, 1.0, 1.0, 0)


def propose_workers(model: SettingModel, group: Sequence[PooledSetting]) -> Iterator[KnobChange]:
    """Propose one and two more loader workers, unless the model expects no gain."""
    present, means = model.pipeline.loader.workers, minibatch_means(model.now)
    best = solve_steady_state(model.pipeline)
    of_step = f"{format_seconds(means.stall_s)} of every {format_seconds(means.step_s)}"
    waits = f"the {_work_name(model)} waits {of_step} for its batch"
    for more in MORE_WORKERS:
        then = with_loader(model.pipeline, present + more)
        steady = solve_steady_state(then)
        if steady.step_s > best.step_s * (1.0 - MIN_ERROR):  # no further gain
            continue
        best, left_s = steady, min(steady.stall_s, means.stall_s)
        hidden = "hide it" if left_s < MIN_ERROR * means.step_s else f"hide all but {format_seconds(left_s)}"
        name = "1 worker" if present + more == 1 else f"{present + more} workers"
        yield KnobChange("workers", present + more, then, f"{waits}; {name} would {hidden}")


def propose_prefetch(model: SettingModel, group: Sequence[PooledSetting]) -> Iterator[KnobChange]:
    """Propose twice the prefetch, which hides a part of the random stall beyond that of the steady state."""
    now, own = model.now, model.now.point
    if own.workers == 0:
        return
    means = minibatch_means(now)
    starting_s = max(now.e2e_s.value / now.steps - now.step_s.value, 0.0)  # start of workers, which is not random
    chance_s = means.stall_s - starting_s - solve_steady_state(model.pipeline).stall_s
    if chance_s <= model.error * means.step_s:
        return
    whole_s = now.e2e_s.value
    likely, best = (whole_s - part * chance_s * now.steps for part in (QUEUE_HIDES, 1.0))
    why = (
        f"the {_work_name(model)} waits {format_seconds(chance_s)} of every {format_seconds(means.step_s)} for "
        "batches that come late by chance; a longer queue hides some of it, and cannot save more"
    )
    expected = Estimate(likely, best, whole_s, 0)
    yield KnobChange("prefetch", 2 * own.prefetch, model.pipeline, why, e2e_s=expected)


def propose_batch_size(model: SettingModel, group: Sequence[PooledSetting]) -> Iterator[KnobChange]:
    """Propose twice the batch size, with compute time on the line through two measured sizes."""
    own = model.now.point
    like = without_knob(own, "batch_size")
    alike = [one for one in group if without_knob(one.point, "batch_size") == like]
    sizes = {one.point.batch_size: minibatch_means(one.stats) for one in alike}
    if len(sizes) < 2:
        return
    size = 2 * own.batch_size
    # The second size of the line: the smallest at or above the predicted one, else the nearest to the present one.
    beyond, others = [one for one in sizes if one >= size], sorted(one for one in sizes if one != own.batch_size)
    other = min(beyond) if beyond else min(others, key=lambda one: abs(one - own.batch_size))
    now, then = sizes[own.batch_size], sizes[other]
    pipeline, step = model.pipeline, model.pipeline.step
    each_s = max((then.compute_s - now.compute_s) / (other - own.batch_size), 0.0)
    compute_s = step.compute_s + each_s * (size - own.batch_size)
    larger = replace(step, compute_s=compute_s, copy_s=2 * step.copy_s, collate_s=2 * step.collate_s)
    why = (
        f"a minibatch of {own.batch_size} computes for {format_seconds(step.compute_s)}, {format_seconds(each_s)} of "
        f"it for each sample; the rest, and {format_seconds(step.overhead_s)} of overhead, is shared by more samples"
    )
    changed = replace(pipeline, batch_size=size, step=larger)
    power = _scale_power(model, group, "batch_size", 2.0)
    yield KnobChange("batch_size", size, changed, why, same_work=False, power=power)


def propose_warm_cache(model: SettingModel, group: Sequence[PooledSetting]) -> Iterator[KnobChange]:
    """Propose a warm page cache, with files fetched as fast as the fastest setting in the same mode does."""
    own = model.now.point
    if own.cache == "warm":
        return
    least_s = min(_sample_fetch_s(one.stats) for one in group if one.point.mode == own.mode)
    now_s = _sample_fetch_s(model.now)
    if least_s >= 0.5 * now_s:  # contention alone explains a difference up to this
        return
    why = f"fetching a sample takes {format_seconds(now_s)}, from the page cache {format_seconds(least_s)}"
    yield KnobChange("cache", "warm", _with_fetch_factor(model.pipeline, least_s / now_s), why)


def propose_storage(model: SettingModel, group: Sequence[PooledSetting]) -> Iterator[KnobChange]:
    """Propose storages that are faster in pairs of settings that differ in nothing else."""
    own = model.now.point
    faster: dict[str, list[float]] = {}
    there = {
        without_knob(one.point, "storage"): _sample_fetch_s(one.stats)
        for one in group
        if one.point.storage == own.storage
    }
    for one in group:
        before_s = there.get(without_knob(one.point, "storage"), 0.0)
        if one.point.storage != own.storage and one.point.cache == own.cache and before_s > 0:
            faster.setdefault(one.point.storage, []).append(_sample_fetch_s(one.stats) / before_s)
    for name, ratios in faster.items():
        part = median(ratios)
        if part < 1.0:
            why = (
                f"fetching a sample takes {format_seconds(_sample_fetch_s(model.now))}; from {name} it took "
                f"{part:.2g} times as long where the sweep has both"
            )
            yield KnobChange("storage", name, _with_fetch_factor(model.pipeline, part), why)


def propose_pinned_memory(model: SettingModel, group: Sequence[PooledSetting]) -> Iterator[KnobChange]:
    """Propose copying from page-locked memory."""
    copy_s = minibatch_means(model.now).copy_s
    if model.now.point.pinned or copy_s <= 0 or not has_gpu(model.now):
        return
    pipeline, step = model.pipeline, model.pipeline.step
    halved, gone = (replace(pipeline, step=replace(step, copy_s=step.copy_s * part)) for part in (COPY_PINNED, 0.0))
    expected = Estimate(model.predict_e2e_s(halved).value, model.predict_e2e_s(gone).value, model.now.e2e_s.value, 0)
    of_step = f"{format_seconds(copy_s)} of every {format_seconds(minibatch_means(model.now).step_s)}"
    why = f"copying takes {of_step}; more than that it cannot save"
    yield KnobChange("pinned", True, halved, why, error=MIN_ERROR, same_work=False, e2e_s=expected, power=SAME_POWER)


Proposer = Callable[[SettingModel, Sequence[PooledSetting]], Iterator[KnobChange]]
"""Proposes values near the present setting from settings of the same board and workload."""
PROPOSERS: tuple[Proposer, ...] = (
    propose_workers,
    propose_prefetch,
    propose_batch_size,
    propose_warm_cache,
    propose_storage,
    propose_pinned_memory,
    propose_cores,
    propose_clocks,
)


def _with_fetch_factor(pipeline: InputPipeline, part: float) -> InputPipeline:
    return replace(pipeline, samples=replace(pipeline.samples, fetch_s=pipeline.samples.fetch_s * part))


def _sample_fetch_s(one: PointStats) -> float:
    return one.fetch_s.value / one.samples


def _work_name(model: SettingModel) -> str:
    return "training" if model.now.point.kind == "train" else "inference"
