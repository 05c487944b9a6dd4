"""Closed-form steady state of an input pipeline, for thousands of power modes where simulation would be too slow.

Symbols, seconds per minibatch, one value per mode:

======  ===============================================================================================
r R     reading of a batch by a single reader; readers that the storage serves at once
k       loading work on cores: reading from the cache, preprocessing, and collating if workers do it
h d     the training's own work on a core; its wait for the device
w       worker processes
s t     slow-down of work on a core in a worker and in training, by the other processes
======  ===============================================================================================

Training alone takes X = h t + d. A batch becomes ready every L = max((r + k s) / w, r / R). The step time is T = max(X,
L) and the stall T - X; without workers T = r + k t + X and the stall is r + k t. A worker occupies a core for the share
k s / (w T) of the time, training for (h t + d) / T if it spins. s and t are the mean slow-downs
(``resource_contention``) over the number of others on a core, taken as independent with these shares; T follows from
them by fixed-point iteration.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedge.costs.input_pipeline.pipeline_model import HostCores, InputPipeline, SteadyState
from fedge.costs.input_pipeline.resource_contention import batch_read_s, compute_slowdowns, count_served_readers
from fedge.types import Floats

MAX_ITERATIONS = 60
"""Largest number of fixed-point iterations; with a damping of one half they converge after 30 to 50."""
RELATIVE_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class BatchNeeds:
    """Resource needs of a minibatch, float64 arrays of shape (n,), in seconds.

    Attributes:
        read_s: Reading by a single reader (r).
        load_s: Loading work on cores (k).
        train_s: The training's own work on a core (h).
        device_s: The training's wait for the device (d).
        cores: Numbers of active cores.
    """

    read_s: Floats
    load_s: Floats
    train_s: Floats
    device_s: Floats
    cores: Floats


@dataclass(frozen=True, slots=True, eq=False)
class SteadyStates:
    """Steady states, float64 arrays of shape (n,), in seconds.

    Attributes:
        load_s: Time between ready batches (L).
        stall_s: Waiting of training for its batch (T - X).
        step_s: Time per step (T).
        slower_loading: Slow-down of a worker's work on a core (s).
        slower_training: Slow-down of the training's work on a core (t).
    """

    load_s: Floats
    stall_s: Floats
    step_s: Floats
    slower_loading: Floats
    slower_training: Floats


def solve_steady_states(needs: BatchNeeds, workers: int, readers: float, host: HostCores) -> SteadyStates:
    """Compute the steady state for every row of needs.

    Args:
        needs: Resource needs of a minibatch, shape (n,) each, with the numbers of cores.
        workers: Number of worker processes.
        readers: Readers that the storage serves at once.
        host: Background load, crowding and spinning; its ``cores`` are ignored.
    """
    beside = _slowdowns_by_others(needs.cores, host, workers + 1)
    nobody, alone = np.zeros_like(needs.read_s), beside[0]
    train_s = needs.train_s * alone + needs.device_s
    if workers == 0:
        load_s = needs.read_s + needs.load_s * alone
        return SteadyStates(
            load_s, stall_s=load_s, step_s=load_s + train_s, slower_loading=alone, slower_training=alone
        )
    slower_loading, slower_training = alone, alone
    load_s, step_s = nobody, np.maximum(train_s, 1e-12)
    for _ in range(MAX_ITERATIONS):
        before, slower_before = step_s, slower_loading
        train_s = needs.train_s * slower_training + needs.device_s
        load_s = np.maximum((needs.read_s + needs.load_s * slower_loading) / workers, needs.read_s / readers)
        step_s = 0.5 * before + 0.5 * np.maximum(train_s, load_s)
        loading = np.clip(needs.load_s * slower_loading / (workers * step_s), 0.0, 1.0)
        on_core = train_s if host.spins else train_s - needs.device_s
        training = np.clip(on_core / step_s, 0.0, 1.0)
        slower_loading = _mean_slowdown(beside, loading, workers - 1, training)
        slower_training = _mean_slowdown(beside, loading, workers, nobody)
        if np.all(
            np.abs(step_s - before) + np.abs(slower_loading - slower_before) * step_s <= RELATIVE_TOLERANCE * step_s
        ):
            break
    train_s = needs.train_s * slower_training + needs.device_s
    step_s = np.maximum(train_s, load_s)
    return SteadyStates(
        load_s, stall_s=step_s - train_s, step_s=step_s, slower_loading=slower_loading, slower_training=slower_training
    )


def solve_steady_state(pipeline: InputPipeline) -> SteadyState:
    """Compute the steady state of one pipeline."""
    readers = count_served_readers(pipeline.storage, pipeline.samples.file_mb)
    found = solve_steady_states(build_batch_needs(pipeline), pipeline.loader.workers, readers, pipeline.host)
    stall_s, step_s = float(found.stall_s[0]), float(found.step_s[0])
    slower_loading, slower_training = float(found.slower_loading[0]), float(found.slower_training[0])
    step = pipeline.step
    foreign_s = step.foreign_s if pipeline.loader.workers else 0.0
    compute_s = step.compute_s * (1.0 + step.host_share * (slower_training - 1.0)) + foreign_s * slower_training
    return SteadyState(
        stall_s, compute_s=compute_s, step_s=step_s, slower_loading=slower_loading, slower_training=slower_training
    )


def build_batch_needs(pipeline: InputPipeline) -> BatchNeeds:
    """Return the resource needs of a pipeline's minibatch, as arrays of shape (1,)."""
    step, samples = pipeline.step, pipeline.samples
    inline = pipeline.loader.workers == 0
    taken_s = step.collate_s if inline else step.handover_s + step.foreign_s
    load_s = pipeline.batch_size * (samples.fetch_s + samples.preprocess_s) + (
        0.0 if inline else step.collate_s + step.posting_s
    )
    train_s = taken_s + step.copy_s + step.overhead_s + step.compute_s * step.host_share
    device_s = step.compute_s * (1.0 - step.host_share)
    return BatchNeeds(
        *(
            np.array([v], dtype=np.float64)
            for v in (batch_read_s(pipeline), load_s, train_s, device_s, float(pipeline.host.cores))
        )
    )


def _slowdowns_by_others(cores: Floats, host: HostCores, most: int) -> Floats:
    """Return the slow-down of work on a core beside 0, 1, ... ``most`` others, shape (most + 1, n)."""
    return np.stack([compute_slowdowns(cores, host, 1.0 + others) for others in range(most + 1)])


def _mean_slowdown(beside: Floats, share: Floats, others: int, training: Floats) -> Floats:
    """Return the mean slow-down (n,) beside ``others`` workers and training, given their shares of core time."""
    total = np.zeros_like(share)
    for count, chance in enumerate(_binomial_chances(share, others)):
        total += chance * ((1.0 - training) * beside[count] + training * beside[count + 1])
    return total


def _binomial_chances(share: Floats, others: int) -> Iterator[Floats]:
    """Yield the probabilities that 0, 1, ... of ``others`` workers are on a core; safe up to a thousand workers."""
    on, off = (np.cumprod([np.ones_like(share), *[part] * others], axis=0) for part in (share, 1.0 - share))
    for count in range(others + 1):
        yield math.comb(others, count) * on[count] * off[others - count]
