"""The next values of each knob, each as the pipeline that it would make, with the reason in words.

One function per knob: it gets the model of the present setting and all settings of the workload on the board, and gives
what could be turned. Who asks decides whether that is worth telling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from fedge.characterisation.advice.modelling import LEAST_ERROR, Modelled, has_gpu, means_of
from fedge.characterisation.advice.nexts_clocks import clocks, cores
from fedge.characterisation.findings.words import seconds
from fedge.characterisation.judging.estimate import Estimate
from fedge.characterisation.judging.pooling import Pooled
from fedge.characterisation.judging.setting import without
from fedge.characterisation.judging.slopes import scaled, slope_of, watts
from fedge.characterisation.judging.turned import Next
from fedge.pipeline.fitting import with_loader
from fedge.pipeline.records import Pipeline
from fedge.pipeline.steady import steady

MORE_WORKERS = (1, 2)
COPY_PINNED = 0.5
"""What copying from pinned memory is taken to need of that from pageable memory; the interval is 0 to 1. By us."""
QUEUE_HIDES = 0.5
"""What a queue twice as long is taken to hide of the waiting that comes by chance; the interval is 0 to 1. By us."""
SAME_POWER = Estimate(1.0, 1.0, 1.0, 0)


def workers(model: Modelled, group: Sequence[Pooled]) -> Iterator[Next]:
    """One and two more loader workers."""
    present, seen = model.pipeline.loader.workers, means_of(model.now)
    best = steady(model.pipeline)
    waits = f"the {_work(model)} waits {seconds(seen.stall_s)} of every {seconds(seen.step_s)} for its batch"
    for more in MORE_WORKERS:
        then = with_loader(model.pipeline, present + more)
        found = steady(then)
        if found.step_s > best.step_s * (1.0 - LEAST_ERROR):  # nothing more to gain
            continue
        best, left_s = found, min(found.stall_s, seen.stall_s)
        hidden = "hide it" if left_s < LEAST_ERROR * seen.step_s else f"hide all but {seconds(left_s)}"
        name = "1 worker" if present + more == 1 else f"{present + more} workers"
        yield Next("workers", present + more, then, f"{waits}; {name} would {hidden}", model.error)


def prefetch(model: Modelled, group: Sequence[Pooled]) -> Iterator[Next]:
    """Twice as many batches ahead: of what waits beyond the steady state, which comes by chance, it hides a part."""
    now, own = model.now, model.now.point
    if own.workers == 0:
        return
    seen = means_of(now)
    starting_s = max(now.e2e_s.value / now.steps - now.step_s.value, 0.0)  # waiting for workers that start is no chance
    chance_s = seen.stall_s - starting_s - steady(model.pipeline).stall_s
    if chance_s <= model.error * seen.step_s:
        return
    whole_s = now.e2e_s.value
    likely, best = (whole_s - part * chance_s * now.steps for part in (QUEUE_HIDES, 1.0))
    why = (
        f"the {_work(model)} waits {seconds(chance_s)} of every {seconds(seen.step_s)} for batches that come late by "
        "chance; a longer queue hides some of it, and cannot save more"
    )
    yield Next("prefetch", 2 * own.prefetch, model.pipeline, why, model.error, e2e_s=Estimate(likely, best, whole_s, 0))


def batch_size(model: Modelled, group: Sequence[Pooled]) -> Iterator[Next]:
    """Twice the batch: what a minibatch computes is a line through two sizes measured, around it where they are."""
    own = model.now.point
    like = without(own, "batch_size")
    sizes = {one.point.batch_size: means_of(one.stats) for one in group if without(one.point, "batch_size") == like}
    if len(sizes) < 2:
        return
    size = 2 * own.batch_size
    other = _other_size(sorted(sizes), own.batch_size, size)
    now, then = sizes[own.batch_size], sizes[other]
    slope = (then.compute_s - now.compute_s) / (other - own.batch_size)
    pipeline, step = model.pipeline, model.pipeline.step
    each_s = max(slope, 0.0)
    compute_s = step.compute_s + each_s * (size - own.batch_size)
    larger = replace(step, compute_s=compute_s, copy_s=2 * step.copy_s, collate_s=2 * step.collate_s)
    why = (
        f"a minibatch of {own.batch_size} computes for {seconds(step.compute_s)}, {seconds(each_s)} of it for each "
        f"sample; the rest, and {seconds(step.overhead_s)} of overhead, is shared by more samples"
    )
    drawn = slope_of(_pooled(model, group), group, "batch_size", watts)
    power = None if drawn is None else scaled(drawn, 2.0)
    turned = replace(pipeline, batch_size=size, step=larger)
    yield Next("batch_size", size, turned, why, model.error, same_work=False, power=power)


def _other_size(sizes: Sequence[int], own: int, then: int) -> int:
    """The size beside ``own`` that the line goes through: beyond the one that is foretold, else the nearest."""
    beyond = [size for size in sizes if size >= then]
    return min(beyond) if beyond else min((s for s in sizes if s != own), key=lambda s: abs(s - own))


def cache(model: Modelled, group: Sequence[Pooled]) -> Iterator[Next]:
    """As if every file came from the page cache: fetched as fast as files were anywhere in the same mode."""
    own = model.now.point
    if own.cache == "warm":
        return
    least_s = min(one.stats.fetch_s.value / one.stats.samples for one in group if one.point.mode == own.mode)
    now_s = model.now.fetch_s.value / model.now.samples
    if least_s >= 0.5 * now_s:  # contention alone makes that difference
        return
    why = f"fetching a sample takes {seconds(now_s)}, from the page cache {seconds(least_s)}"
    yield Next("cache", "warm", _fetching(model.pipeline, least_s / now_s), why, model.error)


def storage(model: Modelled, group: Sequence[Pooled]) -> Iterator[Next]:
    """The other storages, as much faster as they are where two settings differ in nothing else."""
    own = model.now.point
    faster: dict[str, list[float]] = {}
    there: Mapping[object, float] = {
        without(one.point, "storage"): _fetch_s(one) for one in group if one.point.storage == own.storage
    }
    for one in group:
        before_s = there.get(without(one.point, "storage"), 0.0)
        if one.point.storage != own.storage and one.point.cache == own.cache and before_s > 0:
            faster.setdefault(one.point.storage, []).append(_fetch_s(one) / before_s)
    for name, ratios in faster.items():
        part = median(ratios)
        if part >= 1.0:
            continue
        now_s = model.now.fetch_s.value / model.now.samples
        why = (
            f"fetching a sample takes {seconds(now_s)}; from {name} it took {part:.2g} times as long where the sweep "
            "has both"
        )
        yield Next("storage", name, _fetching(model.pipeline, part), why, model.error)


def pinned(model: Modelled, group: Sequence[Pooled]) -> Iterator[Next]:
    """Copying from page-locked memory."""
    copy_s = means_of(model.now).copy_s
    if model.now.point.pinned or copy_s <= 0 or not has_gpu(model.now):
        return
    own = model.pipeline.step.copy_s
    halved, gone = (_copying(model.pipeline, own * part) for part in (COPY_PINNED, 0.0))
    expected = Estimate(model.e2e_s(halved).value, model.e2e_s(gone).value, model.now.e2e_s.value, 0)
    why = (
        f"copying takes {seconds(copy_s)} of every {seconds(means_of(model.now).step_s)}; more than that it cannot save"
    )
    yield Next("pinned", True, halved, why, LEAST_ERROR, same_work=False, e2e_s=expected, power=SAME_POWER)


NEXTS: tuple[Callable[[Modelled, Sequence[Pooled]], Iterator[Next]], ...] = (
    *(workers, prefetch, batch_size, cache, storage, pinned),
    *(cores, clocks),
)


def _copying(pipeline: Pipeline, copy_s: float) -> Pipeline:
    return replace(pipeline, step=replace(pipeline.step, copy_s=copy_s))


def _fetching(pipeline: Pipeline, part: float) -> Pipeline:
    """Fetching takes so much of what it takes now."""
    return replace(pipeline, samples=replace(pipeline.samples, fetch_s=pipeline.samples.fetch_s * part))


def _fetch_s(one: Pooled) -> float:
    return one.stats.fetch_s.value / one.stats.samples


def _pooled(model: Modelled, group: Sequence[Pooled]) -> Pooled:
    return next(one for one in group if one.stats is model.now)


def _work(model: Modelled) -> str:
    return "training" if model.now.point.kind == "train" else "inference"
