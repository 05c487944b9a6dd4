"""Space-filling explorer: the next mode is the one farthest from all proposed and measured modes.

Greedy k-centre in the logarithms of the four knobs: its covering radius is at most twice that of the best set.

References:
    Gonzalez, Clustering to Minimize the Maximum Intercluster Distance (1985).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors.explorers.candidate_pool import CandidatePool
from fedge.types import Floats, Measurement, Modes, PowerMode


class SpreadExplorer:
    """A ``fedge.protocols.Explorer`` that starts with the candidate nearest to ``knowledge.maxn``.

    The top mode is the reference of every comparison and the fastest to measure. After measurements were passed to it,
    the explorer starts from those. Ties go to the first row and nothing is random, so the first 10 of 50 modes are
    those that a new explorer would propose as 10, whatever the seed.
    """

    def __init__(self, candidates: Modes, knowledge: PriorKnowledge) -> None:
        self._remaining = CandidatePool(candidates)
        self._logs: Floats = np.log(candidates.knobs)
        self._maxn = knowledge.maxn
        self._distance: Floats = np.full(len(candidates), np.inf)
        """Squared distance of each candidate to the nearest proposed or measured mode."""

    def ask(self, count: int) -> Modes:
        """Propose the next ``count`` farthest candidates, each treated as measured for the following ones."""
        rows: list[int] = []
        left = self._remaining.rows
        for _ in range(min(max(0, count), len(left))):
            if np.isinf(self._distance[left]).all():
                nearest = int(np.argmin(np.square(self._logs[left] - _log_knobs(self._maxn)).sum(axis=1)))
            else:
                nearest = int(np.argmax(self._distance[left]))
            rows.append(int(left[nearest]))
            self._update_distance(self._logs[rows[-1]])
            left = np.delete(left, nearest)
        return self._remaining.propose(rows)

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """Keep away from these modes, whether or not they are candidates."""
        self._remaining.drop(measurements)
        for measurement in measurements:
            self._update_distance(_log_knobs(measurement.mode))

    def _update_distance(self, log_knobs: Floats) -> None:
        self._distance = np.minimum(self._distance, np.square(self._logs - log_knobs).sum(axis=1))


def _log_knobs(mode: PowerMode) -> Floats:
    return np.log(np.array([mode.cores, mode.cpu_mhz, mode.gpu_mhz, mode.mem_mhz], dtype=np.float64))
