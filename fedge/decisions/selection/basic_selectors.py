"""``all``: every client that is there takes part in every round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedge.decisions.selection.client_figures import clamp_count, sort_by_name
from fedge.decisions.selection.weighted_sampling import sample_without_replacement
from fedge.types import ClientStatus, SelectionContext, SelectionResult


def select_all(clients: Sequence[ClientStatus], call: SelectionContext, rng: np.random.Generator) -> SelectionResult:
    """All clients; if ``call.count`` is smaller, the first in the order of their names."""
    return SelectionResult(tuple(client.board for client in sort_by_name(clients)[: clamp_count(call.count, clients)]))


def select_uniform(
    clients: Sequence[ClientStatus], call: SelectionContext, rng: np.random.Generator
) -> SelectionResult:
    """``call.count`` clients, every set of so many as likely as any other."""
    named = sort_by_name(clients)
    rows = sample_without_replacement(np.ones(len(named)), clamp_count(call.count, clients), rng)
    return SelectionResult(tuple(sorted(named[row].board for row in rows)))


def select_round_robin(
    clients: Sequence[ClientStatus], call: SelectionContext, rng: np.random.Generator
) -> SelectionResult:
    """The ``call.count`` clients of the earliest last round, never asked before asked.

    Of those asked in the same round the one asked more rarely goes first, then by name: so nobody is ever more than one
    round ahead while everybody is there.
    """
    waiting = sorted(clients, key=lambda client: (client.last_round or 0, client.rounds, client.board))
    return SelectionResult(tuple(sorted(client.board for client in waiting[: clamp_count(call.count, clients)])))
