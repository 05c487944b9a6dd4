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

from fedge.worker import networks
from fedge.worker.client import Client, WorkerError
from fedge.worker.interleaving import Told

MANAGED, NATIVE, ALONE = "managed", "native", "alone"
SERVICE = "fedge-concurrent"
"""The service's name in the worker."""
LEARNING_RATE = 0.01
ENDLESS = 1_000_000_000
"""Minibatches of a training that only the clock ends."""
WARM_STEPS = 5
"""Minibatches before the clock starts: the first ones take memory and tune kernels. Chosen by us."""
REPEATS = 12
"""Minibatches timed for a figure, of which the first third warms up. Chosen by us."""
LEAST_S = 0.01
"""A turn that has less than this left is over. Chosen by us."""
WITHDRAW_LIMIT_S = 10.0
"""So long a job may take to hear that it is cancelled. Chosen by us."""


@dataclass(frozen=True, slots=True)
class Jobs:
    """The two jobs of a turn: built-in tasks, on noise in the shape of their own images."""

    train: str
    infer: str
    train_batch: int
    infer_batch: int
    latency_s: float
    arrivals: Mapping[str, Any]
    """As the worker's ``serve`` has it: kind, rate_hz, seed ..."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a turn gave so far. ``told`` is the service's own account, None where nothing was served."""

    how: str
    seconds: float
    minibatches: int
    told: Told | None

    @property
    def minibatches_hz(self) -> float:
        """Training minibatches per second."""
        return self.minibatches / self.seconds if self.seconds > 0.0 else 0.0

    @property
    def violations(self) -> float | None:
        """The share of the requests that were answered late or not at all; None while there was none."""
        if self.told is None or not self.told.served + self.told.dropped:
            return None
        return (self.told.late + self.told.dropped) / (self.told.served + self.told.dropped)

    def percentile_s(self, q: float) -> float | None:
        """The latency within which ``q`` percent of the answers came; None while there was none."""
        return None if self.told is None else self.told.histogram.percentile(q)


@dataclass(frozen=True, slots=True)
class Pair:
    """Who trains and who serves; the same client where one worker does both."""

    training: Client
    serving: Client


def load(client: Client, task: str, device: str) -> str:
    """Load a task into a worker; the device that it took."""
    return str(client.load({"builtin": task}, networks.synthetic(task), device)["device"])


def median_s(client: Client, batch_size: int, kind: str) -> float:
    """Median seconds of a minibatch of what is loaded (``kind``: train or infer), with nothing beside it."""
    timed = client.profile(REPEATS, batch_size, kind)
    whole = [fetch + step for fetch, step in zip(timed["fetch_s"], timed["step_s"], strict=True)]
    return float(statistics.median(whole[REPEATS // 3 :]))


def turn(
    pair: Pair,
    jobs: Jobs,
    how: str,
    seconds: float,
    *,
    every_s: float = 1.0,
    tell: Callable[[Outcome], None] = lambda _: None,
    now_s: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Train (what is loaded) for so many seconds, and serve unless ``how`` is alone; ``tell`` hears of it now and then.

    The service stands just before the clock starts and goes just after it stops; what waits then is counted as
    neither in time nor late.
    """
    options = {"steps": ENDLESS, "batch_size": jobs.train_batch, "learning_rate": LEARNING_RATE}
    pair.training.train({"seed": 0, "options": options}, steps=WARM_STEPS)
    with contextlib.nullcontext() if how == ALONE else _standing(pair.serving, jobs):
        begin_s, done = now_s(), 0
        while True:
            left_s = begin_s + seconds - now_s()
            reply, _ = pair.training.train(steps=ENDLESS, limit_s=max(LEAST_S, min(every_s, left_s)))
            done += len(reply["seconds"])
            outcome = Outcome(how, now_s() - begin_s, done, None if how == ALONE else _told(pair.serving))
            tell(outcome)
            if outcome.seconds >= seconds - LEAST_S:
                return outcome


def _told(client: Client) -> Told:
    """The service's account; raises ``WorkerError`` when it can serve no more."""
    said = client.status()["services"].get(SERVICE)
    if said is None:
        raise WorkerError("failed", f"the service {SERVICE} stands no more: somebody else has removed it")
    told = Told.from_data(said)
    if told.failed:
        raise WorkerError("failed", told.failed)
    return told


@contextlib.contextmanager
def _standing(client: Client, jobs: Jobs) -> Iterator[None]:
    client.serve(
        SERVICE,
        {"builtin": jobs.infer},
        jobs.infer_batch,
        jobs.latency_s,
        arrivals=dict(jobs.arrivals),
        data=networks.synthetic(jobs.infer),
    )
    try:
        yield
    finally:
        withdraw(client)


def withdraw(client: Client) -> None:
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
