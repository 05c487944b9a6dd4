"""Selectors that draw clients or take turns: ``all``, ``random``, ``round-robin`` and ``power-of-choice``.

``power-of-choice`` selects, of candidates drawn by their samples, those of highest loss (Cho et al., AISTATS 2022).
Symbols: m = ``call.count``, d = option ``candidates``, p_k = client k's share of all samples, F_k = its loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedge.decisions.selection.client_figures import clamp_count, estimate_samples, sort_by_name, valid_loss
from fedge.decisions.selection.selector_options import complete_options
from fedge.types import ClientStatus, Floats, SelectionContext, SelectionResult


def sample_without_replacement(weights: Floats, size: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw ``size`` different rows (all, if there are fewer), each in proportion to its weight among the rest.

    Implemented as an exponential race: row i arrives at an exponential time of rate w_i, and the first arrivals are
    drawn.

    Args:
        weights: Weights of at least 0, shape (n,); rows of weight 0 come last, in random order.
        size: Number of rows.
        rng: Source of randomness.

    References:
        Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006.
    """
    race = rng.exponential(size=len(weights))
    with np.errstate(divide="ignore", over="ignore"):
        arrival = np.where(weights > 0.0, race / weights, np.inf)
    return np.lexsort((race, arrival))[:size]


def round_randomly(value: float, rng: np.random.Generator) -> int:
    """Round ``value`` down or up at random so that the mean is ``value``."""
    return int(np.floor(value + rng.random()))


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


CANDIDATES_PER_CLIENT = 2
"""Default d / m: a larger value favours high losses more, 1 is sampling by size."""


def select_power_of_choice(
    clients: Sequence[ClientStatus], call: SelectionContext, rng: np.random.Generator
) -> SelectionResult:
    """Select the m clients of highest F_k among d candidates, drawn without replacement with probabilities p_k.

    d is at least m and at most the number of clients. F_k is the loss that the client last reported (the paper's
    variant rpow-d), so that no extra evaluation is needed; a client that never reported one counts as infinite. Of
    equal losses the candidate drawn first is selected.
    """
    named, size = sort_by_name(clients), clamp_count(call.count, clients)
    d = complete_options("power-of-choice", call.options).get("candidates", CANDIDATES_PER_CLIENT * size)
    candidates = [named[row] for row in sample_without_replacement(estimate_samples(named), max(size, int(d)), rng)]
    highest = sorted(candidates, key=_loss_or_infinity, reverse=True)[:size]
    return SelectionResult(tuple(sorted(client.board for client in highest)))


def _loss_or_infinity(client: ClientStatus) -> float:
    loss = valid_loss(client)
    return math.inf if loss is None else loss
