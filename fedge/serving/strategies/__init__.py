"""Strategies: how a mode and a batch size are found for a problem with few trials; their names, what they are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.registry import load_named
from fedge.serving.serving_problems import ServingProblem
from fedge.serving.trial_search import TrialSearch
from fedge.types import Modes

DEFAULT_STRATEGY = "fedge"
STRATEGIES = {
    "gmd": "fedge.serving.strategies.gmd:GradientSearch",
    "bs": "fedge.serving.strategies.binary_search:BinarySearch",
    "random": "fedge.serving.strategies.baseline_search:RandomSearch",
    "nn": "fedge.serving.strategies.network_search:NetworkSearch",
    "als": "fedge.serving.strategies.active_learning:ActiveNetworks",
    "oracle": "fedge.serving.strategies.baseline_search:ExhaustiveSearch",
    "fedge": "fedge.serving.strategies.expected_improvement:build_fedge_strategy",
}
"""Name -> where it lies; each is made from ``SearchContext``."""


@dataclass(frozen=True, slots=True, eq=False)
class SearchContext:
    """What a strategy is made with: what may be chosen, and what is known of the two jobs beforehand.

    ``train`` is None where nothing is trained; ``infer`` belongs to ``batch_sizes``, empty where nothing is inferred.
    With ``reuse`` the trials of one problem serve in the next ones too: the jobs and the board stay the same.
    """

    modes: Modes
    batch_sizes: tuple[int, ...] = ()
    train: PriorKnowledge | None = None
    infer: tuple[PriorKnowledge, ...] = ()
    reuse: bool = False
    seed: int = 0


class SearchStrategy(Protocol):
    """Finds choices for the problems of one pair of jobs on one board, one problem after the other."""

    def search(self, problem: ServingProblem) -> TrialSearch:
        """The search for one problem; whoever plays it measures."""
        ...


def strategy_for(name: str, ground: SearchContext, where: str = "strategy") -> SearchStrategy:
    """A fresh strategy: one of ``STRATEGIES`` or the user's own ``module:Class``.

    Raises ``UnknownName`` or ``BadInput`` for the field ``where``.
    """
    strategy: SearchStrategy = load_named(where, name, STRATEGIES)(ground)
    return strategy
