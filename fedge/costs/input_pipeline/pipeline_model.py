"""Values that describe an input pipeline (storage, loader, host, step) and its results (epoch, steady state).

The pipeline is that of ``torch.utils.data.DataLoader``: worker i mod w makes batch i, at most w * prefetch batches are
in progress or ready, and training takes them in order. Without workers, training makes each batch itself before its
step.
"""

from __future__ import annotations

from dataclasses import dataclass

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
        prefetch: Batches that each worker prepares ahead.
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
        start_s: Start of the minibatch.
        fetch_s: Reading the batch, by whichever process makes it, overlapped or not.
        preprocess_s: Preprocessing the batch, likewise.
        stall_s: Waiting of training for the batch; without workers, fetch + preprocess.
        copy_s: Copying the batch to the device.
        compute_s: Forward, backward and update.
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
        stall_s: Waiting of training for its batch, in seconds.
        compute_s: Forward, backward and update, in seconds.
        slower_loading: Slow-down of a worker's work on a core beside the other processes.
        slower_training: Slow-down of the training's work on a core beside the other processes.
    """

    stall_s: float
    compute_s: float
    step_s: float
    slower_loading: float
    slower_training: float
