"""The learning task of an emulated client: the worker's trainer in this process, bit-identical for the same seed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedge.costs.layers.network_cost import NetworkCost
from fedge.errors import BadInput
from fedge.types import NamedArrays, TrainOptions, TrainResult
from fedge.worker.sources import Data, class_labels
from fedge.worker.tasks import TrainingTask
from fedge.workloads.datasets import translate_refusals

if TYPE_CHECKING:
    from fedge.worker.trainer import Trainer, TrainingSession


class ImageTask:
    """An image classification task; implements ``fedge.protocols.LearningTask`` with ``Trainer``.

    The data and one copy of the model stay in memory, so a task must not be used by two threads at once.
    """

    def __init__(self, task: TrainingTask, data: Data, device: str = "cpu") -> None:
        if not len(data.test_y):
            raise BadInput("workload.task", "a data set without test samples", "at least one, to evaluate the model")
        self._task, self._data, self._device = task, data, device
        self.labels: NDArray[np.int64] = class_labels(data.train_y)
        self.test_labels: NDArray[np.int64] = class_labels(data.test_y)
        self.groups: NDArray[np.int64] | None = data.groups
        self.n_classes = data.classes

    @cached_property
    def trainer(self) -> Trainer:
        """Return the trainer, built at first use: a process that only divides the samples needs no torch.

        Building it limits this process to one torch thread: sums split over threads round differently, and Ray's actors
        have one thread each, so results would otherwise depend on the machine.
        """
        from fedge.worker.trainer import Trainer

        with translate_refusals():
            return Trainer(self._task, self._data, self._device, threads=1)

    @property
    def buffers(self) -> frozenset[str]:
        """Return the names of batch normalisation's running statistics and step counters."""
        return self.trainer.buffers

    @property
    def n_train(self) -> int:
        """Return the number of training samples."""
        return len(self.labels)

    @property
    def n_test(self) -> int:
        """Return the number of test samples."""
        return len(self.test_labels)

    def initial_arrays(self, seed: int) -> NamedArrays:
        """Return a newly initialised model: parameters and buffers by name, in the model's order."""
        with translate_refusals():
            return self.trainer.initial_arrays(seed)

    def count_layers(self, name: str) -> NetworkCost:
        """Count the layers of the network by tracing it for the shape of the task's images.

        Raises:
            BadInput: The network does not run on such images.
        """
        from fedge.costs.layers.torch_trace import trace_module

        shape, network = self.trainer.shape, self.trainer.task.build(self.trainer.shape)
        counted: NetworkCost = trace_module(network, shape.input, name)
        return counted

    def narrow_shapes(self, width: float) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of the arrays that training at a ``width`` below 1 gives, by name.

        Raises:
            BadInput: If the network cannot be narrowed.
        """
        with translate_refusals():
            return self.trainer.narrow_shapes(width)

    def start(self, arrays: NamedArrays, share: NDArray[np.int64], seed: int, options: TrainOptions) -> ImageTraining:
        """Begin training with SGD; starting again or evaluating ends a training that has not finished.

        ``share`` are the indices of the client's samples, shape (m,).

        Raises:
            BadInput: If the share is empty, there are no steps, or the arrays belong to another model.
        """
        from fedge.worker.optimizers import TrainingOptions

        given = TrainingOptions(*attrgetter(*TrainingOptions._fields)(options))
        with translate_refusals():
            return ImageTraining(self.trainer.start(arrays, share, seed, given))

    def train(self, arrays: NamedArrays, share: NDArray[np.int64], seed: int, options: TrainOptions) -> TrainResult:
        """Run all steps of ``start`` at once."""
        training = self.start(arrays, share, seed, options)
        training.advance(options.steps)
        return training.result()

    def evaluate(self, arrays: NamedArrays, share: NDArray[np.int64] | None = None) -> tuple[float, float]:
        """Return the mean loss and the accuracy (0 to 1) over the test set, or over its samples ``share``."""
        with translate_refusals():
            return self.trainer.evaluate(arrays, share=share)


class ImageTraining:
    """A ``fedge.protocols.Training`` of an ``ImageTask``."""

    def __init__(self, training: TrainingSession) -> None:
        self._training = training

    def advance(self, steps: int) -> None:
        with translate_refusals():
            self._training.advance(steps)

    def result(self) -> TrainResult:
        with translate_refusals():
            return TrainResult(*self._training.result())
