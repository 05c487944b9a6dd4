"""Explorers, which say what to profile next: the name table and its look-up."""

from __future__ import annotations

from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.protocols import Explorer
from fedge.registry import load_named
from fedge.types import Modes

DEFAULT_EXPLORER = "active"
EXPLORERS = {
    "random": "fedge.predictors.explorers.random_explorer:RandomExplorer",
    "latin": "fedge.predictors.explorers.latin_explorer:LatinExplorer",
    "spread": "fedge.predictors.explorers.spread_explorer:SpreadExplorer",
    "active": "fedge.predictors.explorers.active_explorer:ActiveExplorer",
}
"""Name -> where it lies; each is made from the modes it may choose among and ``PriorKnowledge``."""


def load_explorer(name: str, candidates: Modes, knowledge: PriorKnowledge, where: str = "explorer") -> Explorer:
    """A fresh explorer: one of ``EXPLORERS`` or the user's own ``module:Class``.

    Raises ``UnknownName`` or ``BadInput`` for the field ``where``.
    """
    explorer: Explorer = load_named(where, name, EXPLORERS)(candidates, knowledge)
    return explorer
