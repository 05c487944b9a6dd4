"""Explorers, which say what to profile next: the name table and its look-up."""

from __future__ import annotations

from fedge.interfaces import Explorer
from fedge.physics.knowledge import Knowledge
from fedge.registry import load
from fedge.types import Modes

DEFAULT = "active"
EXPLORERS = {
    "random": "fedge.explorers.random:RandomExplorer",
    "latin": "fedge.explorers.latin:LatinExplorer",
    "spread": "fedge.explorers.spread:SpreadExplorer",
    "active": "fedge.explorers.active:ActiveExplorer",
}
"""Name -> where it lies; each is made from the modes it may choose among and ``Knowledge``."""


def explorer_for(name: str, candidates: Modes, knowledge: Knowledge, where: str = "explorer") -> Explorer:
    """A fresh explorer: one of ``EXPLORERS`` or the user's own ``module:Class``.

    Raises ``UnknownName`` or ``BadInput`` for the field ``where``.
    """
    explorer: Explorer = load(where, name, EXPLORERS)(candidates, knowledge)
    return explorer
