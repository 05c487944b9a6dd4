"""``select_fedzero``: Oort's selection where energy is in excess, without those that took part too often. Like FedZero.

Symbols: p_i = the rounds that client i took part in, w = their mean over the clients offered, a = option ``alpha``.

A client is offered while the signal of its zone is at most ``threshold`` times its mean; the round waits for one
(``server/state/fleet_availability.py``). FedZero has the excess watts of every zone, with forecasts, and a plan of
batches within them, which are left out.

References:
    Wiesner et al., "FedZero: Leveraging renewable excess energy in federated learning", e-Energy 2024,
    arXiv 2305.15092; the release as in the authors' program, the block of all clients of a round as in the paper.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from fedge.decisions.selection.client_figures import sort_by_name
from fedge.decisions.selection.oort import select_by_utility
from fedge.decisions.selection.selector_options import complete_options
from fedge.types import ClientStatus, Floats, SelectionContext, SelectionResult

EXCESS_SELECTOR = "fedzero-like"
_BLOCKED = "blocked:"


def select_fedzero(
    clients: Sequence[ClientStatus], call: SelectionContext, rng: np.random.Generator
) -> SelectionResult:
    """Select as ``select_oort`` does among the clients that are not blocked, or among all if every one is.

    A client that takes part is blocked until it is released, which is drawn before every later round.
    """
    numbers = {**complete_options("oort", {}), **complete_options(EXCESS_SELECTOR, call.options)}
    named = sort_by_name(clients)
    chances = compute_release_chances(named, numbers["alpha"])
    blocked = {name for name in call.memory if name.startswith(_BLOCKED)}
    blocked -= {
        _BLOCKED + client.board
        for client, chance in zip(named, chances.tolist(), strict=True)
        if _BLOCKED + client.board in blocked and rng.random() < chance
    }
    free = [client for client in named if _BLOCKED + client.board not in blocked]
    found = select_by_utility(free or named, call, numbers, rng)
    blocked |= {_BLOCKED + board for board in found.boards}
    return dataclasses.replace(found, memory={**found.memory, **dict.fromkeys(sorted(blocked), 1.0)})


def compute_release_chances(clients: Sequence[ClientStatus], alpha: float) -> Floats:
    """Return min(a / (p_i - w), 1), and 1 for a client that took part in no more rounds than the mean, shape (n,)."""
    rounds = np.array([client.rounds for client in clients], dtype=np.float64)
    above = rounds - rounds.mean() if len(rounds) else rounds
    chances: Floats = np.where(above > 0.0, np.minimum(alpha / np.where(above > 0.0, above, 1.0), 1.0), 1.0)
    return chances
