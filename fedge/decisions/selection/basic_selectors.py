"""Selectors that need no measurements: ``all``, ``random`` and ``round-robin``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedge.decisions.selection.client_figures import clamp_count, sort_by_name
from fedge.decisions.selection.weighted_sampling import sample_without_replacement
from fedge.types import ClientStatus, SelectionContext, SelectionResult


def select_all(clients: Sequence[ClientStatus], call: SelectionContext, rng: np.random.Generator) -> SelectionResult:
    """Select all clients; if ``call.count`` is smaller, the first by name."""
    return SelectionResult(tuple(client.board for client in sort_by_name(clients)[: clamp_count(call.count, clients)]))


def select_uniform(
    clients: Sequence[ClientStatus], call: SelectionContext, rng: np.random.Generator
) -> SelectionResult:
    """Select ``call.count`` clients uniformly at random without replacement."""
    named = sort_by_name(clients)
    rows = sample_without_replacement(np.ones(len(named)), clamp_count(call.count, clients), rng)
    return SelectionResult(tuple(sorted(named[row].board for row in rows)))


def select_round_robin(
    clients: Sequence[ClientStatus], call: SelectionContext, rng: np.random.Generator
) -> SelectionResult:
    """Select the ``call.count`` clients whose last round is the earliest, those never selected first.

    Ties go to the client with fewer rounds, then by name, so that no client is ever more than one round ahead while all
    are available.
    """
    waiting = sorted(clients, key=lambda client: (client.last_round or 0, client.rounds, client.board))
    return SelectionResult(tuple(sorted(client.board for client in waiting[: clamp_count(call.count, clients)])))
