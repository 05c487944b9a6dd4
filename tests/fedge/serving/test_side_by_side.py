"""A turn of training and serving: who is asked what, what is counted, and that the service goes whatever happens."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.serving import side_by_side
from fedge.serving.side_by_side import (
    ALONE,
    BATCH_SIZES,
    MANAGED,
    NATIVE,
    SERVICE,
    SideBySideJobs,
    SideBySideOutcome,
    WorkerPair,
    find_largest_batch,
    find_least_latency_s,
    peak_latency_s,
)
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


SECONDS = {1: 0.02, 4: 0.04, 16: 0.1}


@pytest.mark.parametrize(
    ("seconds", "step_s", "rate_hz", "latency_s", "size"),
    [
        (SECONDS, 0.05, 40.0, 0.6, 16),  # 16 / 40 + 0.05 + 0.1 = 0.55 s
        (SECONDS, 0.05, 40.0, 0.5, 4),  # 4 / 40 + 0.05 + 0.04 = 0.19 s
        (SECONDS, 0.2, 40.0, 0.6, 4),  # the training step counts
        (SECONDS, 0.05, 40.0, 0.05, None),
        (SECONDS, 0.05, 1.0, 0.1, 1),  # a request that is served alone does not wait for others
        ({1: 0.02}, 0.0, 40.0, 1.0, 1),  # needs 0.8 of the time
        ({1: 0.02}, 0.0, 50.0, 1.0, None),  # needs all of it
    ],
)
def test_the_largest_batch_that_meets_the_budget_and_keeps_up_is_taken(seconds, step_s, rate_hz, latency_s, size):
    assert find_largest_batch(seconds, step_s, rate_hz, latency_s) == size


def test_the_least_budget_is_that_of_the_shortest_batch_if_it_keeps_up():
    assert find_least_latency_s(SECONDS, 0.05, 40.0) == 0.05 + 0.02
    assert find_least_latency_s({1: 0.02}, 0.05, 100.0) is None


@given(
    st.dictionaries(st.sampled_from(BATCH_SIZES), st.floats(1e-4, 1.0), min_size=1),
    st.floats(0.0, 1.0),
    st.floats(0.1, 500.0),
    st.floats(1e-3, 5.0),
)
def test_a_size_is_found_just_where_the_least_budget_is_kept(seconds, step_s, rate_hz, latency_s):
    least_s = find_least_latency_s(seconds, step_s, rate_hz)
    chosen = find_largest_batch(seconds, step_s, rate_hz, latency_s)

    assert (chosen is not None) == (least_s is not None and least_s <= latency_s)
    if chosen is not None:
        assert peak_latency_s(chosen, seconds[chosen], step_s, rate_hz) <= latency_s
