"""Explores uniformly at random, without replacement: the baseline of every published figure."""

from __future__ import annotations

from collections.abc import Sequence

from fedge.explorers.remaining import Remaining
from fedge.physics.knowledge import Knowledge
from fedge.seeds import generator
from fedge.types import Measurement, Modes


class RandomExplorer:
    """A ``fedge.interfaces.Explorer`` that proposes along one permutation of the candidates.

    The permutation depends on ``knowledge.seed`` and the number of candidates only, so the first 10 of 50 modes are the
    10 that a fresh explorer would propose.
    """

    def __init__(self, candidates: Modes, knowledge: Knowledge) -> None:
        self._remaining = Remaining(candidates)
        self._order = generator(knowledge.seed, "random explorer").permutation(len(candidates))

    def ask(self, count: int) -> Modes:
        """The next ``count`` of the permutation that are left."""
        left = set(self._remaining.rows.tolist())
        return self._remaining.propose([row for row in self._order.tolist() if row in left][: max(0, count)])

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """These modes are not proposed any more."""
        self._remaining.drop(measurements)
