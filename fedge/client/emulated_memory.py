"""The memory of an emulated board: the true need of a step, and a training that fails if it exceeds the limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from fedge.client.memory_scaling import ScalingContext, build_scaling_context
from fedge.errors import BadInput, OutOfMemory
from fedge.experiment import DEFAULT_WIDTHS, Experiment, FleetBoard
from fedge.protocols import LearningTask, Training
from fedge.seeds import make_generator
from fedge.types import DeviceSpec, TrainingScale, TrainResult


def build_board_scaling(
    experiment: Experiment, board: FleetBoard, device: DeviceSpec, task: Callable[[], LearningTask]
) -> ScalingContext | None:
    """Return a board's memory and scaling options, or None if the network of its workload is unknown."""
    widths = (*(experiment.workload.memory.widths or DEFAULT_WIDTHS), board.entry.width)
    return build_scaling_context(
        experiment, board.entry, device, lambda: explain_narrowing_failure(task(), widths) == ""
    )


def explain_narrowing_failure(task: LearningTask, widths: Iterable[float] = DEFAULT_WIDTHS) -> str:
    """Return why a task's network cannot have one of ``widths``, or an empty string if it can have all."""
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


def true_peak_mb(scaling: ScalingContext, scale: TrainingScale, board: str, seed: int) -> float:
    """Return the true peak memory of a step on this board in MB.

    It is the predicted need times a log-normal factor of the board, whose spread is the prediction's own uncertainty.
    """
    own = scaling.estimate_need(scaling.requested)
    off = own.memory_sd_log * make_generator(seed, board, "memory").standard_normal()
    return scaling.estimate_need(scale).memory_mb * math.exp(off)


class MemoryLimitedTraining:
    """A ``fedge.protocols.Training`` whose first step raises ``OutOfMemory`` if it needs more than the limit."""

    def __init__(self, training: Training, peak_mb: float, limit_mb: float, lost_s: float) -> None:
        self._training, self._peak_mb, self._limit_mb, self._lost_s = training, peak_mb, limit_mb, lost_s

    def advance(self, steps: int) -> None:
        if self._peak_mb > self._limit_mb:
            raise OutOfMemory(f"out of memory: a step needed more than {self._limit_mb:,.0f} MB", self._lost_s)
        self._training.advance(steps)

    def result(self) -> TrainResult:
        return self._training.result()
