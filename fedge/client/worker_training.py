"""A board's share of a round, trained by the resident worker: a ``fedge.protocols.Training`` over its socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedge.errors import WorkerFailed
from fedge.types import NamedArrays, TrainOptions, TrainResult
from fedge.worker.worker_client import WorkerClient, WorkerError

NO_TASK = "no-task"
"""What a worker says that was started anew."""
LOAD_LIMIT_S = 3600.0
"""A worker that has not loaded its data by then hangs: a folder of images may take minutes. Chosen by us."""
STRETCH_LIMIT_S = 600.0
"""So long for one request for minibatches. A board asks for half a second's worth or for a single one, so that training
may last as long as it likes, while a worker that hangs does not keep the board held for ever. Chosen by us."""


class WorkerTraining:
    """Begins at once, so that sending the model is over before anything is metered; raises ``WorkerFailed``.

    ``hear`` is given the worker's reply to every request for minibatches.
    """

    def __init__(
        self,
        worker: WorkerClient,
        arrays: NamedArrays,
        share: NDArray[np.int64] | None,
        seed: int,
        options: TrainOptions,
        *,
        hear: Callable[[Mapping[str, Any]], None] = lambda _reply: None,
    ) -> None:
        self._worker, self._hear = worker, hear
        self.done = 0
        """Minibatches done so far, as the worker told last."""
        self.peak_mb: float | None = None
        """The most memory that the worker held so far; None where it does not tell."""
        begin = {
            "seed": seed,
            "options": {
                "steps": options.steps,
                "batch_size": options.batch_size,
                "learning_rate": options.learning_rate,
                "momentum": options.momentum,
                "proximal_mu": options.proximal_mu,
                **({} if options.width == 1.0 else {"width": options.width}),
            },
        }
        with translate_worker_errors():
            worker.train(begin=begin, arrays=dict(arrays), share=share, steps=0)

    def advance(self, steps: int) -> None:
        with self._translate_lost_training():
            told, _ = self._worker.train(steps=steps)
        self.done = int(told["done"])
        if told.get("peak_mb") is not None:
            self.peak_mb = float(told["peak_mb"])
        self._hear(told)
        stopped = told.get("stopped")
        if stopped:
            raise WorkerFailed("cancelled", f"the worker's training was {stopped} after {told['done']} minibatches")

    def result(self) -> TrainResult:
        with self._translate_lost_training():
            told, arrays = self._worker.train(steps=0, finish=True)
        return TrainResult(arrays, float(told["loss"]), float(told["accuracy"]))

    @contextmanager
    def _translate_lost_training(self) -> Iterator[None]:
        """Errors of a training that was begun; a worker that has forgotten it died between two requests."""
        with translate_worker_errors():
            try:
                yield
            except WorkerError as error:
                ended = self._worker.status()["last_exit"] if error.kind == NO_TASK else None
                if ended is None:
                    raise
                raise WorkerError("died", f"{ended['text']} [{ended['cause']}]") from error


def load_worker_task(socket: str, task: Mapping[str, Any], data: Mapping[str, Any]) -> int:
    """Have the worker at ``socket`` load a task and its data, a no-op when it has them; how many training samples."""
    with translate_worker_errors(), closing(WorkerClient(socket, LOAD_LIMIT_S)) as worker:
        told = worker.load(task=dict(task), data=dict(data))
    return int(told["samples"])


@contextmanager
def translate_worker_errors() -> Iterator[None]:
    """The worker's errors as the library's own."""
    try:
        yield
    except WorkerError as error:
        raise WorkerFailed(error.kind, f"worker: {error}") from error
