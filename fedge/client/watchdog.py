"""Cancellation of a client's work at its time limit, watched by the client itself: no message reaches a busy client."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedge.errors import WorkerFailed
from fedge.protocols import Training
from fedge.types import TrainResult
from fedge.worker.worker_client import WorkerError

logger = logging.getLogger(__name__)

CANCEL_PERIOD_S = 0.2
# Period of repeated cancel requests: between two requests the worker has nothing to cancel. Default: short compared
# with a stretch of steps, long compared with a request.


class Watchdog:
    """The state of a time limit."""

    def __init__(self) -> None:
        self._over, self._ended = threading.Event(), threading.Event()

    @property
    def is_over(self) -> bool:
        """Return whether the limit has passed; it never becomes False again."""
        return self._over.is_set()

    def watch(self, cancel: Callable[[], bool], after_s: float) -> None:
        """Wait for ``after_s`` seconds, then request cancellation repeatedly until ``end`` is called.

        Args:
            cancel: Asks the worker to stop its current work.
            after_s: Seconds until the limit.
        """
        if self._ended.wait(after_s):
            return
        self._over.set()
        while not self._ended.is_set():
            try:
                cancel()
            except WorkerError as error:
                logger.warning("the worker cannot be told that its time is over: %s", error)
            self._ended.wait(CANCEL_PERIOD_S)

    def end(self) -> None:
        """Stop watching because the work has ended."""
        self._ended.set()


@contextmanager
def cancel_after(cancel: Callable[[], bool], after_s: float | None, watchdog: Watchdog) -> Iterator[None]:
    """Cancel the work in the context after ``after_s`` seconds unless it ends before; None sets no limit."""
    if after_s is None:
        yield
        return
    thread = threading.Thread(target=watchdog.watch, args=(cancel, after_s), name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        watchdog.end()
        thread.join()


class CancellableTraining:
    """A ``fedge.protocols.Training`` that raises ``WorkerFailed`` once the watchdog's limit has passed."""

    def __init__(self, training: Training, watchdog: Watchdog) -> None:
        self._training, self._dog = training, watchdog

    def advance(self, steps: int) -> None:
        if self._dog.is_over:
            raise WorkerFailed("cancelled", "its time was over")
        self._training.advance(steps)

    def result(self) -> TrainResult:
        return self._training.result()
