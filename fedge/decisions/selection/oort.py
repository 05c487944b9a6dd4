"""``select_oort``: guided selection by statistical and system utility.

Symbols: K = ``call.count``, R = the round, B_i = client i's samples, F_i = its last mean loss, L_i = its last round,
t_i = its last duration, T = the preferred duration, e = the share of K that explores.

References:
    Lai et al., "Oort: Efficient federated learning via guided participant selection", OSDI 2021, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.decisions.selection.basic_selectors import round_randomly, sample_without_replacement
from fedge.decisions.selection.client_figures import (
    clamp_count,
    estimate_durations_s,
    estimate_samples,
    sort_by_name,
    valid_loss,
)
from fedge.decisions.selection.selector_options import complete_options
from fedge.types import ClientStatus, Floats, SelectionContext, SelectionResult

UNCERTAINTY = 0.1
"""The paper's factor of the temporal uncertainty."""


@dataclass(frozen=True, slots=True)
class Pacer:
    """The percentile of the clients' durations that gives T, and the utility of the windows that moves it."""

    percentile: float
    rounds: float = 0.0
    utility: float = 0.0
    """Sum over the ``rounds`` of the present window."""
    previous: float = 0.0
    """Sum over the window before; 0 before the first is full."""


def select_oort(clients: Sequence[ClientStatus], call: SelectionContext, rng: np.random.Generator) -> SelectionResult:
    """Select unexplored clients for a share e of the round, in proportion to 1 / t_i, and the rest by utility.

    e = max(least, start decay^(R - 1)), by default 0.9 to 0.2 with a decay of 0.98. If e K is not whole it is rounded
    at random, so that a K of one explores too. If one kind runs out, the other fills up. A client that took part and
    never reported a loss has the lowest utility.
    """
    return select_by_utility(clients, call, complete_options("oort", call.options), rng)


def select_by_utility(
    clients: Sequence[ClientStatus], call: SelectionContext, numbers: Mapping[str, float], rng: np.random.Generator
) -> SelectionResult:
    """Select as ``select_oort`` does, with ``numbers`` for its options."""
    named, size = sort_by_name(clients), clamp_count(call.count, clients)
    pacer = update_pacer(_load_pacer(call.memory, numbers), _compute_reward(named, call.round - 1), numbers)
    wanted = round_randomly(size * exploration_share(call.round, numbers), rng)
    asked = np.array([client.last_round is not None for client in named], dtype=np.bool_)
    known, unknown = np.flatnonzero(asked), np.flatnonzero(~asked)
    exploring = min(len(unknown), max(wanted, size - len(known)))
    speed = 1.0 / estimate_durations_s(named)
    taken = [int(row) for row in unknown[sample_without_replacement(speed[unknown], exploring, rng)]]
    if exploring < size:
        utility = compute_utilities(named, call.round, pacer.percentile, numbers)[known]
        taken += [int(row) for row in known[_draw_exploited(utility, size - exploring, numbers["cut_off"], rng)]]
    return SelectionResult(tuple(sorted(named[row].board for row in taken)), _dump_pacer(pacer))


def exploration_share(round_: int, numbers: Mapping[str, float]) -> float:
    """Return e, the share of a round's clients that are taken from those not yet explored."""
    decayed = numbers["exploration"] * numbers["exploration_decay"] ** max(0, round_ - 1)
    return max(numbers["exploration_least"], decayed)


def compute_utilities(
    clients: Sequence[ClientStatus], round_: int, percentile: float, numbers: Mapping[str, float]
) -> Floats:
    """Return (U_i + sqrt(0.1 ln R / L_i)) (T / t_i)^alpha [t_i > T], shape (n,).

    U_i is the statistical utility, clipped at its 95th percentile (option ``clip``) and scaled to 0..1 over those that
    took part, as in the authors' program, so that both terms have similar size.

    Args:
        clients: The clients offered.
        round_: The round R, from 1.
        percentile: Percentile of the clients' durations that is the preferred duration T, 0 to 100.
        numbers: The selector's options; ``slow_penalty`` is alpha.
    """
    asked = np.array([client.last_round is not None for client in clients], dtype=np.bool_)
    raw = compute_statistical_utility(clients)
    seen = raw[asked] if asked.any() else raw
    low, high = seen.min(), np.quantile(seen, numbers["clip"])
    scaled = (np.clip(raw, low, high) - low) / (high - low) if high > low else np.ones_like(raw)
    last = np.array([max(1, client.last_round or 1) for client in clients], dtype=np.float64)
    utility = scaled + np.sqrt(UNCERTAINTY * np.log(max(1, round_)) / last)
    seconds = estimate_durations_s(clients)
    preferred_s = np.percentile(seconds, percentile)
    penalised: Floats = utility * np.minimum(1.0, preferred_s / seconds) ** numbers["slow_penalty"]
    return penalised


def compute_statistical_utility(clients: Sequence[ClientStatus]) -> Floats:
    """Return B_i F_i, shape (n,): the statistical utility with the mean loss, since single losses are not known.

    The paper's root of the mean squared loss is at least the mean, and equal if all samples have the same loss.
    """
    losses = [valid_loss(client) for client in clients]
    raw: Floats = estimate_samples(clients) * np.array([0.0 if loss is None else loss for loss in losses])
    return raw


def update_pacer(pacer: Pacer, reward: float | None, numbers: Mapping[str, float]) -> Pacer:
    """Return the pacer after a round of mean utility ``reward``, or the same if that is None (unknown).

    If a window is full and brought less than the one before, T is relaxed by ``pacer_percent`` percentiles.
    """
    if reward is None:
        return pacer
    rounds, utility = pacer.rounds + 1.0, pacer.utility + reward
    if rounds < numbers["pacer_window"]:
        return Pacer(pacer.percentile, rounds, utility, pacer.previous)
    relaxed = numbers["pacer_percent"] if utility < pacer.previous else 0.0
    return Pacer(min(100.0, pacer.percentile + relaxed), 0.0, 0.0, utility)


def _compute_reward(clients: Sequence[ClientStatus], round_: int) -> float | None:
    """Return the mean statistical utility of the clients offered now that took part in ``round_``."""
    mine = [row for row, c in enumerate(clients) if c.last_round == round_ and valid_loss(c) is not None]
    return float(compute_statistical_utility(clients)[mine].mean()) if mine else None


def _draw_exploited(utility: Floats, size: int, cut_off: float, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw rows in proportion to utility from those that reach ``cut_off`` of the ``size``-th highest."""
    threshold = cut_off * np.sort(utility)[-size]
    admitted = np.flatnonzero(utility >= threshold)
    return admitted[sample_without_replacement(utility[admitted], size, rng)]


def _load_pacer(memory: Mapping[str, float], numbers: Mapping[str, float]) -> Pacer:
    return Pacer(
        memory.get("percentile", numbers["preferred_percentile"]),
        memory.get("window_rounds", 0.0),
        memory.get("window_utility", 0.0),
        memory.get("previous_utility", 0.0),
    )


def _dump_pacer(pacer: Pacer) -> dict[str, float]:
    return {
        "percentile": pacer.percentile,
        "window_rounds": pacer.rounds,
        "window_utility": pacer.utility,
        "previous_utility": pacer.previous,
    }
