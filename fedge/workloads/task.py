"""A model, its data and its loss: trains and tests on arrays by name, the same bits for the same seed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedge.errors import BadInput
from fedge.types import NamedArrays, TrainOptions, TrainResult
from fedge.workloads.data import Images
from fedge.workloads.models import MODELS, Shape

TEST_BATCH = 500
"""Test samples at once: bounds memory, no influence on the result."""


class ImageTask:
    """Classifies images with one of ``MODELS``; implements ``fedge.interfaces.LearningTask``.

    The data and one copy of the model stay in memory, so one task must not be used by two threads at once. Building a
    task limits this process to one torch thread: sums split over threads round differently, and Ray's actors have one
    thread each, so anything else would make a run depend on the machine.
    """

    def __init__(self, model: str, images: Images) -> None:
        torch.set_num_threads(1)
        _, channels, side, _ = images.train_x.shape
        self._build, self._shape = MODELS[model], Shape(channels, side, images.classes)
        self._net = self._fresh(seed=0)
        self._train_x, self._train_y = torch.from_numpy(images.train_x), torch.from_numpy(images.train_y)
        self._test_x, self._test_y = torch.from_numpy(images.test_x), torch.from_numpy(images.test_y)
        self._mean, self._sd = (torch.tensor(v).reshape(1, -1, 1, 1) for v in (images.mean, images.sd))
        self.labels: NDArray[np.int64] = images.train_y
        self.n_classes = images.classes

    @property
    def buffers(self) -> frozenset[str]:
        """Batch norm's running statistics and step counters."""
        return frozenset(name for name, _ in self._net.named_buffers())

    @property
    def n_train(self) -> int:
        """How many training samples there are."""
        return len(self.labels)

    @property
    def n_test(self) -> int:
        """How many test samples there are."""
        return len(self._test_y)

    def initial_arrays(self, seed: int) -> NamedArrays:
        """A freshly initialised model: parameters and buffers by name, in the model's own order."""
        return _arrays(self._fresh(seed))

    def start(self, arrays: NamedArrays, share: NDArray[np.int64], seed: int, options: TrainOptions) -> ImageTraining:
        """Begin ``options.steps`` minibatches of SGD from ``arrays`` on the samples ``share``.

        ``seed`` fixes the order of the samples and the dropout. Raises ``BadInput`` for an empty share, no steps, or
        arrays of another model. Starting again, or evaluating, ends a training that was not finished.
        """
        if not len(share) or options.steps < 1 or options.batch_size < 1:
            got = f"{len(share)} samples, {options.steps} steps of {options.batch_size}"
            raise BadInput("training", got, "at least one of each")
        self._load(arrays)
        self._net.train()
        steps = minibatches(share, options.steps, options.batch_size, np.random.default_rng(seed))
        return ImageTraining(self._net, self._descend(steps, options), seed)

    def train(self, arrays: NamedArrays, share: NDArray[np.int64], seed: int, options: TrainOptions) -> TrainResult:
        """All of ``start``'s minibatches at once."""
        training = self.start(arrays, share, seed, options)
        training.advance(options.steps)
        return training.result()

    def evaluate(self, arrays: NamedArrays) -> tuple[float, float]:
        """Mean loss and accuracy over the whole test set."""
        self._load(arrays)
        self._net.eval()
        loss, right = 0.0, 0
        with torch.no_grad():
            for start in range(0, self.n_test, TEST_BATCH):
                x, y = self._test_x[start : start + TEST_BATCH], self._test_y[start : start + TEST_BATCH]
                scores = self._net(self._scaled(x))
                loss += float(nn.functional.cross_entropy(scores, y, reduction="sum"))
                right += int((scores.argmax(1) == y).sum())
        return loss / self.n_test, right / self.n_test

    def _fresh(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self._build(self._shape)

    def _scaled(self, x: Tensor) -> Tensor:
        return (x.to(torch.float32) - self._mean) / self._sd

    def _load(self, arrays: NamedArrays) -> None:
        own = self._net.state_dict()
        if set(arrays) != set(own):
            got = f"arrays called {_few(list(arrays))}"
            raise BadInput("model arrays", got, f"this model's {len(own)}: {_few(list(own))}")
        for name, tensor in own.items():
            array = np.asarray(arrays[name])
            if array.shape != tuple(tensor.shape):
                raise BadInput("model arrays", f"{name} of shape {array.shape}", f"shape {tuple(tensor.shape)}")
            # An average of integer buffers (batch norm's step counter) is no integer any more.
            tensor.copy_(torch.tensor(array if tensor.is_floating_point() else np.rint(array)))

    def _descend(self, steps: Iterator[NDArray[np.int64]], options: TrainOptions) -> Iterator[tuple[float, float]]:
        """Plain SGD with momentum, as ``torch.optim.SGD`` does it; gives each minibatch's loss and accuracy.

        Written out, because the first optimiser of a process imports torch's compiler, which takes as long as torch
        itself. FedProx (Li et al. 2020, eq. 2) adds ``mu / 2 * |w - w_start|^2`` to the loss, here as its gradient.
        """
        weights = list(self._net.parameters())
        starts = [w.detach().clone() for w in weights]
        speeds = [torch.zeros_like(w) for w in weights]
        for chosen in steps:
            index = torch.from_numpy(chosen)
            x, y = self._scaled(self._train_x[index]), self._train_y[index]
            scores = self._net(x)
            loss = nn.functional.cross_entropy(scores, y)
            gradients = torch.autograd.grad(loss, weights)
            with torch.no_grad():
                for w, start, speed, gradient in zip(weights, starts, speeds, gradients, strict=True):
                    speed.mul_(options.momentum).add_(gradient)
                    if options.proximal_mu > 0:
                        speed.add_(w - start, alpha=options.proximal_mu)
                    w.add_(speed, alpha=-options.learning_rate)
            yield loss.item(), float((scores.argmax(1) == y).float().mean())


class ImageTraining:
    """A ``fedge.interfaces.Training`` of an ``ImageTask``."""

    def __init__(self, net: nn.Module, descent: Iterator[tuple[float, float]], seed: int) -> None:
        self._net = net
        self._descent = descent
        self._seen: list[tuple[float, float]] = []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._random = torch.random.get_rng_state()

    def advance(self, steps: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.random.set_rng_state(self._random)
            self._seen.extend(itertools.islice(self._descent, steps))
            self._random = torch.random.get_rng_state()

    def result(self) -> TrainResult:
        loss, accuracy = np.mean(self._seen, axis=0)
        return TrainResult(_arrays(self._net), float(loss), float(accuracy))


def minibatches(
    share: NDArray[np.int64], steps: int, batch_size: int, rng: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """``steps`` minibatches of exactly ``batch_size`` indices: the share over and over, newly shuffled each time.

    All are full, also across the end of an epoch and for a share smaller than one minibatch (whose samples then come
    more than once), because a board's cost is counted in whole minibatches and batch norm needs more than one sample.
    """
    epochs = -(-steps * batch_size // len(share))
    order = np.concatenate([rng.permutation(share) for _ in range(epochs)])
    return iter(order[: steps * batch_size].reshape(steps, batch_size))


def _arrays(net: nn.Module) -> NamedArrays:
    return {name: tensor.detach().numpy().copy() for name, tensor in net.state_dict().items()}


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
