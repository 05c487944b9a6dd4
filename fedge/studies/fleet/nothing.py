"""A learning task of one number that nobody learns: every minibatch is only priced."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedge.types import NamedArrays, TrainOptions, TrainResult

SAMPLES = 10_000


class Nothing:
    """The task; its ``SAMPLES`` samples only fix the boards' shares."""

    buffers: tuple[str, ...] = ()

    def __init__(self, data_dir: Path | None = None, *, download: bool = False) -> None:
        self.labels: NDArray[np.int64] = np.zeros(SAMPLES, dtype=np.int64)

    def initial_arrays(self, seed: int) -> NamedArrays:
        return {"nothing": np.zeros(1, dtype=np.float32)}

    def start(self, arrays: NamedArrays, share: NDArray[np.int64], seed: int, options: TrainOptions) -> Idle:
        return Idle(arrays)

    def evaluate(self, arrays: NamedArrays) -> tuple[float, float]:
        return 0.0, 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Idle:
    """Training that does nothing."""

    arrays: NamedArrays

    def advance(self, steps: int) -> None:
        """Nothing, ``steps`` times."""

    def result(self) -> TrainResult:
        return TrainResult(self.arrays, 0.0, 0.0)


TASK = f"{__name__}:{Nothing.__name__}"
