"""Search the deadline of a round that weighs the fleet's time and energy, or spends least energy.

Symbols: D deadline, idle power p_i, a_i(D) the least energy above idling of board i's points within reach at D. A round
until D costs E(D) = sum_i [p_i D + a_i(D)]. D_maxn and E_maxn are length and energy of the expected round at MAXN.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedge.decisions.limits import LIMIT_ROUNDING
from fedge.decisions.planning.cost_sweep import build_cost_steps, find_least
from fedge.decisions.planning.front_columns import FrontColumns

TINY_J = 1e-12


@dataclass(frozen=True, slots=True)
class DeadlinePlan:
    """A deadline in seconds, the energy of the round until then in joules, and whether every limit is kept."""

    deadline_s: float
    energy_j: float
    feasible: bool


def find_weighted_deadline(
    columns: FrontColumns, time_weight: float, cap_s: float = np.inf, resting_w: float = 0.0
) -> DeadlinePlan:
    """Return the D of least w D / D_maxn + (1 - w) E(D) / E_maxn, the shorter of equally good ones.

    It is never below the time that the slowest board's fastest point is expected to need, because a shorter deadline
    would not shorten the round. Exact: between two points' ends E only grows, by idling. O(m), and a sort of few
    points.

    Args:
        columns: The boards' fronts.
        time_weight: The weight w, 0 to 1; 0 gives least energy.
        cap_s: Latest deadline, in seconds. If the fastest points end later, the plan is not feasible.
        resting_w: Idle power of boards that take no part, in watts; E(D) includes ``resting_w`` D.
    """
    steps = build_cost_steps(columns, columns.above_idle_j, float(columns.idle_w.sum()) + resting_w, cap_s)
    price = (1.0 - time_weight) / max(columns.maxn_energy_j, TINY_J)
    deadline_s, _ = find_least(steps.add_prices(price, time_weight / columns.maxn_round_s))
    kept = steps.floor_s <= cap_s * (1.0 + LIMIT_ROUNDING)
    return DeadlinePlan(deadline_s, steps.evaluate(deadline_s), kept)


def is_deadline_safe(columns: FrontColumns, deadline_s: float) -> bool:
    """Return whether every board has a point that ends by ``deadline_s`` with the margin."""
    return bool((columns.safe_ends_s[columns.offsets[:-1]] <= deadline_s * (1.0 + LIMIT_ROUNDING)).all())
