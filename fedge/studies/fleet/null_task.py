"""A training task with a single parameter that is never trained: steps have a cost but no effect."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedge.types import NamedArrays, TrainOptions, TrainResult

NULL_SAMPLES = 10_000


class NullTask:
    """The task; its ``NULL_SAMPLES`` samples only determine the boards' shares."""

    buffers: tuple[str, ...] = ()

    def __init__(self, data_dir: Path | None = None, *, download: bool = False) -> None:
        self.labels: NDArray[np.int64] = np.zeros(NULL_SAMPLES, dtype=np.int64)

    def initial_arrays(self, seed: int) -> NamedArrays:
        return {"nothing": np.zeros(1, dtype=np.float32)}

    def start(self, arrays: NamedArrays, share: NDArray[np.int64], seed: int, options: TrainOptions) -> NullTraining:
        return NullTraining(arrays)

    def evaluate(self, arrays: NamedArrays) -> tuple[float, float]:
        return 0.0, 0.0


@dataclass(frozen=True, slots=True, eq=False)
class NullTraining:
    """Training without effect."""

    arrays: NamedArrays

    def advance(self, steps: int) -> None:
        """Do nothing for ``steps`` steps."""

    def result(self) -> TrainResult:
        return TrainResult(self.arrays, 0.0, 0.0)


NULL_TASK = f"{__name__}:{NullTask.__name__}"
