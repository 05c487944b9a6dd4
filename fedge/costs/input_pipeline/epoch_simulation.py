"""Discrete-event simulation of an epoch: loader processes, prefetch queue, storage and cores with contention.

Training and each worker are generators that yield their next activity: work on a core, a read, or a wait. All rates are
constant between two events (``pipeline_model``), so the clock jumps from one completion to the next. All work on cores
proceeds at one rate; its completion is therefore kept on a second clock that runs at this rate and counts seconds of an
undisturbed core, so that a change of the rate moves no completion. Nothing is sampled: the same pipeline always gives
the same epoch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from heapq import heappop, heappush

import numpy as np

from fedge.costs.input_pipeline.pipeline_model import (
    HostCores,
    InputPipeline,
    SimulatedEpoch,
    batch_read_s,
    compute_slowdown,
    count_served_readers,
)
from fedge.types import Floats

_DONE = 1e-12
"""Seconds of remaining work below which it counts as done."""


class Activity(IntEnum):
    """Activity of a process: wait for another process, work on a core, read, or wait for the device."""

    WAITS = 0
    WORKS = 1
    READS = 2
    DEVICE = 3


class SimulationClock:
    """Simulated time of processes that share cores and a storage.

    Attributes:
        busy_s: Core seconds used until now, without the background.
    """

    def __init__(self, host: HostCores, served: float, most: int) -> None:
        """Start at time 0 with at most ``most`` processes active and ``served`` readers at once
        (``count_served_readers``).
        """
        self.now_s = 0.0
        self.busy_s = 0.0
        self._pace = [1.0, *(1.0 / compute_slowdown(host, count) for count in range(1, most + 1))]
        """Work done per second on a core, by the number of cores requested."""
        self._cores = [n * min(1.0, host.cores / max(n + host.background, 1.0)) for n in range(most + 1)]
        """Cores actually in use, by the number of cores requested."""
        self._spins, self._served = host.spins, served
        self._worked_s = 0.0
        self._works: list[tuple[float, int]] = []
        """Heap of (completion on the second clock, process)."""
        self._devices: list[tuple[float, int]] = []
        """Heap of (completion in simulated time, process)."""
        self._readers: list[int] = []
        """Readers in order of arrival."""
        self._unread_s: dict[int, float] = {}

    def begin(self, process: int, does: Activity, seconds: float) -> None:
        """Start an activity of a process, with its duration without contention; ``WAITS`` is not allowed.

        Raises:
            ValueError: The activity has no end of its own.
        """
        if does is Activity.WORKS:
            heappush(self._works, (self._worked_s + seconds, process))
        elif does is Activity.DEVICE:
            heappush(self._devices, (self.now_s + seconds, process))
        elif does is Activity.READS:
            self._readers.append(process)
            self._unread_s[process] = seconds
        else:
            raise ValueError(f"{does!r} has no end of its own")

    def advance_to_next_end(self) -> list[int]:
        """Advance to the next completion; return the numbers of the completed processes, ascending.

        Raises:
            RuntimeError: No process is active.
        """
        asked = len(self._works) + (len(self._devices) if self._spins else 0)
        pace, reading = self._pace[asked], self._list_served_readers()
        span_s = min((self._unread_s[k] / rate for k, rate in reading), default=math.inf)
        if self._works:
            span_s = min(span_s, (self._works[0][0] - self._worked_s) / pace)
        if self._devices:
            span_s = min(span_s, self._devices[0][0] - self.now_s)
        if span_s == math.inf:
            raise RuntimeError("every process waits for another one")
        self.now_s += span_s
        self._worked_s += span_s * pace
        self.busy_s += span_s * self._cores[asked]
        done = (
            _pop_done(self._works, self._worked_s)
            + _pop_done(self._devices, self.now_s)
            + self._advance_readers(reading, span_s)
        )
        return sorted(done) if len(done) > 1 else done

    def _list_served_readers(self) -> list[tuple[int, float]]:
        """Return the readers being served, with their rates relative to a single reader."""
        return [(k, min(1.0, self._served - place)) for place, k in enumerate(self._readers) if place < self._served]

    def _advance_readers(self, reading: list[tuple[int, float]], span_s: float) -> list[int]:
        """Advance the readers by a time span; return those that completed."""
        done = []
        for k, rate in reading:
            self._unread_s[k] -= span_s * rate
            if self._unread_s[k] <= _DONE:
                self._readers.remove(k)
                done.append(k)
        return done


def _pop_done(ends: list[tuple[float, int]], now_s: float) -> list[int]:
    done = []
    while ends and ends[0][0] - now_s <= _DONE:
        done.append(heappop(ends)[1])
    return done


TURNS_PER_BATCH = 2
"""Alternations of reading and preprocessing per batch, so that loaders contend within a batch. Default; more
alternations resolve contention more finely and take proportionally longer to simulate."""
WAITS, WORKS, READS, DEVICE = Activity
TRAINING_PROCESS = 0
"""Number of the training process; workers follow."""


@dataclass(frozen=True, slots=True, eq=False)
class Jitter:
    """Relative durations of each minibatch, float64 arrays of shape (steps,); 1 is the usual duration.

    Attributes:
        fetch: Of reading, from the page cache and from the storage.
    """

    fetch: Floats
    preprocess: Floats
    compute: Floats


def build_unit_jitter(steps: int) -> Jitter:
    """Return a jitter that leaves every minibatch at its usual duration."""
    return Jitter(np.ones(steps), np.ones(steps), np.ones(steps))


def simulate_epoch(pipeline: InputPipeline, steps: int, jitter: Jitter | None = None) -> SimulatedEpoch:
    """Simulate an epoch from its start; starting the workers is part of the first minibatch's stall.

    Raises:
        ValueError: There are no steps, or workers may not prefetch any batch.
        RuntimeError: Every process waits for another one.
    """
    if steps < 1:
        raise ValueError(f"an epoch of {steps} minibatches")
    if pipeline.loader.workers and pipeline.loader.prefetch < 1:
        raise ValueError(f"workers with prefetch {pipeline.loader.prefetch}, which never get a batch to make")
    return _EpochSimulation(pipeline, steps, jitter or build_unit_jitter(steps)).run()


Process = Iterator[tuple[Activity, float]]


class _EpochSimulation:
    """State of a simulated epoch: its processes, the ready batches, and the times recorded for every minibatch."""

    def __init__(self, pipeline: InputPipeline, steps: int, jitter: Jitter) -> None:
        self.pipeline, self.steps = pipeline, steps
        samples, workers = pipeline.samples, pipeline.loader.workers
        self._read_s = (batch_read_s(pipeline) * jitter.fetch).tolist()
        self._fetch_s = (pipeline.batch_size * samples.fetch_s * jitter.fetch).tolist()
        self._prepare_s = (pipeline.batch_size * samples.preprocess_s * jitter.preprocess).tolist()
        self._compute_s = (pipeline.step.compute_s * jitter.compute).tolist()
        self._clock = SimulationClock(
            pipeline.host, count_served_readers(pipeline.storage, samples.file_mb), workers + 1
        )
        self._queues: list[deque[int]] = [deque() for _ in range(workers)]
        self._ready = [False] * steps
        self._handed = 0
        self._notes: dict[str, list[float]] = {
            name: [0.0] * steps
            for name in ("start", "fetch", "preprocess", "stall", "copy", "compute", "overhead", "busy")
        }
        self._processes: list[Process] = [self._training_process(), *(self._worker_process(k) for k in range(workers))]
        self._due = deque(range(workers + 1))
        """Processes that are to yield their next activity."""
        self._waiting: set[int] = set()

    def run(self) -> SimulatedEpoch:
        """Simulate until training has completed its last step."""
        while self._advance_due():
            self._due.extend(self._clock.advance_to_next_end())
        seen = {f"{name}_s": np.array(column) for name, column in self._notes.items()}
        spans_s, busy_s = np.diff(seen["start_s"], append=self._clock.now_s), seen.pop("busy_s")
        cpu_busy = np.divide(busy_s, spans_s, out=np.zeros_like(busy_s), where=spans_s > 0)
        return SimulatedEpoch(**seen, cpu_busy=cpu_busy)

    def _advance_due(self) -> bool:
        """Start the next activity of every process that is due; return False once training has ended."""
        while self._due:
            if not self._advance_process(self._due.popleft()):
                return False
        return True

    def _advance_process(self, process: int) -> bool:
        for does, seconds in self._processes[process]:
            if does is WAITS:
                self._waiting.add(process)
                return True
            if seconds > 0:
                self._clock.begin(process, does, seconds)
                return True
        return False

    def _wake(self, process: int) -> None:
        if process in self._waiting:
            self._waiting.remove(process)
            self._due.append(process)

    # The processes ----------------------------------------------------------------------------------------------------

    def _training_process(self) -> Process:
        loader, clock = self.pipeline.loader, self._clock
        begin_s, begin_busy_s = clock.now_s, clock.busy_s
        yield WORKS, loader.workers * self.pipeline.start_s
        for _ in range(loader.workers * loader.prefetch):
            self._assign_next_batch()
        for i in range(self.steps):
            self._notes["start"][i] = begin_s
            while loader.workers and not self._ready[i]:
                yield WAITS, 0.0
            if not loader.workers:
                yield from self._make_batch(i)
            self._notes["stall"][i] = clock.now_s - begin_s
            yield from self._run_step(i)
            self._notes["busy"][i] = clock.busy_s - begin_busy_s
            begin_s, begin_busy_s = clock.now_s, clock.busy_s

    def _run_step(self, i: int) -> Process:
        """Take over batch ``i`` (or collate it, without workers) and train on it."""
        step, notes, clock = self.pipeline.step, self._notes, self._clock
        taken_s = clock.now_s
        if self._queues:
            self._assign_next_batch()
        yield WORKS, step.handover_s if self._queues else step.collate_s
        handed_s = clock.now_s
        yield WORKS, step.copy_s
        copied_s = clock.now_s
        yield WORKS, self._compute_s[i] * step.host_share + (step.foreign_s if self._queues else 0.0)
        yield DEVICE, self._compute_s[i] * (1.0 - step.host_share)
        computed_s = clock.now_s
        yield WORKS, step.overhead_s
        notes["copy"][i] = copied_s - handed_s
        notes["compute"][i] = computed_s - copied_s
        notes["overhead"][i] = clock.now_s - computed_s + handed_s - taken_s

    def _worker_process(self, k: int) -> Process:
        queue = self._queues[k]
        while True:
            while not queue:
                yield WAITS, 0.0
            i = queue.popleft()
            yield from self._make_batch(i)
            yield WORKS, self.pipeline.step.collate_s + self.pipeline.step.posting_s
            self._ready[i] = True
            self._wake(TRAINING_PROCESS)

    def _make_batch(self, i: int) -> Process:
        """Read and preprocess the samples of batch ``i``, alternating between the two."""
        fetch, preprocess, clock = self._notes["fetch"], self._notes["preprocess"], self._clock
        for _ in range(TURNS_PER_BATCH):
            begin_s = clock.now_s
            yield READS, self._read_s[i] / TURNS_PER_BATCH
            yield WORKS, self._fetch_s[i] / TURNS_PER_BATCH
            fetched_s = clock.now_s
            fetch[i] += fetched_s - begin_s
            yield WORKS, self._prepare_s[i] / TURNS_PER_BATCH
            preprocess[i] += clock.now_s - fetched_s

    def _assign_next_batch(self) -> None:
        """Assign the next batch to the next worker in turn."""
        if self._handed < self.steps:
            worker = self._handed % len(self._queues)
            self._queues[worker].append(self._handed)
            self._handed += 1
            self._wake(TRAINING_PROCESS + 1 + worker)
