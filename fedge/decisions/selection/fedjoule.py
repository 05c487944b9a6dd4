"""``select_fedjoule``: the clients of most value within the round's energy, then the shortest such round.

Like FedJoule only: of it no program and no details are published, so that the two levels are our reading of its
abstract. Its values are approximate Shapley values; here they are Oort's utility, an unseen client's the highest. Its
budget is the clients' energy; here it is the fleet's, as of the policy ``energy-budget``.

Symbols: v_i = value of client i, a_i(T) = its least joules above idling among the modes that end by T, x_i = 1 if it is
chosen, I = idle power of the fleet, B = joules that the round may take, K = ``call.count``, e = option ``tolerance``.

    V(T) = max sum v_i x_i   with   sum x_i <= K,  sum a_i(T) x_i <= B - I T        (an integer programme, by HiGHS)
    the chosen round: the least T with V(T) >= (1 - e) max over T of V(T)

References:
    FedJoule: energy-aware client selection for federated learning, arXiv 2506.10413.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedge.decisions.limits import compute_margin_z
from fedge.decisions.planning import is_pinned
from fedge.decisions.planning.fleet_planners import CONFIDENCE
from fedge.decisions.planning.front_columns import FrontColumns, build_columns, running_minimum
from fedge.decisions.selection.client_figures import clamp_count, sort_by_name
from fedge.decisions.selection.planner_selector import compute_allowance_j, compute_gains, restrict_front
from fedge.decisions.selection.selector_options import complete_options
from fedge.types import ClientStatus, Floats, SelectionContext, SelectionResult


def select_fedjoule(
    clients: Sequence[ClientStatus], call: SelectionContext, rng: np.random.Generator
) -> SelectionResult:
    """Select the clients of the chosen round, with its T as the deadline unless the policy pins the mode.

    Clients without a usable front come first, the longest waiting ones. If no client keeps the budget, the one whose
    round takes the least energy goes alone.
    """
    named, size = sort_by_name(clients), clamp_count(call.count, clients)
    tolerance = complete_options("fedjoule-like", call.options)["tolerance"]
    z = compute_margin_z(call.limits.get("confidence", CONFIDENCE), "policy.confidence")
    columns = build_columns({c.board: restrict_front(c.front, call.policy) for c in named if c.front is not None}, z)
    known = frozenset(columns.boards)
    unknown = sorted((c for c in named if c.board not in known), key=lambda c: (c.last_round or 0, c.board))
    trying = [client.board for client in unknown[:size]]
    if len(trying) == size:
        return SelectionResult(tuple(sorted(trying)))
    values = dict(zip((c.board for c in named), compute_gains(named, call, 0.0).tolist(), strict=True))
    worth = np.array([values[board] for board in columns.boards])
    limit_j, idle_w = compute_allowance_j(call.limits), float(columns.idle_w.sum()) + call.limits.get("resting_w", 0.0)
    allowed_j, why = np.inf if limit_j is None else limit_j, ""
    found = find_shortest_round(
        columns, worth, count=size - len(trying), allowed_j=allowed_j, idle_w=idle_w, tolerance=tolerance
    )
    if found is None:
        point = int(np.argmin(columns.above_idle_j + idle_w * columns.safe_ends_s))
        alone = np.searchsorted(columns.offsets, [point], side="right") - 1
        found = float(columns.safe_ends_s[point]), alone
        why = f"No board keeps the round's {allowed_j:.0f} J: the one of least energy goes alone."
    deadline_s, chosen = found
    return SelectionResult(
        tuple(sorted([*trying, *(columns.boards[i] for i in chosen)])),
        deadline_s=None if is_pinned(call.policy) else deadline_s,
        why=why,
    )


def find_shortest_round(
    columns: FrontColumns, values: Floats, *, count: int, allowed_j: float, idle_w: float, tolerance: float
) -> tuple[float, NDArray[np.intp]] | None:
    """Return T and the chosen clients, ascending, or None if no client keeps the budget.

    The bound of ``_bound_value`` leaves few integer programmes of the hundreds of T, the ends of all modes.

    Args:
        columns: The clients' fronts.
        values: v_i, positive, shape (n,).
        count: K.
        allowed_j: B; infinite without a budget.
        idle_w: I.
        tolerance: e.
    """
    lowest, offsets = running_minimum(columns.above_idle_j, columns.offsets), columns.offsets[:-1]
    tried: list[tuple[float, float, Floats, float]] = []
    for end_s in np.unique(columns.safe_ends_s).tolist():
        reached = np.add.reduceat(columns.safe_ends_s <= end_s, offsets, dtype=np.int64)
        joules = np.where(reached > 0, lowest[offsets + np.maximum(reached - 1, 0)], np.inf)
        left_j = allowed_j - idle_w * end_s
        tried.append((_bound_value(values, joules, count, left_j), end_s, joules, left_j))
    most = 0.0
    for bound, _, joules, left_j in sorted(tried, key=lambda one: -one[0]):
        if bound <= most * (1.0 + 1e-9):
            break
        most = max(most, float(values[_choose_clients(values, joules, count, left_j)].sum()))
    least = (1.0 - tolerance) * most * (1.0 - 1e-9)
    for bound, end_s, joules, left_j in tried if most > 0.0 else ():
        chosen = _choose_clients(values, joules, count, left_j) if bound >= least else np.zeros(0, np.intp)
        if len(chosen) and values[chosen].sum() >= least:
            return end_s, chosen
    return None


def _list_near(joules: Floats, left_j: float) -> NDArray[np.intp]:
    return np.flatnonzero(np.isfinite(joules) & (joules <= left_j) & (left_j > 0.0))


def _bound_value(values: Floats, joules: Floats, count: int, left_j: float) -> float:
    """Return a bound on V(T): the best K clients, or those of most value per joule until the energy is exceeded."""
    near = _list_near(joules, left_j)
    order = near[np.argsort(-values[near] / np.maximum(joules[near], 1e-9), kind="stable")]
    begun_j = np.cumsum(joules[order]) - joules[order]
    return min(float(np.sort(values[near])[-count:].sum()), float(values[order[begun_j <= left_j]].sum()))


def _choose_clients(values: Floats, joules: Floats, count: int, left_j: float) -> NDArray[np.intp]:
    """Return the clients of V(T), ascending."""
    near = _list_near(joules, left_j)
    best = np.sort(near[np.argsort(-values[near], kind="stable")[:count]])
    if joules[best].sum() <= left_j:
        return best
    from scipy.optimize import Bounds, LinearConstraint, milp

    rows = np.stack([np.ones(len(near)), joules[near] / left_j])
    limits, bounds = LinearConstraint(rows, ub=[count, 1.0]), Bounds(0.0, 1.0)
    found = milp(
        -values[near],
        integrality=np.ones(len(near)),
        bounds=bounds,
        constraints=limits,
        options={"mip_rel_gap": 0.0},
    )
    return near[np.round(found.x).astype(bool)] if found.x is not None else near[:0]
