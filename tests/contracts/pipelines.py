"""Made-up input pipelines, and two ways of playing them that share nothing with the one that is tested."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from fedge.costs.input_pipeline.epoch_simulation import TURNS_PER_BATCH, Jitter
from fedge.costs.input_pipeline.pipeline_model import (
    HostCores,
    InputPipeline,
    Loader,
    SampleCost,
    StepCost,
    Storage,
    batch_read_s,
    compute_slowdown,
    count_served_readers,
)

PLAIN = InputPipeline(
    batch_size=4,
    loader=Loader(2, 2),
    storage=Storage("disk", mb_per_s=100.0, latency_s=0.001, at_once=8),
    samples=SampleCost(file_mb=0.1, fetch_s=0.0001, preprocess_s=0.002),
    step=StepCost(0.006, host_share=0.4, copy_s=0.0005, collate_s=0.0003, handover_s=0.0002, overhead_s=0.0004),
    host=HostCores(cores=4.0),
)

UNCONTENDED = HostCores(cores=1000.0)


@st.composite
def pipelines(draw: st.DrawFn, most_workers: int = 4) -> InputPipeline:
    """Pipelines of every kind: bound by computing, by workers, by the storage, by the cores."""

    def seconds(least: float, most: float) -> float:
        return draw(st.floats(least, most))

    storage = Storage("disk", draw(st.sampled_from([20.0, 200.0])), seconds(0.0, 0.003), draw(st.sampled_from([1, 4])))
    share = draw(st.floats(0.0, 1.0))
    return InputPipeline(
        batch_size=4,
        loader=Loader(draw(st.integers(0, most_workers)), draw(st.integers(1, 3))),
        storage=storage,
        samples=SampleCost(draw(st.sampled_from([0.0, 0.05])), seconds(0.0, 2e-4), seconds(1e-4, 5e-3)),
        step=StepCost(
            seconds(1e-3, 4e-2), share, seconds(0, 1e-3), seconds(0, 1e-3), seconds(0, 1e-3), seconds(0, 1e-3)
        ),
        host=HostCores(
            draw(st.sampled_from([1.0, 2.0, 8.0])),
            draw(st.sampled_from([0.0, 0.5])),
            draw(st.sampled_from([0.0, 0.4])),
            draw(st.booleans()),
        ),
        cached=draw(st.sampled_from([0.0, 0.5, 1.0])),
    )


def scattered(steps: int, seed: int) -> Jitter:
    """Minibatches that differ."""
    rng = np.random.default_rng(seed)
    return Jitter(*(np.exp(rng.normal(0.0, 0.3, steps)) for _ in range(3)))


def uncontended(pipeline: InputPipeline) -> InputPipeline:
    """The same on so many cores, and from so quick a storage, that nobody waits for anybody."""
    quick = replace(pipeline.storage, mb_per_s=1e9, at_once=1e9)
    return replace(pipeline, host=UNCONTENDED, storage=quick)


def by_recursion(pipeline: InputPipeline, steps: int, jitter: Jitter) -> np.ndarray:
    """Where nobody waits for anybody: when each minibatch begins, and when the last one ends, shape (steps + 1,)."""
    workers, ahead = pipeline.loader.workers, pipeline.loader.workers * pipeline.loader.prefetch
    step = pipeline.step
    making = jitter.fetch * (batch_read_s(pipeline) + 4 * pipeline.samples.fetch_s)
    making = making + jitter.preprocess * 4 * pipeline.samples.preprocess_s
    training = step.copy_s + jitter.compute * step.compute_s + step.overhead_s
    begins, taken, free = [0.0], np.zeros(steps), np.zeros(max(1, workers))
    for i in range(steps):
        if workers == 0:
            taken[i] = begins[-1] + making[i] + step.collate_s
        else:
            known = 0.0 if i < ahead else taken[i - ahead]
            ready = max(free[i % workers], known) + making[i] + step.collate_s
            free[i % workers] = ready
            taken[i] = max(begins[-1], ready)
        begins.append(taken[i] + (step.handover_s if workers else 0.0) + training[i])
    return np.array(begins)


def by_ticks(pipeline: InputPipeline, steps: int, tick_s: float) -> float:
    """How long an epoch takes, in ticks: every process gets its share of the cores and the storage for each tick."""
    work = 4 * (pipeline.samples.fetch_s + pipeline.samples.preprocess_s)
    turn = [("read", batch_read_s(pipeline) / TURNS_PER_BATCH), ("work", work / TURNS_PER_BATCH)]
    step, inline = pipeline.step, pipeline.loader.workers == 0
    making = turn * TURNS_PER_BATCH
    training = [
        *(making if inline else [("batch", 0.0)]),
        ("work", step.collate_s if inline else step.handover_s),
        ("work", step.copy_s + step.compute_s * step.host_share),
        ("device", step.compute_s * (1 - step.host_share)),
        ("work", step.overhead_s),
    ]
    served = count_served_readers(pipeline.storage, pipeline.samples.file_mb)
    cores = [1.0 / compute_slowdown(pipeline.host, max(1, running)) for running in range(pipeline.loader.workers + 2)]
    now, done, ready, handed = 0.0, 0, set(), pipeline.loader.workers * pipeline.loader.prefetch
    tasks = [list(training)] + [[] for _ in range(pipeline.loader.workers)]
    making_now, following = [-1] * len(tasks), list(range(-1, pipeline.loader.workers))
    queue: list[int] = []
    while True:
        for k in range(len(tasks)):
            while tasks[k] and tasks[k][0][0] != "batch" and tasks[k][0][1] <= tick_s / 2:
                tasks[k].pop(0)
            if k == 0 and not tasks[0]:
                done += 1
                if done == steps:
                    return now
                tasks[0] = list(training)
            if k > 0 and not tasks[k] and making_now[k] >= 0:
                ready.add(making_now[k])
                making_now[k] = -1
        for k in range(1, len(tasks)):
            if making_now[k] < 0 and following[k] < min(handed, steps):
                making_now[k], following[k] = following[k], following[k] + pipeline.loader.workers
                tasks[k] = [*making, ("work", step.collate_s)]
        if tasks[0][0][0] == "batch" and done in ready:
            tasks[0].pop(0)
            handed += 1
        kinds = [task[0][0] if task else "" for task in tasks]
        queue = [k for k in queue if kinds[k] == "read"] + [
            k for k in range(len(tasks)) if kinds[k] == "read" and k not in queue
        ]
        running = sum(kind == "work" or (kind == "device" and pipeline.host.spins) for kind in kinds)
        for k, kind in enumerate(kinds):
            rate = {"work": cores[running], "device": 1.0, "": 0.0, "batch": 0.0}.get(kind)
            if rate is None:
                rate = min(1.0, max(0.0, served - queue.index(k)))
            if rate:
                tasks[k][0] = (kind, tasks[k][0][1] - tick_s * rate)
        now += tick_s
