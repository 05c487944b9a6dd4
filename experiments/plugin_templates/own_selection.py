"""A selector: it chooses the clients of a round.

An experiment uses it with ``selection: {name: "own_selection:select", count: 2}`` and ``plugins: [own_selection.py]``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedge.types import ClientStatus, SelectionContext, SelectionResult


def select(clients: Sequence[ClientStatus], call: SelectionContext, rng: np.random.Generator) -> SelectionResult:
    """Select the clients that took part least often; ties are drawn.

    Args:
        clients: The available clients and what the server knows of them.
        call: Number of clients to select, options, and the memory that the last call returned.
        rng: The only allowed source of randomness.
    """
    draws = dict(zip(sorted(one.board for one in clients), rng.permutation(len(clients)), strict=True))
    ordered = sorted(clients, key=lambda one: (one.rounds, draws[one.board]))
    return SelectionResult(tuple(sorted(one.board for one in ordered[: call.count])), why="took part least often")
