"""Tuning advice: values to change each knob to, their measured or expected benefit, and the reason.

For every board, workload and kind, advice starts from two settings: the one with the most neighbours that differ in one
knob, and the fastest one. Of the measured values of a knob, the best is quoted. Values without measurements are
predicted (``setting_model``), and reported only if the expected gain exceeds both the model's error and the measured
gain from the same knob.

Clocks: work on a core follows the clocks of CPU and memory (``fedge.costs.input_pipeline.pipeline_model``). The
dependence of computing and of power on a clock is taken from the sweep (``estimate_slope``). Without such points,
computing follows the GPU's clock as far as the GPU does not wait for launches, and the memory's clock by
``MEMORY_SLOPE``; power is then not predicted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from fedge.characterisation.findings import format_seconds
from fedge.characterisation.knob_effects import MIN_CHANGE, quantity_label
from fedge.characterisation.point_statistics import PointStats, PooledSetting, group_by_workload
from fedge.characterisation.setting_model import (
    MIN_ERROR,
    SLOPE_UNCERTAINTY,
    KnobChange,
    PipelineFits,
    SettingModel,
    estimate_slope,
    fit_setting_model,
    has_gpu,
    minibatch_means,
    scale_by_slope,
)
from fedge.characterisation.sweep_plan import (
    CLOCK_FORMATS,
    ORDERED_KNOBS,
    UNORDERED_KNOBS,
    CharacterisationPlan,
    KnobValue,
    describe_setting,
    device_name,
    get_knob_value,
    without_knob,
)
from fedge.confidence_interval import Estimate, estimate_ratio
from fedge.costs.input_pipeline.pipeline_fit import with_loader
from fedge.costs.input_pipeline.pipeline_model import (
    InputPipeline,
    compute_host_factor,
    scale_host_times,
    solve_steady_state,
)
from fedge.groups import group_by, group_pairs
from fedge.types import DeviceSpec, Label, PowerMode

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
    slope = estimate_slope(model.now.point, group, knob, lambda one: one.compute_s.value / one.steps)
    host_share = model.pipeline.step.host_share
    compute = _compute_time_factor(knob, then / value, host=host, host_share=host_share, slope=slope)
    pipeline = scale_host_times(model.pipeline, host)
    pipeline = replace(pipeline, step=replace(pipeline.step, compute_s=pipeline.step.compute_s * compute))
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
    slope = estimate_slope(model.now.point, group, knob, lambda one: one.power_w.value if one.power_w else None)
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
    there = {
        without_knob(one.point, "storage"): _sample_fetch_s(one.stats)
        for one in group
        if one.point.storage == own.storage
    }
    faster = group_pairs(
        (one.point.storage, _sample_fetch_s(one.stats) / before_s)
        for one in group
        if one.point.storage != own.storage
        and one.point.cache == own.cache
        and (before_s := there.get(without_knob(one.point, "storage"), 0.0)) > 0
    )
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


TUNABLE_KNOBS = tuple(knob for knob in (*ORDERED_KNOBS, *UNORDERED_KNOBS) if knob != "kind")
"""Knobs that leave the work itself unchanged."""


@dataclass(frozen=True, slots=True)
class TuningAdvice:
    """Change ``knob`` from ``now`` to ``then``, with the resulting ``quantity``."""

    board: str
    workload: str
    kind: str
    knob: str
    now: KnobValue
    then: KnobValue
    quantity: str
    """``e2e_s`` or ``energy_j``, per epoch of equally many samples."""
    present: float
    expected: Estimate
    """With ``n`` = 0, a prediction with the model's error as its interval; else a measured value."""
    why: str
    label: Label
    """``measured`` only if the sweep has measured exactly this setting."""
    point: str
    """Key of the starting point."""
    setting: str
    """Description of the starting point."""

    @property
    def saving(self) -> float:
        """Saved share of the present value; negative if it grows."""
        return 1.0 - self.expected.value / self.present if self.present > 0 else 0.0


def compute_pooled_advice(points: Sequence[PooledSetting], plan: CharacterisationPlan) -> tuple[TuningAdvice, ...]:
    """Compute advice for every board, workload and kind; the plan's base breaks ties between starting settings.

    Per starting setting it is first on time and then on energy, each by decreasing saving.
    """
    found: list[TuningAdvice] = []
    for group in group_by_workload(points).values():
        fits: PipelineFits = {}
        for now in _select_starting_settings(group, plan):
            own = _advise_setting(now, group, fits)
            found += sorted(own, key=lambda one: (one.quantity, -one.saving))
    return tuple(found)


def _advise_setting(now: PooledSetting, group: Sequence[PooledSetting], fits: PipelineFits) -> list[TuningAdvice]:
    """Return, per knob and quantity, the best measured value and the best prediction that exceeds it."""
    neighbours = list(_list_neighbours(now, group))
    quoted = _select_best([(one, MIN_CHANGE) for one in _advise_from_measurements(now, neighbours)])
    expected = _select_best(list(_advise_from_model(now, group, neighbours, fits)))
    better = [
        one
        for at, (one, error) in expected.items()
        if at not in quoted or one.saving - quoted[at][0].saving > max(error, MIN_CHANGE)
    ]
    return [*(one for one, _ in quoted.values()), *better]


def _select_best(found: Sequence[tuple[TuningAdvice, float]]) -> dict[tuple[str, str], tuple[TuningAdvice, float]]:
    """Select the best advice by knob and quantity; of equals up to ``MIN_CHANGE``, the nearest to the present value."""
    groups = group_by(found, lambda one: (one[0].knob, one[0].quantity))
    return {
        at: min((two for two in own if two[0].saving >= max(o.saving for o, _ in own) - MIN_CHANGE), key=_knob_distance)
        for at, own in groups.items()
    }


def _knob_distance(found: tuple[TuningAdvice, float]) -> float:
    """Return the distance between two values of a knob; 0 for knobs without an order."""
    now, then = found[0].now, found[0].then
    return abs(float(then) - float(now)) if isinstance(now, int | float) and isinstance(then, int | float) else 0.0


def _select_starting_settings(group: Sequence[PooledSetting], plan: CharacterisationPlan) -> list[PooledSetting]:
    """Return the setting with the most neighbours (of equals, the nearest to the plan's base) and the fastest one."""
    keys = [[(knob, without_knob(one.point, knob)) for knob in TUNABLE_KNOBS] for one in group]
    counts = Counter(key for own in keys for key in own)

    def rank(i: int) -> tuple[int, int, int]:
        point = group[i].point
        alike = sum(getattr(point, knob, None) == value for knob, value in plan.base.items())
        return sum(counts[key] for key in keys[i]), alike, -point.workers

    most = max(range(len(group)), key=rank)
    fastest = min(range(len(group)), key=lambda i: group[i].stats.e2e_s.value / group[i].stats.samples)
    return [group[i] for i in dict.fromkeys((most, fastest))]


def _list_neighbours(now: PooledSetting, group: Sequence[PooledSetting]) -> Iterator[tuple[str, PooledSetting]]:
    """Yield each knob with the settings that differ in it alone."""
    for knob in TUNABLE_KNOBS:
        if get_knob_value(now.point, knob) is None:
            continue
        own = without_knob(now.point, knob)
        for one in group:
            if one is not now and get_knob_value(one.point, knob) is not None and without_knob(one.point, knob) == own:
                yield knob, one


def _advise_from_measurements(
    now: PooledSetting, neighbours: Sequence[tuple[str, PooledSetting]]
) -> Iterator[TuningAdvice]:
    """Yield the improvements that the sweep has measured with certainty."""
    for knob, one in neighbours:
        per = now.stats.samples / one.stats.samples
        for quantity in ("e2e_s", "energy_j"):
            before, after = getattr(now.stats, quantity), getattr(one.stats, quantity)
            if before is None or after is None:
                continue
            after = after.scale(per)
            found = estimate_ratio(after, before)
            if found is None or found.high >= 1.0 or found.value > 1.0 - MIN_CHANGE:
                continue
            label = quantity_label(one.stats, quantity)
            low, high = (f"{100 * (1 - end):.0f}" for end in (found.high, found.low))
            span = low if low == high else f"{low} to {high}"
            why = f"this sweep has seen it: {span} % less (95 %, {label}){_describe_time_cost(quantity, now, one, per)}"
            yield _make_advice(now, (knob, get_knob_value(one.point, knob)), quantity, after, why=why, label=label)


def _describe_time_cost(quantity: str, now: PooledSetting, one: PooledSetting, per: float) -> str:
    """Describe how much longer an epoch takes with less energy; empty if it does not."""
    longer = one.stats.e2e_s.value * per / now.stats.e2e_s.value - 1.0
    return f"; an epoch takes {100 * longer:.0f} % longer" if quantity == "energy_j" and longer > MIN_CHANGE else ""


def _advise_from_model(
    now: PooledSetting,
    group: Sequence[PooledSetting],
    neighbours: Sequence[tuple[str, PooledSetting]],
    fits: PipelineFits,
) -> Iterator[tuple[TuningAdvice, float]]:
    """Yield the predicted improvements by values without measurements, each with the model's error."""
    measured = {(knob, get_knob_value(one.point, knob)) for knob, one in neighbours}
    model = fit_setting_model(now, group, fits)
    for propose in PROPOSERS:
        for one in propose(model, group):
            if (one.knob, one.then) not in measured:
                error = model.error if one.error is None else one.error
                yield from ((advice, error) for advice in _advise_change(now, model, one, error))


def _advise_change(now: PooledSetting, model: SettingModel, then: KnobChange, error: float) -> Iterator[TuningAdvice]:
    e2e_s = then.e2e_s or model.predict_e2e_s(then.pipeline)
    why = f"{then.why} (the model's error: {100 * error:.0f} % of the epoch)"
    figures = {"e2e_s": e2e_s, "energy_j": _predict_energy_j(now.stats, model, then, e2e_s)}
    for quantity, expected in figures.items():
        present = getattr(now.stats, quantity)
        if expected is not None and 1.0 - expected.value / present.value > max(error, MIN_CHANGE):
            yield _make_advice(now, (then.knob, then.then), quantity, expected, why=why, label="estimated")


def _predict_energy_j(now: PointStats, model: SettingModel, then: KnobChange, e2e_s: Estimate) -> Estimate | None:
    """Predict an epoch's energy, by its time if the work stays the same, else by time and power.

    None if it is not known or might exceed the present one, since the power is that of another setting.
    """
    if then.same_work:
        return model.predict_energy_j(e2e_s)
    if then.power is None or now.energy_j is None:
        return None
    joules, power = now.energy_j.value, then.power
    ends = ((e2e_s.value, power.value), (e2e_s.low, power.low), (e2e_s.high, power.high))
    value, low, high = (joules * seconds / now.e2e_s.value * factor for seconds, factor in ends)
    return Estimate(value, low, high, 0) if high <= joules else None


def _make_advice(
    now: PooledSetting,
    change: tuple[str, KnobValue | None],
    quantity: str,
    expected: Estimate,
    *,
    why: str,
    label: Label,
) -> TuningAdvice:
    knob, then = change
    point, value = now.point, get_knob_value(now.point, knob)
    present: Estimate = getattr(now.stats, quantity)
    return TuningAdvice(
        board=point.board,
        workload=point.workload,
        kind=point.kind,
        knob=knob,
        now="" if value is None else value,
        then="" if then is None else then,
        quantity=quantity,
        present=present.value,
        expected=expected,
        why=why,
        label=label,
        point=point.key,
        setting=describe_setting(point),
    )
