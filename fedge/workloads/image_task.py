"""A learning task of an emulated client: the worker's own trainer in this process, the same bits for the same seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from fedge.errors import BadInput
from fedge.types import NamedArrays, TrainOptions, TrainResult
from fedge.worker.refusal import Refusal
from fedge.worker.sources import Data
from fedge.worker.tasks import TrainingTask
from fedge.worker.trainer import Trainer, TrainingOptions, TrainingSession


class ImageTask:
    """Classifies images with a task's network; implements ``fedge.protocols.LearningTask`` by ``Trainer``.

    The data and one copy of the model stay in memory, so one task must not be used by two threads at once. Building a
    task limits this process to one torch thread: sums split over threads round differently, and Ray's actors have one
    thread each, so anything else would make a run depend on the machine.
    """

    def __init__(self, task: TrainingTask, data: Data) -> None:
        with _translate_refusals():
            self.trainer = Trainer(task, data, threads=1)
        self.labels: NDArray[np.int64] = self.trainer.labels
        self.n_classes = self.trainer.n_classes

    @property
    def buffers(self) -> frozenset[str]:
        """Batch norm's running statistics and step counters."""
        return self.trainer.buffers

    @property
    def n_train(self) -> int:
        """How many training samples there are."""
        return self.trainer.n_train

    @property
    def n_test(self) -> int:
        """How many test samples there are."""
        return self.trainer.n_test

    def initial_arrays(self, seed: int) -> NamedArrays:
        """A freshly initialised model: parameters and buffers by name, in the model's own order."""
        with _translate_refusals():
            return self.trainer.initial_arrays(seed)

    def narrow_shapes(self, width: float) -> Mapping[str, tuple[int, ...]]:
        """The shapes of the arrays that training gives at a ``width`` below 1, by name.

        Raises ``BadInput`` for a network that cannot be narrowed.
        """
        with _translate_refusals():
            return self.trainer.narrow_shapes(width)

    def start(self, arrays: NamedArrays, share: NDArray[np.int64], seed: int, options: TrainOptions) -> ImageTraining:
        """Begin ``options.steps`` minibatches of SGD from ``arrays`` on the samples ``share``.

        ``seed`` fixes the order of the samples and the dropout. Raises ``BadInput`` for an empty share, no steps, or
        arrays of another model. Starting again, or evaluating, ends a training that was not finished.
        """
        given = TrainingOptions(**dataclasses.asdict(options))
        with _translate_refusals():
            return ImageTraining(self.trainer.start(arrays, share, seed, given))

    def train(self, arrays: NamedArrays, share: NDArray[np.int64], seed: int, options: TrainOptions) -> TrainResult:
        """All of ``start``'s minibatches at once."""
        training = self.start(arrays, share, seed, options)
        training.advance(options.steps)
        return training.result()

    def evaluate(self, arrays: NamedArrays) -> tuple[float, float]:
        """Mean loss and accuracy over the whole test set."""
        with _translate_refusals():
            return self.trainer.evaluate(arrays)


class ImageTraining:
    """A ``fedge.protocols.Training`` of an ``ImageTask``."""

    def __init__(self, training: TrainingSession) -> None:
        self._training = training

    def advance(self, steps: int) -> None:
        with _translate_refusals():
            self._training.advance(steps)

    def result(self) -> TrainResult:
        with _translate_refusals():
            return TrainResult(*self._training.result())


@contextmanager
def _translate_refusals() -> Iterator[None]:
    """The trainer's refusals as fedge's own errors."""
    try:
        yield
    except Refusal as error:
        raise BadInput(error.where, error.got, error.right) from error
