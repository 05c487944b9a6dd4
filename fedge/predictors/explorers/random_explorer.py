"""Explores uniformly at random, without replacement: the baseline of every published figure."""

from __future__ import annotations

from collections.abc import Sequence

from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors.explorers.candidate_pool import CandidatePool
from fedge.seeds import make_generator
from fedge.types import Measurement, Modes


class RandomExplorer:
    """A ``fedge.protocols.Explorer`` that proposes along one permutation of the candidates.

    The permutation depends on ``knowledge.seed`` and the number of candidates only, so the first 10 of 50 modes are the
    10 that a fresh explorer would propose.
    """

    def __init__(self, candidates: Modes, knowledge: PriorKnowledge) -> None:
        self._remaining = CandidatePool(candidates)
        self._order = make_generator(knowledge.seed, "random explorer").permutation(len(candidates))

    def ask(self, count: int) -> Modes:
        """The next ``count`` of the permutation that are left."""
        left = set(self._remaining.rows.tolist())
        return self._remaining.propose([row for row in self._order.tolist() if row in left][: max(0, count)])

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """These modes are not proposed any more."""
        self._remaining.drop(measurements)
