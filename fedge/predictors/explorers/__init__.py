"""Explorers, which select the modes to profile next: names and construction."""

from __future__ import annotations

from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.protocols import Explorer
from fedge.registry import load_named
from fedge.types import Modes

DEFAULT_EXPLORER = "active"
EXPLORERS = {
    "random": "fedge.predictors.explorers.simple_explorers:RandomExplorer",
    "latin": "fedge.predictors.explorers.simple_explorers:LatinExplorer",
    "spread": "fedge.predictors.explorers.simple_explorers:SpreadExplorer",
    "active": "fedge.predictors.explorers.active_explorer:ActiveExplorer",
    "front": "fedge.predictors.explorers.front_explorer:FrontExplorer",
}
"""Names and the classes they stand for; each class is constructed from candidate modes and ``PriorKnowledge``."""

METHOD_EXPLORERS = {"fedge": "active"}
"""Explorers of predictors that request the modes to profile themselves; the others take ``random``."""


def find_method_explorer(method: str) -> str:
    """Return the explorer that a predictor uses by default."""
    return METHOD_EXPLORERS.get(method, "random")


def load_explorer(name: str, candidates: Modes, knowledge: PriorKnowledge, where: str = "explorer") -> Explorer:
    """Construct an explorer by name.

    Args:
        name: A key of ``EXPLORERS`` or the user's own ``module:Class``.
        candidates: The modes to select from.
        knowledge: Prior knowledge of board and workload.
        where: The configuration field to name in errors.

    Raises:
        UnknownName: There is no such explorer.
        BadInput: The user's module or class cannot be loaded.
    """
    explorer: Explorer = load_named(where, name, EXPLORERS)(candidates, knowledge)
    return explorer
