"""Values that describe an input pipeline (storage, loader, host, step) and its results (epoch, steady state).

The pipeline is that of ``torch.utils.data.DataLoader``: worker i mod w makes batch i, at most w * prefetch batches are
in progress or ready, and training takes them in order. Without workers, training makes each batch itself before its
step.

Closed-form steady state of an input pipeline, for thousands of power modes where simulation would be too slow.

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
k s / (w T) of the time, training for (h t + d) / T if it spins. s and t are the mean slow-downs over the number of
others on a core, taken as independent with these shares; T follows from them by fixed-point iteration.

Cores: n tasks at once on c cores, background included, each take max(1, n / c) (1 + k min(1, (n - 1) / max(1, c - 1)))
times as long. The first factor is time slicing, the second contention for caches and memory (k is
``HostCores.crowding``). Storage: the first min(a, 1 / u) readers are served and the others wait, where a is
``Storage.at_once`` and u the share of a read that moves bytes, since a device transfers for one reader at a time. For
1.3 readers, the second is served at 0.3 times its rate. Both forms are our own. Across power modes, host times follow
the CPU and memory clocks.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedge.types import Floats, Label


@dataclass(frozen=True, slots=True)
class Storage:
    """Storage of the samples. Reading a file takes ``latency_s + mb / mb_per_s`` without other readers.

    Attributes:
        latency_s: Seconds to find and open a file that is not cached, with one reader.
        at_once: Number of readers whose latencies overlap without waiting.
    """

    name: str
    mb_per_s: float
    latency_s: float
    at_once: float
    label: Label = "estimated"
    source: str = "chosen by us"


@dataclass(frozen=True, slots=True)
class Loader:
    """Settings of the data loader.

    Attributes:
        workers: Number of worker processes; 0 loads in the training process.
        pinned: Whether batches are first copied to page-locked memory: by a thread beside training, or without workers
            by training itself.
    """

    workers: int
    prefetch: int = 2
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class SampleCost:
    """Host cost of one sample: seconds on an otherwise idle core, in the present power mode.

    Attributes:
        file_mb: MB read from the storage or page cache; 0 if the data set is held in memory.
        fetch_s: Seconds to open and read a file in the page cache.
        preprocess_s: Seconds to decode it and convert it to a tensor.
    """

    file_mb: float
    fetch_s: float
    preprocess_s: float


@dataclass(frozen=True, slots=True)
class StepCost:
    """Cost of a step once its samples are ready: seconds in the present power mode, on otherwise idle cores.

    Attributes:
        compute_s: Forward, backward and update; for inference the forward pass alone.
        host_share: Share of ``compute_s`` in which the device waits for the host (launches); 1 if the host computes.
        collate_s: Stacking the samples to a batch, by whichever process loads.
        handover_s: Taking a ready batch from a worker; unused without workers.
        overhead_s: Everything else in the loop: metrics, logging.
        foreign_s: Additional compute time on a core for batches made by a worker: memory is mapped, caches are cold.
        posting_s: Additional time of a worker per batch: writing it to shared memory and notifying training.
    """

    compute_s: float
    host_share: float
    copy_s: float
    collate_s: float
    handover_s: float
    overhead_s: float
    foreign_s: float = 0.0
    posting_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HostCores:
    """The cores that loading and training share.

    Attributes:
        background: Permanent load of other processes, in cores.
        crowding: Relative slow-down of each core if all are busy, from shared caches and memory: 0.3 means 1.3 times
            the time.
        spins: Whether training keeps its core busy while it waits for the device.
    """

    cores: float
    background: float = 0.0
    crowding: float = 0.0
    spins: bool = True


@dataclass(frozen=True, slots=True)
class InputPipeline:
    """An input pipeline in one power mode.

    Attributes:
        cached: Share of the reads that the page cache answers, from 0 to 1.
        start_s: Core seconds to start one worker process at the beginning of an epoch.
    """

    batch_size: int
    loader: Loader
    storage: Storage
    samples: SampleCost
    step: StepCost
    host: HostCores
    cached: float = 1.0
    start_s: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedEpoch:
    """Times of an epoch's minibatches, float64 arrays of shape (steps,), in seconds.

    The sum of stall, copy, compute and overhead is the time to the start of the next minibatch.

    Attributes:
        fetch_s: Reading the batch, by whichever process makes it, overlapped or not.
        preprocess_s: Preprocessing the batch, likewise.
        stall_s: Waiting of training for the batch; without workers, fetch + preprocess.
        overhead_s: Everything else, including taking over the batch, or collating it without workers.
        cpu_busy: Mean number of busy cores during the minibatch, without the background.
    """

    start_s: Floats
    fetch_s: Floats
    preprocess_s: Floats
    stall_s: Floats
    copy_s: Floats
    compute_s: Floats
    overhead_s: Floats
    cpu_busy: Floats

    @property
    def step_s(self) -> Floats:
        """Return the times from the start of each minibatch to the start of the next, shape (steps,)."""
        total: Floats = self.stall_s + self.copy_s + self.compute_s + self.overhead_s
        return total

    @property
    def e2e_s(self) -> float:
        """Return the duration of the epoch in seconds."""
        return float(self.step_s.sum())


@dataclass(frozen=True, slots=True)
class SteadyState:
    """Mean times of a minibatch in the steady state, by a closed form.

    Attributes:
        slower_loading: Slow-down of a worker's work on a core beside the other processes.
        slower_training: Slow-down of the training's work on a core beside the other processes.
    """

    stall_s: float
    compute_s: float
    step_s: float
    slower_loading: float
    slower_training: float


_ALONE = 1e-9


def compute_slowdowns(cores: Floats, host: HostCores, running: float) -> Floats:
    """Return the slow-down of work on ``cores`` active cores, shape (n,), with ``running`` tasks at once.

    ``running`` includes the work itself but not the background; the host's own number of cores is ignored.
    """
    at_once = max(running + host.background, 1.0)
    shared = np.minimum(1.0, (at_once - 1.0) / np.maximum(cores - 1.0, 1.0))
    slower: Floats = np.maximum(1.0, at_once / cores) * (1.0 + host.crowding * shared)
    return slower


def compute_slowdown(host: HostCores, running: float) -> float:
    """Return the slow-down of work on the host's own cores, with ``running`` tasks as in ``compute_slowdowns``."""
    return float(compute_slowdowns(np.array([host.cores]), host, running)[0])


def file_read_s(storage: Storage, file_mb: float) -> float:
    """Return the time to read an uncached file with one reader, in seconds."""
    return storage.latency_s + file_mb / storage.mb_per_s


def count_served_readers(storage: Storage, file_mb: float) -> float:
    """Return the number of readers that the storage serves at once, at least 1 and not necessarily whole."""
    alone_s = file_read_s(storage, file_mb)
    moving = file_mb / storage.mb_per_s / alone_s if alone_s > 0 else 0.0
    return max(1.0, min(storage.at_once, 1.0 / max(moving, _ALONE)))


def batch_read_s(pipeline: InputPipeline) -> float:
    """Return the storage time of a batch's uncached files with one reader, in seconds."""
    missing = (1.0 - pipeline.cached) if pipeline.samples.file_mb > 0 else 0.0
    return pipeline.batch_size * missing * file_read_s(pipeline.storage, pipeline.samples.file_mb)


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
    """Compute the steady state for every row of needs; the host's own number of cores is ignored."""
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
    stall_s, step_s, slower_loading, slower_training = (
        float(getattr(found, name)[0]) for name in ("stall_s", "step_s", "slower_loading", "slower_training")
    )
    step = pipeline.step
    foreign_s = step.foreign_s if pipeline.loader.workers else 0.0
    compute_s = step.compute_s * (1.0 + step.host_share * (slower_training - 1.0)) + foreign_s * slower_training
    return SteadyState(stall_s, compute_s, step_s, slower_loading=slower_loading, slower_training=slower_training)


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


MEMORY_SHARE = 0.2
"""Share of the host's work at the top clocks that follows the memory clock instead of the CPU's. With it, stalls fall
by 36 % from 1.2 to 2.1 GHz; the characterisation paper measured 31 to 39 % (doi 10.1145/3570604)."""


HOST_TIMES = ("copy_s", "collate_s", "handover_s", "overhead_s", "foreign_s", "posting_s")
"""Those of a step's times that are work of the host."""


@dataclass(frozen=True, slots=True)
class ClockShares:
    """A power mode relative to the top mode: its active cores, and its clocks as shares of the highest."""

    cores: int
    cpu: float
    mem: float


def compute_host_factor(cpu: Floats, mem: Floats) -> Floats:
    """Return the slow-down of work on a core relative to the top clocks, from clocks as shares of the highest, shape
    (n,).
    """
    factor: Floats = (1.0 - MEMORY_SHARE) / cpu + MEMORY_SHARE / mem
    return factor


def scale_to_clocks(top: InputPipeline, clocks: ClockShares, compute_s: float, host_share: float) -> InputPipeline:
    """Rescale a pipeline from the top clocks to another power mode.

    The compute time per step in that mode, in seconds, and the share of it in which the device waits for the host, from
    0 to 1, are given, because the device has clocks of its own.
    """
    factor = float(compute_host_factor(np.array([clocks.cpu]), np.array([clocks.mem]))[0])
    scaled = scale_host_times(top, factor)
    return dataclasses.replace(
        scaled,
        step=dataclasses.replace(scaled.step, compute_s=compute_s, host_share=host_share),
        host=dataclasses.replace(top.host, cores=float(clocks.cores)),
    )


def scale_host_times(pipeline: InputPipeline, factor: float) -> InputPipeline:
    """Return the pipeline with ``factor`` times as long work on a core; compute time stays."""
    of_samples = {name: getattr(pipeline.samples, name) * factor for name in ("fetch_s", "preprocess_s")}
    of_step = {name: getattr(pipeline.step, name) * factor for name in HOST_TIMES}
    return dataclasses.replace(
        pipeline,
        samples=dataclasses.replace(pipeline.samples, **of_samples),
        step=dataclasses.replace(pipeline.step, **of_step),
        start_s=pipeline.start_s * factor,
    )


def solve_modes(
    top: InputPipeline, shares: Floats, cores: Floats, compute_s: Floats, host_share: Floats
) -> SteadyStates:
    """Compute the steady state in many power modes at once.

    Args:
        top: The pipeline at the top clocks.
        shares: The knobs as shares of the top mode's (``fedge.physics.time_power_model.knob_shares``), shape (n, 4).
        cores: Numbers of active cores, shape (n,).
        compute_s: Compute times per step in each mode, in seconds, shape (n,).
        host_share: Shares of them in which the device waits for the host, shape (n,).
    """
    factor = compute_host_factor(shares[:, 1], shares[:, 3])
    still = dataclasses.replace(top, step=dataclasses.replace(top.step, compute_s=0.0))
    once = build_batch_needs(still)
    ones = np.ones(len(shares))
    needs = BatchNeeds(
        read_s=once.read_s[0] * ones,
        load_s=once.load_s[0] * factor,
        train_s=once.train_s[0] * factor + compute_s * host_share,
        device_s=compute_s * (1.0 - host_share),
        cores=cores,
    )
    return solve_steady_states(
        needs, top.loader.workers, count_served_readers(top.storage, top.samples.file_mb), top.host
    )
