"""Explorers without a model: random, Latin hypercube and space-filling, and the pool of candidates of every explorer.

Latin hypercube: as many strata per knob as requested modes, and one mode in each. Symbols: k values of a knob among the
candidates, n requested modes. Stratum i of a knob reaches from i k / n to (i + 1) k / n along its ordered values, so
that each value has the same share of the modes whatever the clocks are.
Space-filling: greedy k-centre in the logarithms of the four knobs, whose covering radius is at most twice that of the
best set.

References:
    McKay, Beckman and Conover, A Comparison of Three Methods for Selecting Values of Input Variables (1979).
    Gonzalez, Clustering to Minimize the Maximum Intercluster Distance (1985).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedge.modes import find_mode_index
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.seeds import make_generator
from fedge.types import Floats, Measurement, Modes, PowerMode


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


class RandomExplorer:
    """A ``fedge.protocols.Explorer`` that follows one permutation of the candidates.

    The permutation depends only on ``knowledge.seed`` and the number of candidates, so the first 10 of 50 modes are
    those that a new explorer would propose as 10.
    """

    def __init__(self, candidates: Modes, knowledge: PriorKnowledge) -> None:
        self._remaining = CandidatePool(candidates)
        self._order = make_generator(knowledge.seed, "random explorer").permutation(len(candidates))

    def ask(self, count: int) -> Modes:
        """Propose the next ``count`` remaining modes of the permutation."""
        left = set(self._remaining.rows.tolist())
        return self._remaining.propose([row for row in self._order.tolist() if row in left][: max(0, count)])

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """Do not propose these modes any more."""
        self._remaining.drop(measurements)


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
