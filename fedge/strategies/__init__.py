"""Strategies: how a mode and a batch size are found for a problem with few trials; their names, what they are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fedge.concurrency.problems import Problem
from fedge.concurrency.trial import Search
from fedge.physics.knowledge import Knowledge
from fedge.registry import load
from fedge.types import Modes

DEFAULT = "fedge"
STRATEGIES = {
    "gmd": "fedge.strategies.gmd:Gmd",
    "bs": "fedge.strategies.binary:Binary",
    "random": "fedge.strategies.drawn:Drawn",
    "nn": "fedge.strategies.networks:Networks",
    "als": "fedge.strategies.active:ActiveNetworks",
    "oracle": "fedge.strategies.oracle:Oracle",
    "fedge": "fedge.strategies.expecting:expecting",
}
"""Name -> where it lies; each is made from ``Ground``."""


@dataclass(frozen=True, slots=True, eq=False)
class Ground:
    """What a strategy is made with: what may be chosen, and what is known of the two jobs beforehand.

    ``train`` is None where nothing is trained; ``infer`` belongs to ``batch_sizes``, empty where nothing is inferred.
    With ``reuse`` the trials of one problem serve in the next ones too: the jobs and the board stay the same.
    """

    modes: Modes
    batch_sizes: tuple[int, ...] = ()
    train: Knowledge | None = None
    infer: tuple[Knowledge, ...] = ()
    reuse: bool = False
    seed: int = 0


class Strategy(Protocol):
    """Finds choices for the problems of one pair of jobs on one board, one problem after the other."""

    def search(self, problem: Problem) -> Search:
        """The search for one problem; whoever plays it measures."""
        ...


def strategy_for(name: str, ground: Ground, where: str = "strategy") -> Strategy:
    """A fresh strategy: one of ``STRATEGIES`` or the user's own ``module:Class``.

    Raises ``UnknownName`` or ``BadInput`` for the field ``where``.
    """
    strategy: Strategy = load(where, name, STRATEGIES)(ground)
    return strategy
