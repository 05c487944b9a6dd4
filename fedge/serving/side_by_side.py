"""One run of training and inference side by side through workers: managed, native or alone, all measured alike.

*managed*: one worker does both, one step or batch at a time. *native*: two workers in two processes share the machine
without coordination; the serving one collects batches like the managed one. *alone*: training only. The three therefore
differ only in which job shares a process with which.

The batch size is the largest that meets the latency budget beside training, from measured times:

    b     requests of a batch            a    arrivals in 1/s           L    latency budget in s
    t_in  seconds of a batch of b        t_tr seconds of a training step, alone

Fulcrum's peak latency is ``b / a + t_in``; in addition, the batch waits for the training step in progress. A batch of
one is not collected: it is due when its request arrives.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from fedge.worker import builtin_tasks
from fedge.worker.inference_interleaver import ServiceStatistics
from fedge.worker.worker_client import WorkerClient, WorkerError

MANAGED, NATIVE, ALONE = "managed", "native", "alone"
SERVICE = "fedge-concurrent"
"""Name of the service in the worker."""
LEARNING_RATE = 0.01
UNLIMITED_STEPS = 1_000_000_000
# Steps of a training that only the clock ends.
WARM_UP_STEPS = 5
# Steps before the clock starts, in which memory is allocated and kernels are tuned. Default; more only cost time.
TIMED_STEPS = 12
# Steps timed for a figure, of which the first third is warm-up. Default: the median of eight is stable enough.
MIN_TURN_S = 0.01
# A run with less time left than this is over. Default: shorter than any step worth starting.
REPORT_S = 1.0
# Time between two reports of progress. Default: often enough for a person who watches.
WITHDRAW_LIMIT_S = 10.0
# Timeout of cancelling a job. Default: a step in progress must end first.


DYNAMIC_PHASES = ((10.0, 0.5), (10.0, 1.5))
# Phases of dynamic arrivals: seconds, and multiple of the mean rate; repeated. Default whose mean is the given rate.


def describe_arrivals(kind: str, rate_hz: float, seed: int) -> dict[str, Any]:
    """Return a service's arrivals in the form of the worker's ``serve`` request."""
    if kind == "dynamic":
        return {
            "kind": kind,
            "rates": [[seconds, factor * rate_hz] for seconds, factor in DYNAMIC_PHASES],
            "seed": seed,
        }
    return {"kind": kind, "rate_hz": rate_hz, "seed": seed}


@dataclass(frozen=True, slots=True)
class SideBySideJobs:
    """The two jobs of a run: built-in tasks on noise in the shape of their own images.

    Attributes:
        arrivals: Arguments of the worker's ``serve``: kind, rate_hz, seed ...
    """

    train: str
    infer: str
    train_batch: int
    infer_batch: int
    latency_s: float
    arrivals: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SideBySideOutcome:
    """The outcome of a run so far.

    Attributes:
        service: Statistics of the service; None if nothing was served.
    """

    approach: str
    seconds: float
    minibatches: int
    service: ServiceStatistics | None

    @property
    def minibatches_hz(self) -> float:
        """Return the training steps per second."""
        return self.minibatches / self.seconds if self.seconds > 0.0 else 0.0

    @property
    def violation_share(self) -> float | None:
        """Return the share of the requests that were answered late or dropped; None if there were no requests."""
        if self.service is None or not self.service.served + self.service.dropped:
            return None
        return (self.service.late + self.service.dropped) / (self.service.served + self.service.dropped)

    def percentile_s(self, q: float) -> float | None:
        """Return the latency percentile ``q`` (0 to 100) of the answers in seconds; None without answers."""
        return None if self.service is None else self.service.histogram.percentile(q)


@dataclass(frozen=True, slots=True)
class WorkerPair:
    """The clients of the training and the serving worker; the same client if one worker does both."""

    training: WorkerClient
    serving: WorkerClient


def load_task(client: WorkerClient, task: str, device: str) -> str:
    """Load a task into a worker and return the name of the device that it uses."""
    return str(client.load({"builtin": task}, builtin_tasks.synthetic_source(task), device)["device"])


def measure_step_s(client: WorkerClient, batch_size: int, kind: str) -> float:
    """Return the median seconds of a step of the loaded task without other load; ``kind`` is ``train`` or ``infer``."""
    timed = client.profile(TIMED_STEPS, batch_size, kind)
    whole = [fetch + step for fetch, step in zip(timed["fetch_s"], timed["step_s"], strict=True)]
    return float(median(whole[TIMED_STEPS // 3 :]))


def run_turn(
    pair: WorkerPair,
    jobs: SideBySideJobs,
    how: str,
    seconds: float,
    *,
    tell: Callable[[SideBySideOutcome], None] = lambda _: None,
    now_s: Callable[[], float] = time.monotonic,
) -> SideBySideOutcome:
    """Train the loaded task for a given time and serve meanwhile unless ``how`` is ``ALONE``.

    The service starts just before the clock and stops just after it; requests that wait at the end count neither as in
    time nor as late.

    Args:
        pair: The workers.
        jobs: The two jobs.
        how: ``MANAGED``, ``NATIVE`` or ``ALONE``.
        seconds: Length of the run.
        tell: Receives the outcome so far, every ``REPORT_S`` seconds.
        now_s: Returns the current time in seconds.

    Raises:
        WorkerError: If a worker fails or the service was removed.
    """
    options = {"steps": UNLIMITED_STEPS, "batch_size": jobs.train_batch, "learning_rate": LEARNING_RATE}
    pair.training.train({"seed": 0, "options": options}, steps=WARM_UP_STEPS)
    with contextlib.nullcontext() if how == ALONE else _serve_during(pair.serving, jobs):
        begin_s, done = now_s(), 0
        while True:
            left_s = begin_s + seconds - now_s()
            reply, _ = pair.training.train(steps=UNLIMITED_STEPS, limit_s=max(MIN_TURN_S, min(REPORT_S, left_s)))
            done += len(reply["seconds"])
            outcome = SideBySideOutcome(
                how, now_s() - begin_s, done, None if how == ALONE else _read_service_report(pair.serving)
            )
            tell(outcome)
            if outcome.seconds >= seconds - MIN_TURN_S:
                return outcome


def _read_service_report(client: WorkerClient) -> ServiceStatistics:
    """Return the service's statistics.

    Raises:
        WorkerError: If the service has failed or was removed.
    """
    status = client.status()["services"].get(SERVICE)
    if status is None:
        raise WorkerError("failed", f"the service {SERVICE} no longer exists: another program has removed it")
    statistics = ServiceStatistics.from_data(status)
    if statistics.failed:
        raise WorkerError("failed", statistics.failed)
    return statistics


@contextlib.contextmanager
def _serve_during(client: WorkerClient, jobs: SideBySideJobs) -> Iterator[None]:
    client.serve(
        SERVICE,
        {"builtin": jobs.infer},
        jobs.infer_batch,
        jobs.latency_s,
        arrivals=dict(jobs.arrivals),
        data=builtin_tasks.synthetic_source(jobs.infer),
    )
    try:
        yield
    finally:
        withdraw_service(client)


def withdraw_service(client: WorkerClient) -> None:
    """Remove the service; a training in progress is cancelled first."""
    client.close()
    ends_s = time.monotonic() + WITHDRAW_LIMIT_S
    while True:
        try:
            client.unserve(SERVICE)
        except WorkerError as error:
            if error.kind == "busy" and time.monotonic() < ends_s:
                time.sleep(0.05)
                continue
        return


BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
# Default batch sizes to measure: powers of two; finer steps take longer to measure.
MAX_LOAD = 0.9
# Largest share of the time, ``t_in * a / b``: at 1 the queue grows without bound. Default: leaves 10 % for bursts.


def peak_latency_s(batch_size: int, batch_s: float, step_s: float, rate_hz: float) -> float:
    """Return the largest latency under even arrivals in seconds: collecting, one training step and the batch itself."""
    collecting_s = batch_size / rate_hz if batch_size > 1 else 0.0
    return collecting_s + step_s + batch_s


def service_load(batch_size: int, batch_s: float, rate_hz: float) -> float:
    """Return the share of the time that the service needs at this batch size."""
    return batch_s * rate_hz / batch_size


def find_largest_batch(batch_s: Mapping[int, float], step_s: float, rate_hz: float, latency_s: float) -> int | None:
    """Return the largest batch size that meets the latency budget and the limit on the load, or None."""

    def is_sustainable(size: int) -> bool:
        in_time = peak_latency_s(size, batch_s[size], step_s, rate_hz) <= latency_s
        return in_time and service_load(size, batch_s[size], rate_hz) <= MAX_LOAD

    return max(filter(is_sustainable, batch_s), default=None)


def find_least_latency_s(batch_s: Mapping[int, float], step_s: float, rate_hz: float) -> float | None:
    """Return the smallest latency budget in seconds that some batch size meets, or None if none keeps up."""
    kept_up = (b for b, seconds in batch_s.items() if service_load(b, seconds, rate_hz) <= MAX_LOAD)
    return min((peak_latency_s(b, batch_s[b], step_s, rate_hz) for b in kept_up), default=None)
