"""What an input pipeline is, as values: storage, loader, host, the step that it feeds; and what a played epoch shows.

The pipeline is the one of ``torch.utils.data.DataLoader``: batch i is made by worker i mod w, at most w * prefetch
batches are under way or ready, and the training takes them in their order. Without workers the training makes each
batch itself, before its step.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedge.types import Floats, Label


@dataclass(frozen=True, slots=True)
class Storage:
    """Where samples lie. A file takes ``latency_s + mb / mb_per_s`` when nobody else reads."""

    name: str
    mb_per_s: float
    latency_s: float
    """To find and open a file that is not cached, one reader alone."""
    at_once: float
    """How many readers are served at once without waiting for each other, as far as the latency goes."""
    label: Label = "estimated"
    source: str = "chosen by us"


@dataclass(frozen=True, slots=True)
class Loader:
    """How samples are loaded: so many processes beside the training (0: in it), so many batches ahead for each."""

    workers: int
    prefetch: int = 2
    pinned: bool = False
    """Batches are copied to page-locked memory first: beside the training by a thread, without workers by itself."""


@dataclass(frozen=True, slots=True)
class SampleCost:
    """What one sample costs the host: seconds are of one core that does nothing else, in the present power mode."""

    file_mb: float
    """Read from the storage, or from the page cache; 0 where the data set lies in memory."""
    fetch_s: float
    """To open and read a file that is in the page cache."""
    preprocess_s: float
    """To decode it and make a tensor of it."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """One minibatch after its samples are there: seconds in the present power mode, nobody else on the cores."""

    compute_s: float
    """Forward, backward and update; of inference the forward pass."""
    host_share: float
    """The part of ``compute_s`` in which the device waits for the host (launches); 1 where the host is the device."""
    copy_s: float
    """From the host's memory to the device's."""
    collate_s: float
    """To stack the samples to a batch, by whoever loads."""
    handover_s: float
    """To take a ready batch from a worker; nothing without workers."""
    overhead_s: float
    """What the loop does besides: metrics, logging."""
    foreign_s: float = 0.0
    """What computing takes longer, on a core, when a worker made the batch: memory is mapped, caches are cold."""
    posting_s: float = 0.0
    """What a worker does more than making the batch: it puts it into shared memory, and sends word of it."""


@dataclass(frozen=True, slots=True)
class HostCores:
    """The cores that loading and training share."""

    cores: float
    background: float = 0.0
    """Cores' worth of work that others do all the time."""
    crowding: float = 0.0
    """How much slower each core is when all of them are busy: 0.3 means that work takes 1.3 times as long (shared
    caches and memory)."""
    spins: bool = True
    """Whether the training keeps its core busy while it waits for the device."""


@dataclass(frozen=True, slots=True)
class InputPipeline:
    """Everything that decides how an epoch goes."""

    batch_size: int
    loader: Loader
    storage: Storage
    samples: SampleCost
    step: StepCost
    host: HostCores
    cached: float = 1.0
    """The share of the reads that the page cache answers."""
    start_s: float = 0.0
    """To start one worker process at the beginning of an epoch, in seconds of a core."""


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedEpoch:
    """An epoch's minibatches: every array is float64 of shape (steps,), seconds.

    ``fetch_s`` and ``preprocess_s`` are what making the batch took whoever made it, overlapped or not; ``stall_s`` is
    how long the training waited for it (without workers: fetch + preprocess). stall + copy + compute + overhead is the
    time to the start of the next; its sum over the epoch is the time from end to end.
    """

    start_s: Floats
    fetch_s: Floats
    preprocess_s: Floats
    stall_s: Floats
    copy_s: Floats
    compute_s: Floats
    overhead_s: Floats
    """With taking the batch over, or without workers collating it."""
    cpu_busy: Floats
    """Mean cores busy during the minibatch, without the background."""

    @property
    def step_s(self) -> Floats:
        """From the start of each minibatch to the start of the next."""
        total: Floats = self.stall_s + self.copy_s + self.compute_s + self.overhead_s
        return total

    @property
    def e2e_s(self) -> float:
        """The whole epoch."""
        return float(self.step_s.sum())


@dataclass(frozen=True, slots=True)
class SteadyState:
    """A minibatch in the steady state, means in seconds, by a closed form."""

    stall_s: float
    compute_s: float
    step_s: float
    """From end to end."""
    slower_loading: float
    """How many times as long a worker's work on a core takes beside the others."""
    slower_training: float
    """The same of the training's."""
