"""An emulated board's memory: what a step of it truly needs, and a training that runs out of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from fedge.errors import BadInput, OutOfMemory
from fedge.experiment import WIDTHS, Board, Experiment
from fedge.interfaces import LearningTask, Training
from fedge.rounds.fitting import Means, means_of
from fedge.seeds import generator
from fedge.types import DeviceSpec, Scale, TrainResult


def board_means(
    experiment: Experiment, board: Board, device: DeviceSpec, task: Callable[[], LearningTask]
) -> Means | None:
    """What a board has to train with; None where nobody knows the network of what it works on."""
    widths = experiment.workload.memory.widths or WIDTHS
    return means_of(experiment, board.entry, device, lambda: why_not_narrow(task(), widths) == "")


def why_not_narrow(task: LearningTask, widths: Iterable[float] = WIDTHS) -> str:
    """Why a task's network cannot have one of ``widths``; empty where it can have all."""
    shapes = getattr(task, "narrow_shapes", None)
    if shapes is None:
        return "a task of your own without narrow_shapes(width)"
    try:
        for width in widths:
            if width < 1.0:
                shapes(width)
    except BadInput as error:
        return str(error)
    return ""


def true_peak_mb(means: Means, scale: Scale, board: str, seed: int) -> float:
    """What a step truly takes on this board: the model's need times a factor of its own, as far off as the model is."""
    own = means.need(means.asked)
    off = own.memory_sd_log * generator(seed, board, "memory").standard_normal()
    return means.need(scale).memory_mb * math.exp(off)


class Guarded:
    """A ``fedge.interfaces.Training`` whose first minibatch runs out of memory where it needs more than there is."""

    def __init__(self, training: Training, peak_mb: float, limit_mb: float) -> None:
        self._training, self._peak_mb, self._limit_mb = training, peak_mb, limit_mb

    def advance(self, steps: int) -> None:
        if self._peak_mb > self._limit_mb:
            raise OutOfMemory(f"out of memory: a minibatch needed more than {self._limit_mb:,.0f} MB")
        self._training.advance(steps)

    def result(self) -> TrainResult:
        return self._training.result()
