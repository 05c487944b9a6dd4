"""Search strategies that find a mode and a batch size with few trials, their names and their inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.registry import load_named
from fedge.serving.trial_search import ServingProblem, TrialSearch
from fedge.types import Modes

DEFAULT_STRATEGY = "fedge"
STRATEGIES = {
    "gmd": "fedge.serving.strategies.grid_walk:GradientSearch",
    "bs": "fedge.serving.strategies.grid_walk:BinarySearch",
    "random": "fedge.serving.strategies.baseline_search:RandomSearch",
    "nn": "fedge.serving.strategies.baseline_search:NetworkSearch",
    "als": "fedge.serving.strategies.active_learning:ActiveNetworks",
    "oracle": "fedge.serving.strategies.baseline_search:ExhaustiveSearch",
    "fedge": "fedge.serving.strategies.expected_improvement:build_fedge_strategy",
}
"""Name -> ``module:factory``; each is called with a ``SearchContext``."""


@dataclass(frozen=True, slots=True, eq=False)
class SearchContext:
    """The choices and the prior knowledge that a strategy is created with.

    Attributes:
        modes: The n modes.
        batch_sizes: Inference batch sizes; empty without inference.
        train: Prior knowledge of the training job; None without training.
        infer: Prior knowledge of the inference job, one per batch size.
        reuse: Whether trials of one problem are reused for later ones with the same jobs and board.
    """

    modes: Modes
    batch_sizes: tuple[int, ...] = ()
    train: PriorKnowledge | None = None
    infer: tuple[PriorKnowledge, ...] = ()
    reuse: bool = False
    seed: int = 0


class SearchStrategy(Protocol):
    """Finds choices for a sequence of problems of one pair of jobs on one board."""

    def search(self, problem: ServingProblem) -> TrialSearch:
        """Return the search for one problem, which is run by a caller that measures its trials."""
        ...


def strategy_for(name: str, context: SearchContext, where: str = "strategy") -> SearchStrategy:
    """Create a strategy by name.

    Raises:
        UnknownName: If the name is unknown.
        BadInput: If the user's class cannot be loaded.
    """
    strategy: SearchStrategy = load_named(where, name, STRATEGIES)(context)
    return strategy
