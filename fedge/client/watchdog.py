"""Ends a board's work when its time is over: no message can reach it meanwhile, so it watches the clock itself."""

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
"""The worker is told so often to stop, since between two requests it has nothing that it could. Chosen by us."""


class Watchdog:
    """Whether a board's time is over."""

    def __init__(self) -> None:
        self._over, self._ended = threading.Event(), threading.Event()

    @property
    def is_over(self) -> bool:
        """Whether it is; it stays so."""
        return self._over.is_set()

    def watch(self, cancel: Callable[[], bool], after_s: float) -> None:
        """Once ``after_s`` have passed, have the worker stop whatever it does, until the watch is ended."""
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
        """The work is done, or over."""
        self._ended.set()


@contextmanager
def cancel_after(cancel: Callable[[], bool], after_s: float | None, dog: Watchdog) -> Iterator[None]:
    """Work that is cancelled ``after_s`` seconds from now, unless it is done before; None: never."""
    if after_s is None:
        yield
        return
    thread = threading.Thread(target=dog.watch, args=(cancel, after_s), name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        dog.end()
        thread.join()


class CancellableTraining:
    """A training that stops at a watchdog's word, also between two requests; a ``fedge.protocols.Training``."""

    def __init__(self, training: Training, dog: Watchdog) -> None:
        self._training, self._dog = training, dog

    def advance(self, steps: int) -> None:
        if self._dog.is_over:
            raise WorkerFailed("cancelled", "its time was over")
        self._training.advance(steps)

    def result(self) -> TrainResult:
        return self._training.result()
