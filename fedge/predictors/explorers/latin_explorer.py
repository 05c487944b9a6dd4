"""Latin hypercube explorer: as many strata per knob as requested modes, and one mode in each.

Symbols: k values of a knob among the candidates, n requested modes. Stratum i of a knob reaches from i k / n to (i + 1)
k / n along its ordered values, so that each value has the same share of the modes whatever the clocks are.

References:
    McKay, Beckman and Conover, A Comparison of Three Methods for Selecting Values of Input Variables (1979).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors.explorers.candidate_pool import CandidatePool
from fedge.seeds import make_generator
from fedge.types import Floats, Measurement, Modes


class LatinExplorer:
    """A ``fedge.protocols.Explorer``; every ``ask`` draws a new hypercube from ``knowledge.seed``.

    Each point is mapped to the nearest remaining candidate, with distances in shares of each knob's table; on a full
    grid of candidates that is the point itself while it is free. Designs are not nested: 10 modes are not the first 10
    of 50.
    """

    def __init__(self, candidates: Modes, knowledge: PriorKnowledge) -> None:
        self._remaining = CandidatePool(candidates)
        self._random = make_generator(knowledge.seed, "latin explorer")
        steps = [np.unique(knob, return_inverse=True) for knob in candidates.knobs.T]
        self._sizes: Floats = np.array([len(values) for values, _ in steps], dtype=np.float64)
        self._places: Floats = np.stack([place.reshape(-1) for _, place in steps], axis=1).astype(np.float64)

    def ask(self, count: int) -> Modes:
        """Propose one candidate for each point of a hypercube of ``count`` points."""
        rows: list[int] = []
        left = self._remaining.rows
        scale = np.maximum(self._sizes - 1.0, 1.0)
        for point in self._hypercube(min(max(0, count), len(left))):
            distance = np.square((self._places[left] - point) / scale).sum(axis=1)
            nearest = int(np.argmin(distance))
            rows.append(int(left[nearest]))
            left = np.delete(left, nearest)
        return self._remaining.propose(rows)

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """Do not propose these modes any more."""
        self._remaining.drop(measurements)

    def _hypercube(self, count: int) -> Floats:
        """Return indices into the knobs' tables, shape (count, 4)."""
        strata = np.stack([self._random.permutation(count) for _ in self._sizes], axis=1)
        within = self._random.random((count, len(self._sizes)))
        places: Floats = np.floor((strata + within) / max(count, 1) * self._sizes)
        return places
