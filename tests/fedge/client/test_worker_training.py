"""The watchdog stops work whose time is over, whatever the worker is at, and leaves all other work alone."""

import threading

import pytest
from contracts.rounds import Counted

from fedge.client.worker_training import CancellableTraining, Watchdog, cancel_after
from fedge.errors import WorkerFailed
from fedge.worker.worker_client import WorkerError

LIMIT_S = 30.0


class Worker:
    """Counts how often it is told to stop; ``stopped`` is set at the ``at``-th time. The first ones fail."""

    def __init__(self, at: int = 1, failing: int = 0) -> None:
        self.told, self._at, self._failing = 0, at, failing
        self.stopped = threading.Event()

    def cancel(self) -> bool:
        self.told += 1
        if self.told >= self._at:
            self.stopped.set()
        if self.told <= self._failing:
            raise WorkerError("unreachable", "stopped")
        return True


def test_without_a_time_limit_nobody_watches():
    before, worker, dog = threading.active_count(), Worker(), Watchdog()
    with cancel_after(worker.cancel, None, dog):
        assert threading.active_count() == before

    assert not dog.is_over


def test_the_worker_is_told_again_and_again_since_it_may_have_had_nothing_to_stop():
    worker, dog = Worker(at=3, failing=1), Watchdog()
    with cancel_after(worker.cancel, 0.0, dog):
        assert worker.stopped.wait(LIMIT_S)
        assert dog.is_over
    told = worker.told

    assert "watchdog" not in {thread.name for thread in threading.enumerate()}
    assert worker.told == told


def test_it_ends_with_the_work_also_when_that_fails():
    with pytest.raises(RuntimeError), cancel_after(Worker().cancel, LIMIT_S, Watchdog()):
        raise RuntimeError("no more samples")

    assert "watchdog" not in {thread.name for thread in threading.enumerate()}


def test_no_minibatch_is_begun_once_the_time_is_over():
    worker, dog, counted = Worker(), Watchdog(), Counted()
    training = CancellableTraining(counted, dog)
    training.advance(3)
    with cancel_after(worker.cancel, 0.0, dog):
        assert worker.stopped.wait(LIMIT_S)

    with pytest.raises(WorkerFailed) as refused:
        training.advance(1)
    assert refused.value.kind == "cancelled"
    assert counted.parts == [3]
    assert training.result().accuracy == 0.9
