"""Explores space-fillingly: always the mode that lies farthest from everything proposed or measured so far.

Greedy k-centre (Gonzalez 1985) in the logarithms of the four knobs: at most twice the covering radius of the best set.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors.explorers.candidate_pool import CandidatePool
from fedge.types import Floats, Measurement, Modes, PowerMode


class SpreadExplorer:
    """A ``fedge.protocols.Explorer`` that starts with the candidate nearest to ``knowledge.maxn``.

    The top mode is the one that every board is judged against, and the quickest to measure. Once something was told,
    the start is what was told. Of equally far candidates the first row is taken; nothing is random, so that the first
    10 of 50 modes are the 10 that a fresh explorer would propose, whatever the seed.
    """

    def __init__(self, candidates: Modes, knowledge: PriorKnowledge) -> None:
        self._remaining = CandidatePool(candidates)
        self._logs: Floats = np.log(candidates.knobs)
        self._maxn = knowledge.maxn
        self._distance: Floats = np.full(len(candidates), np.inf)
        """Squared distance of each candidate to the nearest mode proposed or told."""

    def ask(self, count: int) -> Modes:
        """The next ``count`` farthest candidates, each counted as measured for the ones after it."""
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
        """Keep away from these modes, also from those that are no candidates."""
        self._remaining.drop(measurements)
        for measurement in measurements:
            self._update_distance(_log_knobs(measurement.mode))

    def _update_distance(self, log_knobs: Floats) -> None:
        self._distance = np.minimum(self._distance, np.square(self._logs - log_knobs).sum(axis=1))


def _log_knobs(mode: PowerMode) -> Floats:
    return np.log(np.array([mode.cores, mode.cpu_mhz, mode.gpu_mhz, mode.mem_mhz], dtype=np.float64))
