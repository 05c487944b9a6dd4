"""Training of a client's share by the resident worker, over its socket, and its cancellation at a time limit.

The client watches the limit itself: no message reaches a busy client.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from fedge.errors import BadInput, WorkerFailed
from fedge.protocols import Training
from fedge.types import NamedArrays, TrainOptions, TrainResult
from fedge.worker.worker_client import WorkerClient, WorkerError

logger = logging.getLogger(__name__)


NO_TASK = "no-task"
"""Kind of the error of a worker that was restarted."""
LOAD_LIMIT_S = 3600.0
# Timeout of loading data: a folder of images may take minutes. Default; a longer one detects a hanging worker later.
STRETCH_LIMIT_S = 600.0
# Timeout of one request for steps. A client requests half a second of steps or a single one, so training may last as
# long as necessary, while a hanging worker does not block the board for ever.


def ignore_reply(_reply: Mapping[str, Any]) -> None:
    """Do nothing with a reply of the worker."""


class WorkerTraining:
    """A training in the worker; the constructor sends the model at once, so that sending it is not measured.

    Attributes:
        peak_mb: Largest memory use of the worker so far in MB; None if it does not report any.

    Raises:
        WorkerFailed: If the worker refuses or cannot be reached.
    """

    def __init__(
        self,
        worker: WorkerClient,
        arrays: NamedArrays,
        seed: int,
        options: TrainOptions,
        *,
        hear: Callable[[Mapping[str, Any]], None] = ignore_reply,
    ) -> None:
        self._worker, self._hear = worker, hear
        self.done = 0
        self.peak_mb: float | None = None
        begin = {
            "seed": seed,
            "options": {
                "steps": options.steps,
                "batch_size": options.batch_size,
                "learning_rate": options.learning_rate,
                "momentum": options.momentum,
                "proximal_mu": options.proximal_mu,
                **({} if options.width == 1.0 else {"width": options.width}),
                **({"mixed": True} if options.mixed else {}),
            },
        }
        with translate_worker_errors():
            worker.train(begin=begin, arrays=dict(arrays), steps=0)

    def advance(self, steps: int) -> None:
        with self._translate_lost_training():
            reply, _ = self._worker.train(steps=steps)
        self.done = int(reply["done"])
        if reply.get("peak_mb") is not None:
            self.peak_mb = float(reply["peak_mb"])
        self._hear(reply)
        stopped = reply.get("stopped")
        if stopped:
            raise WorkerFailed("cancelled", f"the worker's training was {stopped} after {reply['done']} minibatches")

    def result(self) -> TrainResult:
        with self._translate_lost_training():
            reply, arrays = self._worker.train(steps=0, finish=True)
        return TrainResult(arrays, float(reply["loss"]), float(reply["accuracy"]))

    @contextmanager
    def _translate_lost_training(self) -> Iterator[None]:
        """Translate errors of a running training; a worker that has lost it died between two requests."""
        with translate_worker_errors():
            try:
                yield
            except WorkerError as error:
                ended = self._worker.status()["last_exit"] if error.kind == NO_TASK else None
                if ended is None:
                    raise
                raise WorkerError("died", f"{ended['text']} [{ended['cause']}]") from error


def read_file_task(name: str, path: Path) -> dict[str, str]:
    """Return the user's task file as a task for the worker, with its hash.

    Raises:
        BadInput: If the file cannot be read.
    """
    try:
        content = path.read_bytes()
        source = content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no text"
        raise BadInput(str(path), f"a task file that cannot be read ({reason})", "a Python file in UTF-8") from error
    return {"name": name, "source": source, "sha256": hashlib.sha256(content).hexdigest()}


def load_worker_task(socket: str, task: Mapping[str, Any], data: Mapping[str, Any]) -> int:
    """Load a task and its data into the worker at ``socket`` and return the number of training samples.

    Loading again what is loaded already does nothing.

    Raises:
        WorkerFailed: If the worker refuses or cannot be reached.
    """
    with translate_worker_errors(), closing(WorkerClient(socket, LOAD_LIMIT_S)) as worker:
        reply = worker.load(task=dict(task), data=dict(data))
    return int(reply["samples"])


@contextmanager
def translate_worker_errors() -> Iterator[None]:
    """Convert the worker's errors to ``WorkerFailed``."""
    try:
        yield
    except WorkerError as error:
        raise WorkerFailed(error.kind, f"worker: {error}") from error


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
        """Wait for ``after_s`` seconds, then request cancellation repeatedly until ``end`` is called."""
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
