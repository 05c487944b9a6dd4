"""A task for the coordinator: a model of given arrays and a loss, without data or training."""

from collections.abc import Callable
from dataclasses import dataclass

from fedge.types import NamedArrays


def _mean(arrays: NamedArrays) -> float:
    return float(arrays["w"].mean())


@dataclass(frozen=True)
class ArrayTask:
    """The model is what ``make_model`` gives for a seed, and half of the test samples are always right."""

    make_model: Callable[[int], NamedArrays]
    loss: Callable[[NamedArrays], float] = _mean
    buffers: tuple[str, ...] = ()

    def initial_arrays(self, seed: int) -> NamedArrays:
        return self.make_model(seed)

    def evaluate(self, arrays: NamedArrays) -> tuple[float, float]:
        return self.loss(arrays), 0.5
