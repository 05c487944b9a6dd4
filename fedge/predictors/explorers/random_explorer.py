"""Uniform random explorer without replacement: the baseline of the published results."""

from __future__ import annotations

from collections.abc import Sequence

from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors.explorers.candidate_pool import CandidatePool
from fedge.seeds import make_generator
from fedge.types import Measurement, Modes


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
