"""A turn of training and serving: who is asked what, what is counted, and that the service goes whatever happens."""

from __future__ import annotations

from typing import Any

import pytest

from fedge.serving import side_by_side
from fedge.serving.side_by_side import ALONE, MANAGED, NATIVE, SERVICE, SideBySideJobs, SideBySideOutcome, WorkerPair
from fedge.worker.inference_interleaver import ServiceStatistics
from fedge.worker.latency_histogram import LatencyHistogram
from fedge.worker.worker_client import WorkerError

JOBS = SideBySideJobs("digits-cnn", "mnist-lenet5", 8, 4, 0.1, {"kind": "constant", "rate_hz": 20.0, "seed": 0})
STEP_S = 0.25


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class FakeClient:
    """A worker whose minibatches take ``STEP_S`` of the clock, and whose service answers at once."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.verbs, self.served = clock, list[str](), dict[str, Any]()
        self.busy, self.broken = 0, ""

    def train(self, begin=None, steps=0, limit_s=None):
        self.verbs.append("begin" if begin else "train")
        done = steps if limit_s is None else max(1, int(limit_s / STEP_S))
        self.clock.now_s += done * STEP_S
        return {"seconds": [STEP_S] * done}, {}

    def serve(self, name, task, batch_size, latency_s, **more):
        self.verbs.append("serve")
        self.served[name] = {"task": task, "batch_size": batch_size, "latency_s": latency_s, **more}

    def unserve(self, name):
        self.verbs.append("unserve")
        if self.busy:
            self.busy -= 1
            raise WorkerError("busy", "train runs")
        del self.served[name]

    def status(self):
        told = ServiceStatistics(5, 4, 1, 1, 2, 0.1, 0, LatencyHistogram(0.1), self.broken)
        return {"services": {name: dict(told.as_data(), batch_size=4) for name in self.served}}

    def close(self):
        self.verbs.append("close")


@pytest.fixture
def clock():
    return Clock()


def test_managed_trains_and_serves_through_one_worker(clock):
    client = FakeClient(clock)

    outcome = side_by_side.run_turn(WorkerPair(client, client), JOBS, MANAGED, 3.0, now_s=clock)

    assert (outcome.minibatches, outcome.seconds, outcome.minibatches_hz) == (12, 3.0, 4.0)
    assert client.verbs == ["begin", "serve", "train", "train", "train", "close", "unserve"]
    assert client.served == {}


def test_native_serves_through_the_other_worker(clock):
    trains, serves = FakeClient(clock), FakeClient(clock)

    side_by_side.run_turn(WorkerPair(trains, serves), JOBS, NATIVE, 1.0, now_s=clock)

    assert trains.verbs == ["begin", "train"]
    assert serves.verbs == ["serve", "close", "unserve"]


def test_alone_serves_nothing(clock):
    client = FakeClient(clock)

    outcome = side_by_side.run_turn(WorkerPair(client, client), JOBS, ALONE, 1.0, now_s=clock)

    assert outcome.service is None
    assert outcome.violation_share is None
    assert client.verbs == ["begin", "train"]


def test_dropped_requests_are_violations_too(clock):
    client = FakeClient(clock)

    outcome = side_by_side.run_turn(WorkerPair(client, client), JOBS, MANAGED, 1.0, now_s=clock)

    assert outcome.violation_share == (1 + 1) / (4 + 1)


def test_what_there_is_so_far_is_told_every_second(clock):
    client, seen = FakeClient(clock), list[SideBySideOutcome]()

    side_by_side.run_turn(WorkerPair(client, client), JOBS, MANAGED, 3.0, tell=seen.append, now_s=clock)

    assert [(one.seconds, one.minibatches) for one in seen] == [(1.0, 4), (2.0, 8), (3.0, 12)]


def test_the_service_goes_when_the_turn_is_interrupted(clock):
    client = FakeClient(clock)
    client.busy = 2  # the cancelled training takes a moment to hear of it

    def interrupt(_outcome):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        side_by_side.run_turn(WorkerPair(client, client), JOBS, MANAGED, 3.0, tell=interrupt, now_s=clock)

    assert client.served == {}


def test_a_service_that_failed_ends_the_turn_with_its_reason(clock):
    client = FakeClient(clock)
    client.broken = "oom: out of memory"

    with pytest.raises(WorkerError, match="out of memory"):
        side_by_side.run_turn(WorkerPair(client, client), JOBS, MANAGED, 3.0, now_s=clock)

    assert SERVICE not in client.served
