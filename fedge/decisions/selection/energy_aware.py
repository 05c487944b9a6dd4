"""``energy-aware``: skip empty and hot boards, keep a power budget, and prefer full, cheap, rarely selected boards.

The rule is fedge's own. Symbols: c_i = board i's charge (1 on mains), E_i = its joules for the round, n_i = the rounds
it took part in, P_i = its watts in the budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedge.decisions.planning import is_pinned
from fedge.decisions.selection.client_figures import (
    clamp_count,
    fill_unknown,
    finite_or_none,
    sort_by_name,
    valid_front,
)
from fedge.decisions.selection.selector_options import complete_options
from fedge.types import ClientStatus, Floats, Front, FrontPoint, SelectionContext, SelectionResult


def select_energy_aware(
    clients: Sequence[ClientStatus], call: SelectionContext, rng: np.random.Generator
) -> SelectionResult:
    """Select up to ``call.count`` fit boards in the order of ``compute_costs``, as long as they keep the power budget.

    A board is unfit below ``charge_floor``, above ``temperature_c``, or if its battery holds less than the round needs.
    If no board is fit, the one with most charge (then the coolest) goes alone; if each alone exceeds the power budget,
    the one of least power. ``SelectionResult.why`` says so.
    """
    numbers, named = complete_options("energy-aware", call.options), sort_by_name(clients)
    fit = [client for client in named if find_unfit_reason(client, call, numbers) is None]
    if not named:
        return SelectionResult(())
    if not fit:
        reasons = "; ".join(sorted({str(find_unfit_reason(client, call, numbers)) for client in named}))
        return SelectionResult(
            (min(named, key=_charge_order).board,), why=f"No board is fit ({reasons}): the fullest goes alone."
        )
    order = [fit[row] for row in np.argsort(compute_costs(fit, call, numbers), kind="stable")]
    limit_w = numbers.get("power_w", call.limits.get("fleet_power_w", np.inf))
    watts = estimate_budget_w(order, call)
    rows = _take_within_limit(watts, limit_w, clamp_count(call.count, clients))
    spared = f"{len(named) - len(fit)} of {len(named)} boards are spared." if len(fit) < len(named) else ""
    if not rows:
        rows = [int(np.argmin(watts))]
        spared = f"No board keeps {limit_w:g} W by itself: the one of least power goes alone. {spared}".strip()
    return SelectionResult(tuple(sorted(order[row].board for row in rows)), why=spared)


def find_unfit_reason(client: ClientStatus, call: SelectionContext, numbers: Mapping[str, float]) -> str | None:
    """Return why a board is skipped, or None if it is fit. An unknown figure never makes a board unfit."""
    charge, temperature_c, charge_j = (
        finite_or_none(client.charge),
        finite_or_none(client.temperature_c),
        finite_or_none(client.charge_j),
    )
    if charge is not None and charge < numbers["charge_floor"]:
        return f"below {numbers['charge_floor']:.0%} charge"
    if temperature_c is not None and temperature_c > numbers["temperature_c"]:
        return f"above {numbers['temperature_c']:g} degrees"
    joules = estimate_round_j(client, call)
    if charge_j is not None and joules is not None and charge_j < joules:
        return "less charge than the round takes"
    return None


def compute_costs(clients: Sequence[ClientStatus], call: SelectionContext, numbers: Mapping[str, float]) -> Floats:
    """Return w_c (1 - c_i) + w_e E_i / max E + w_f n_i / max n, shape (n,); an unknown E_i is the others' median."""
    charge = np.array([1.0 if (c := finite_or_none(client.charge)) is None else c for client in clients])
    joules = fill_unknown([estimate_round_j(client, call) for client in clients], least=1e-9)
    rounds = np.array([client.rounds for client in clients], dtype=np.float64)
    cost: Floats = (
        numbers["charge_weight"] * (1.0 - charge)
        + numbers["energy_weight"] * joules / joules.max()
        + numbers["fairness_weight"] * rounds / max(1.0, rounds.max())
    )
    return cost


def estimate_round_j(client: ClientStatus, call: SelectionContext) -> float | None:
    """Return E_i, the joules of the round's work: at MAXN if the policy pins the mode, else in the cheapest mode."""
    front = valid_front(client)
    return None if front is None else min(point.work_j for point in _list_points(front, call))


def estimate_budget_w(clients: Sequence[ClientStatus], call: SelectionContext) -> Floats:
    """Return P_i in watts, shape (n,): the most that a board may draw while it works.

    That is the highest power on its front, as a rule MAXN's, or the policy's ``power_w`` as far as the board can keep
    it. Under a policy with ``fleet_power_w`` it is the least power on its front, because the plan then keeps the sum.
    An unknown power is the highest known one, or infinite if none is known.
    """
    watts = [None if (front := valid_front(client)) is None else _compute_front_w(front, call) for client in clients]
    highest = max((w for w in watts if w is not None), default=np.inf)
    return np.array([highest if w is None else w for w in watts], dtype=np.float64)


def _compute_front_w(front: Front, call: SelectionContext) -> float:
    watts = [point.work_j / point.work_s for point in _list_points(front, call)]
    if "fleet_power_w" in call.limits:
        return min(watts)
    return max(min(watts), min(max(watts), call.limits.get("power_w", np.inf)))


def _list_points(front: Front, call: SelectionContext) -> tuple[FrontPoint, ...]:
    pinned = is_pinned(call.policy)
    return (front.maxn,) if pinned else (front.maxn, *front.points)


def _take_within_limit(watts: Floats, limit_w: float, size: int) -> list[int]:
    """Return at most ``size`` rows, in their order, each if the sum stays within ``limit_w``."""
    rows: list[int] = []
    drawn_w = 0.0
    for row, row_w in enumerate(watts):
        if len(rows) < size and drawn_w + row_w <= limit_w:
            rows.append(row)
            drawn_w += float(row_w)
    return rows


def _charge_order(client: ClientStatus) -> tuple[float, float, str]:
    charge, temperature_c = finite_or_none(client.charge), finite_or_none(client.temperature_c)
    return (-1.0 if charge is None else -charge, 0.0 if temperature_c is None else temperature_c, client.board)
