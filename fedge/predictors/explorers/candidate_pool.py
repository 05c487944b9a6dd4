"""The candidates that an explorer has neither proposed nor been told of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedge.modes import find_mode_index
from fedge.types import Measurement, Modes


class CandidatePool:
    """Book of the candidates; a mode that occurs twice among them counts once, at its first row."""

    def __init__(self, candidates: Modes) -> None:
        self.candidates = candidates
        self._left = np.zeros(len(candidates), dtype=np.bool_)
        self._left[np.unique(candidates.knobs, axis=0, return_index=True)[1]] = True

    @property
    def rows(self) -> NDArray[np.intp]:
        """The rows of the candidates that are left, ascending."""
        return np.flatnonzero(self._left)

    def propose(self, rows: Sequence[int] | NDArray[np.intp]) -> Modes:
        """The modes of these rows, in their order, which are left no longer."""
        chosen = np.asarray(rows, dtype=np.intp)
        self._left[chosen] = False
        return Modes(self.candidates.knobs[chosen])

    def drop(self, measurements: Sequence[Measurement]) -> None:
        """Take out what was measured; what is no candidate is passed over."""
        for measurement in measurements:
            row = find_mode_index(self.candidates, measurement.mode)
            if row is not None:
                self._left[row] = False
