"""``select_by_plan``: the clients of most expected gain per price of the round's time and energy, from their fronts.

The rule is fedge's own. Symbols: R = the round, N = clients offered, K = ``call.count``, B_i = samples, F_i = last
loss, w_i = rounds since client i was last selected, g_i = its gain, D and E = length and joules of a round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from fedge.decisions.limits import compute_margin_z
from fedge.decisions.planning import BUDGET_POLICY, is_pinned
from fedge.decisions.planning.fleet_planners import CONFIDENCE, TIME_WEIGHT
from fedge.decisions.planning.front_columns import FrontColumns, build_columns
from fedge.decisions.planning.gain_search import GainPlan, find_best_gain
from fedge.decisions.selection.basic_selectors import round_randomly
from fedge.decisions.selection.client_figures import clamp_count, estimate_samples, sort_by_name, valid_loss
from fedge.decisions.selection.selector_options import complete_options
from fedge.types import ClientStatus, Floats, Front, SelectionContext, SelectionResult

MIN_GAIN = 1e-9
"""Lower bound of a client's gain, so that some client is always selected."""

MAX_BUDGET_PASSES = 8
"""Searches at most for the boards that keep the round's share of the budget together with those at rest."""


def select_by_plan(
    clients: Sequence[ClientStatus], call: SelectionContext, rng: np.random.Generator
) -> SelectionResult:
    """Select at most ``call.count`` clients: those of the plan of most gain, and some without a front.

    ``unknown_share`` of the clients, rounded at random, and as many as known clients cannot fill, are clients without a
    usable front, the longest waiting first. Under ``energy-budget`` the result holds the plan's deadline.
    """
    named, size = sort_by_name(clients), clamp_count(call.count, clients)
    numbers = complete_options("planner", call.options)
    z = compute_margin_z(call.limits.get("confidence", CONFIDENCE), "policy.confidence")
    columns = build_columns({c.board: restrict_front(c.front, call.policy) for c in named if c.front is not None}, z)
    known = frozenset(columns.boards)
    unknown = sorted((c for c in named if c.board not in known), key=lambda c: (c.last_round or 0, c.board))
    wanted = max(round_randomly(size * numbers["unknown_share"], rng), size - len(known))
    trying = [client.board for client in unknown[: min(size, wanted)]]
    if len(trying) == size:
        return SelectionResult(tuple(sorted(trying)))
    worth = dict(
        zip((c.board for c in named), compute_gains(named, call, numbers["uncertainty"]).tolist(), strict=True)
    )
    gain = np.array([worth[board] for board in columns.boards], dtype=np.float64)
    time_price, energy_price = compute_prices(columns, call)
    allowed_j = compute_allowance_j(call.limits) if call.policy == BUDGET_POLICY else None
    count = size - len(trying)
    search = partial(find_best_gain, columns, gain, count=count, time_price=time_price, energy_price=energy_price)
    plan = search(allowance_j=allowed_j)
    # Boards at rest use the allowance too. The fewer are chosen, the more rest, so that this takes some passes.
    for _ in range(MAX_BUDGET_PASSES if call.policy == BUDGET_POLICY else 0):
        whole_j = compute_allowance_j(call.limits)
        resting_j = _resting_energy_j(columns, call.limits, plan)
        if whole_j is None or plan.energy_j + resting_j <= whole_j or len(plan.boards) == 1:
            break
        allowed_j = max(0.0, whole_j - resting_j)
        plan = search(allowance_j=allowed_j)
    deadline_s = plan.deadline_s if call.policy == BUDGET_POLICY else None
    why = "" if allowed_j is None or plan.energy_j <= allowed_j else _describe_overrun(plan.energy_j, allowed_j)
    return SelectionResult(tuple(sorted([*trying, *plan.boards])), deadline_s=deadline_s, why=why)


def compute_gains(clients: Sequence[ClientStatus], call: SelectionContext, uncertainty: float) -> Floats:
    """Return g_i = B_i F_i / max(B F) + a (w_i K / N)^2, shape (n,), with a = ``uncertainty``.

    The first term is Oort's statistical utility with the mean loss; an unknown F_i is the highest known. The second
    plays the part of Oort's temporal uncertainty, but grows without bound, in units of the N / K rounds of one turn for
    all: it is small for clients selected often, and decisive in the end, so that a client of p times the price of
    others waits about sqrt(p / a) turns.

    References:
        Lai et al., "Oort: Efficient federated learning via guided participant selection", OSDI 2021.
    """
    losses = [valid_loss(client) for client in clients]
    highest = max((loss for loss in losses if loss is not None), default=1.0)
    with np.errstate(over="ignore"):
        useful = estimate_samples(clients) * np.array([highest if loss is None else loss for loss in losses])
    useful = np.minimum(useful, np.finfo(np.float64).max)
    waited = np.array([max(0, call.round - (client.last_round or 0)) for client in clients], dtype=np.float64)
    turns = waited * clamp_count(call.count, clients) / max(1, len(clients))
    gain: Floats = useful / max(useful.max(initial=0.0), 1e-12) + uncertainty * turns**2
    return np.maximum(gain, MIN_GAIN)


def compute_prices(columns: FrontColumns, call: SelectionContext) -> tuple[float, float]:
    """Return the prices of a second and a joule: w / D_maxn and (1 - w) / E_maxn, or 0 and 1 under ``energy-budget``.

    D_maxn and E_maxn are of a round of all the clients at MAXN; w is the policy's ``time_weight``.
    """
    if call.policy == BUDGET_POLICY:
        return 0.0, 1.0
    weight = call.limits.get("time_weight", TIME_WEIGHT)
    energy_price = (1.0 - weight) / max(columns.maxn_energy_j, 1e-12)
    return weight / columns.maxn_round_s, energy_price


def compute_allowance_j(limits: Mapping[str, float]) -> float | None:
    """Return the joules for this round, the rest of the budget divided by ``rounds_left``; None without a budget."""
    if "budget_j" not in limits:
        return None
    return max(0.0, limits["budget_j"] - limits.get("spent_j", 0.0)) / max(1.0, limits.get("rounds_left", 1.0))


def _resting_energy_j(columns: FrontColumns, limits: Mapping[str, float], plan: GainPlan) -> float:
    """Return the joules of the boards at rest in the planned round: those not chosen, and those not offered."""
    chosen = set(plan.boards)
    idle_w: float = sum(
        w for board, w in zip(columns.boards, columns.idle_w.tolist(), strict=True) if board not in chosen
    )
    return (idle_w + limits.get("resting_w", 0.0)) * plan.deadline_s


def restrict_front(front: Front, policy: str) -> Front:
    """Return the front to plan with: MAXN alone if there is nothing else or the policy pins the mode."""
    if is_pinned(policy):
        return replace(front, points=(front.maxn,), idle_w=front.maxn_idle_w)
    return front if front.points else replace(front, points=(front.maxn,))


def _describe_overrun(energy_j: float, allowed_j: float) -> str:
    kept = f"No board keeps the round's {allowed_j:.0f} J of the budget"
    return f"{kept}: the one of least energy, {energy_j:.0f} J, goes alone."
