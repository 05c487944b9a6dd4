"""Pool of candidate modes that an explorer has neither proposed nor received measurements of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedge.modes import find_mode_index
from fedge.types import Measurement, Modes


class CandidatePool:
    """The remaining candidates; duplicates count once, at their first row."""

    def __init__(self, candidates: Modes) -> None:
        self.candidates = candidates
        self._left = np.zeros(len(candidates), dtype=np.bool_)
        self._left[np.unique(candidates.knobs, axis=0, return_index=True)[1]] = True

    @property
    def rows(self) -> NDArray[np.intp]:
        """Return the rows of the remaining candidates, ascending."""
        return np.flatnonzero(self._left)

    def propose(self, rows: Sequence[int] | NDArray[np.intp]) -> Modes:
        """Remove rows from the pool and return their modes in the given order."""
        chosen = np.asarray(rows, dtype=np.intp)
        self._left[chosen] = False
        return Modes(self.candidates.knobs[chosen])

    def drop(self, measurements: Sequence[Measurement]) -> None:
        """Remove measured modes from the pool; modes that are not candidates are ignored."""
        for measurement in measurements:
            row = find_mode_index(self.candidates, measurement.mode)
            if row is not None:
                self._left[row] = False
