"""The task ``none``: steps have a cost but no effect. A run of it simulates rounds and trains nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedge.types import NamedArrays, TrainOptions, TrainResult

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NULL_TASK = "none"
"""Its name in experiments."""
NULL_SAMPLES = 10_000
"""Samples that the fleet stands for by default."""


class NullTask:
    """The task.

    Args:
        samples: Samples that the fleet stands for; they determine the boards' shares, and so their steps.
    """

    buffers: tuple[str, ...] = ()

    def __init__(self, samples: int = NULL_SAMPLES) -> None:
        import numpy as np

        self.labels: NDArray[np.int64] = np.zeros(samples, dtype=np.int64)

    def initial_arrays(self, seed: int) -> NamedArrays:
        import numpy as np

        return {"nothing": np.zeros(1, dtype=np.float32)}

    def start(self, arrays: NamedArrays, share: NDArray[np.int64], seed: int, options: TrainOptions) -> NullTraining:
        return NullTraining(arrays)

    def evaluate(self, arrays: NamedArrays, share: NDArray[np.int64] | None = None) -> None:
        """There is nothing to test."""


@dataclass(frozen=True, slots=True, eq=False)
class NullTraining:
    """Training without effect."""

    arrays: NamedArrays

    def advance(self, steps: int) -> None:
        """Do nothing for ``steps`` steps."""

    def result(self) -> TrainResult:
        return TrainResult(self.arrays, math.nan, math.nan)
