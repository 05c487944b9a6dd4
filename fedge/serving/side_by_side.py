"""One turn of training and inference side by side, through workers: managed, native or alone, all measured alike.

*managed*: one worker does both, one minibatch at a time. *native*: two workers, two processes, share the machine with
nothing between them; the one that serves collects its batches just like the managed one. *alone*: training, nothing
beside it. So the three differ in nothing but who shares a process with whom.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fedge.worker import builtin_tasks
from fedge.worker.inference_interleaver import ServiceStatistics
from fedge.worker.worker_client import WorkerClient, WorkerError

MANAGED, NATIVE, ALONE = "managed", "native", "alone"
SERVICE = "fedge-concurrent"
"""The service's name in the worker."""
LEARNING_RATE = 0.01
UNLIMITED_STEPS = 1_000_000_000
"""Minibatches of a training that only the clock ends."""
WARM_UP_STEPS = 5
"""Minibatches before the clock starts: the first ones take memory and tune kernels. Chosen by us."""
TIMED_STEPS = 12
"""Minibatches timed for a figure, of which the first third warms up. Chosen by us."""
MIN_TURN_S = 0.01
"""A turn that has less than this left is over. Chosen by us."""
WITHDRAW_LIMIT_S = 10.0
"""So long a job may take to hear that it is cancelled. Chosen by us."""


@dataclass(frozen=True, slots=True)
class SideBySideJobs:
    """The two jobs of a turn: built-in tasks, on noise in the shape of their own images."""

    train: str
    infer: str
    train_batch: int
    infer_batch: int
    latency_s: float
    arrivals: Mapping[str, Any]
    """As the worker's ``serve`` has it: kind, rate_hz, seed ..."""


@dataclass(frozen=True, slots=True)
class SideBySideOutcome:
    """What a turn gave so far. ``told`` is the service's own account, None where nothing was served."""

    approach: str
    seconds: float
    minibatches: int
    service: ServiceStatistics | None

    @property
    def minibatches_hz(self) -> float:
        """Training minibatches per second."""
        return self.minibatches / self.seconds if self.seconds > 0.0 else 0.0

    @property
    def violation_share(self) -> float | None:
        """The share of the requests that were answered late or not at all; None while there was none."""
        if self.service is None or not self.service.served + self.service.dropped:
            return None
        return (self.service.late + self.service.dropped) / (self.service.served + self.service.dropped)

    def percentile_s(self, q: float) -> float | None:
        """The latency within which ``q`` percent of the answers came; None while there was none."""
        return None if self.service is None else self.service.histogram.percentile(q)


@dataclass(frozen=True, slots=True)
class WorkerPair:
    """Who trains and who serves; the same client where one worker does both."""

    training: WorkerClient
    serving: WorkerClient


def load_task(client: WorkerClient, task: str, device: str) -> str:
    """Load a task into a worker; the device that it took."""
    return str(client.load({"builtin": task}, builtin_tasks.synthetic_source(task), device)["device"])


def measure_step_s(client: WorkerClient, batch_size: int, kind: str) -> float:
    """Median seconds of a minibatch of what is loaded (``kind``: train or infer), with nothing beside it."""
    timed = client.profile(TIMED_STEPS, batch_size, kind)
    whole = [fetch + step for fetch, step in zip(timed["fetch_s"], timed["step_s"], strict=True)]
    return float(statistics.median(whole[TIMED_STEPS // 3 :]))


def run_turn(
    pair: WorkerPair,
    jobs: SideBySideJobs,
    how: str,
    seconds: float,
    *,
    every_s: float = 1.0,
    tell: Callable[[SideBySideOutcome], None] = lambda _: None,
    now_s: Callable[[], float] = time.monotonic,
) -> SideBySideOutcome:
    """Train (what is loaded) for so many seconds, and serve unless ``how`` is alone; ``tell`` hears of it now and then.

    The service stands just before the clock starts and goes just after it stops; what waits then is counted as
    neither in time nor late.
    """
    options = {"steps": UNLIMITED_STEPS, "batch_size": jobs.train_batch, "learning_rate": LEARNING_RATE}
    pair.training.train({"seed": 0, "options": options}, steps=WARM_UP_STEPS)
    with contextlib.nullcontext() if how == ALONE else _serve_during(pair.serving, jobs):
        begin_s, done = now_s(), 0
        while True:
            left_s = begin_s + seconds - now_s()
            reply, _ = pair.training.train(steps=UNLIMITED_STEPS, limit_s=max(MIN_TURN_S, min(every_s, left_s)))
            done += len(reply["seconds"])
            outcome = SideBySideOutcome(
                how, now_s() - begin_s, done, None if how == ALONE else _read_service_report(pair.serving)
            )
            tell(outcome)
            if outcome.seconds >= seconds - MIN_TURN_S:
                return outcome


def _read_service_report(client: WorkerClient) -> ServiceStatistics:
    """The service's account; raises ``WorkerError`` when it can serve no more."""
    said = client.status()["services"].get(SERVICE)
    if said is None:
        raise WorkerError("failed", f"the service {SERVICE} stands no more: somebody else has removed it")
    told = ServiceStatistics.from_data(said)
    if told.failed:
        raise WorkerError("failed", told.failed)
    return told


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
    """Let the service stand no more; a training that was left in the middle is cancelled first."""
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
