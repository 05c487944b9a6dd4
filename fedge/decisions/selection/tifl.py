"""``select_tifl``: each round from one tier of equally fast clients, weak tiers more often.

Symbols: tiers 0 (fastest) to T - 1, A_t = mean accuracy of tier t's clients, c_t = its credits, p_t = its probability,
I = option ``interval``, r = the round.

References:
    Chai et al., "TiFL: A tier-based federated learning system", HPDC 2020.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedge.decisions.selection.basic_selectors import sample_without_replacement
from fedge.decisions.selection.client_figures import (
    clamp_count,
    estimate_duration_s,
    estimate_samples,
    sort_by_name,
    valid_accuracy,
)
from fedge.decisions.selection.selector_options import complete_options
from fedge.types import ClientStatus, Floats, SelectionContext, SelectionResult


@dataclass(frozen=True, slots=True, eq=False)
class TierState:
    """State of the T tiers, each of shape (T,): credits, probability, and accuracy at the last update."""

    credits: Floats
    probability: Floats
    accuracy: Floats


def select_tifl(clients: Sequence[ClientStatus], call: SelectionContext, rng: np.random.Generator) -> SelectionResult:
    """Select ``call.count`` clients uniformly from one tier, which is drawn with p_t among those with credits left.

    A tier's selection costs it one credit. Every I rounds, if the last tier's A_t has not risen since, the p_t change
    (``change_probabilities``). If no tier has a credit left, all credits are restored: the paper leaves this case open,
    and its loop would not end.
    """
    named, size = sort_by_name(clients), clamp_count(call.count, clients)
    if not named:
        return SelectionResult((), dict(call.memory))
    numbers = complete_options("tifl", call.options)
    groups = build_tiers(named, min(int(numbers["tiers"]), len(named) // size))
    seen = _load_tiers(call.memory, len(groups), numbers["credits"])
    if (call.round - 1) % int(numbers["interval"]) == 0:
        seen = update_tiers(seen, compute_accuracies(groups), call.memory.get("tier"))
    weights = seen.probability * (seen.credits > 0.0)
    tier = int(
        sample_without_replacement(weights if weights.any() else (seen.credits > 0.0).astype(np.float64), 1, rng)[0]
    )
    rows = sample_without_replacement(np.ones(len(groups[tier])), size, rng)
    memory = {**call.memory, **_dump_tiers(seen, tier)}
    return SelectionResult(tuple(sorted(groups[tier][row].board for row in rows)), memory)


def build_tiers(clients: Sequence[ClientStatus], count: int) -> list[list[ClientStatus]]:
    """Return ``count`` tiers of nearly equal size, fastest first; a client of unknown duration counts as slowest."""

    def slowness(client: ClientStatus) -> tuple[float, str]:
        seconds = estimate_duration_s(client)
        return (math.inf if seconds is None else seconds, client.board)

    ranks = np.array_split(np.arange(len(clients)), count)
    ordered = sorted(clients, key=slowness)
    return [[ordered[rank] for rank in ranks_of_tier] for ranks_of_tier in ranks]


def compute_accuracies(groups: Sequence[Sequence[ClientStatus]]) -> Floats:
    """Return A_t, shape (T,): mean accuracy weighted by samples; 0 for a tier without any known accuracy.

    The paper tests the model on every tier's own data; here it is the accuracy that clients last reported of training.
    """
    return np.array([_compute_accuracy(group) for group in groups])


def update_tiers(seen: TierState, accuracy: Floats, last: float | None) -> TierState:
    """Return the tiers with new accuracies; ``last`` is the tier selected last, None before the first round."""
    stalled = last is not None and last < len(accuracy) and accuracy[int(last)] <= seen.accuracy[int(last)]
    probability = change_probabilities(accuracy, seen.credits) if stalled else seen.probability
    return TierState(seen.credits, probability, accuracy)


def change_probabilities(accuracy: Floats, credits_left: Floats) -> Floats:
    """Return the paper's ChangeProbs: of n tiers with credits, the i-th lowest accuracy gets 2 (n - i) / (n (n - 1)).

    So the tier of highest accuracy gets nothing until the next change, unless it is the only one.
    """
    able = np.flatnonzero(credits_left > 0.0)
    n = len(able)
    probability = np.zeros(len(accuracy))
    ascending = able[np.argsort(accuracy[able], kind="stable")]
    probability[ascending] = 1.0 if n <= 1 else (n - np.arange(1, n + 1)) / (n * (n - 1) / 2)
    return probability


def _compute_accuracy(group: Sequence[ClientStatus]) -> float:
    told = [(samples, valid_accuracy(c)) for samples, c in zip(estimate_samples(group), group, strict=True)]
    weighed = [(samples, accuracy) for samples, accuracy in told if accuracy is not None]
    total = sum(samples for samples, _ in weighed)
    return float(sum(samples * accuracy for samples, accuracy in weighed) / total) if weighed else 0.0


def _load_tiers(memory: Mapping[str, float], count: int, full: float) -> TierState:
    def column(name: str, missing: float) -> Floats:
        return np.array([memory.get(f"{name}:{tier}", missing) for tier in range(count)])

    left = column("credits", full)
    if not (left > 0.0).any():
        left = np.full(count, full)
    return TierState(left, column("probability", 1.0 / count), column("accuracy", 0.0))


def _dump_tiers(seen: TierState, tier: int) -> dict[str, float]:
    memory = {"tier": float(tier)}
    for t, left in enumerate(seen.credits):
        memory[f"credits:{t}"] = float(left) - (t == tier)
        memory[f"probability:{t}"] = float(seen.probability[t])
        memory[f"accuracy:{t}"] = float(seen.accuracy[t])
    return memory
