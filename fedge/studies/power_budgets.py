"""The power budgets of a study, and what choices within them cost against the table's own optimum.

Symbols: B a budget in watts; a problem is a budget at which the table has a mode of at most B; t* the least measured
step time of such a mode; t, p what the table says of the mode that was chosen.
Penalty = t / t* - 1, excess = max(0, p - B).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedge.types import Floats

PAPER_BUDGETS_W = tuple(float(watts) for watts in range(17, 51))
"""PowerTrain's budgets for AGX Orin (section 6 of the paper)."""
MAX_BUDGETS = 34
"""As many as the paper has."""


@dataclass(frozen=True, slots=True)
class BudgetCost:
    """What choosing cost over ``problems`` problems: penalties and shares in percent, excess in watts.

    ``verify_modes`` are further measurements per problem. All but ``problems`` are None where there is no problem.
    """

    problems: int
    penalty_median: float | None = None
    penalty_mean: float | None = None
    excess_w: float | None = None
    over_limit: float | None = None
    over_limit_1w: float | None = None
    verify_modes: float | None = None


def default_budgets(power_w: Floats, largest_w: float | None) -> tuple[float, ...]:
    """17, 18 ... 50 W for a board that reaches 50 W by its table or its catalogue's ``largest_w``.

    Else from the smallest whole watt that a mode of the table keeps to the largest that one exceeds, in steps of as
    many whole watts as make at most ``MAX_BUDGETS`` of them.
    """
    if max(float(power_w.max()), largest_w or 0.0) >= PAPER_BUDGETS_W[-1]:
        return PAPER_BUDGETS_W
    low, high = math.ceil(power_w.min()), math.floor(power_w.max())
    step = max(1, math.ceil((high - low + 1) / MAX_BUDGETS))
    return tuple(float(watts) for watts in range(low, max(low, high) + 1, step))


def filter_solvable_budgets(power_w: Floats, budgets_w: Sequence[float]) -> tuple[float, ...]:
    """The budgets that at least one of the modes keeps."""
    least_w = float(power_w.min()) if len(power_w) else math.inf
    return tuple(budget_w for budget_w in budgets_w if least_w <= budget_w)


def score_budget_choices(
    step_s: Floats, power_w: Floats, budgets_w: Sequence[float], chosen: Sequence[int], extra: Sequence[int]
) -> BudgetCost:
    """Score the chosen rows, one per solvable budget; ``extra`` are the further measurements that each took.

    ``step_s`` and ``power_w`` are what the table says of the modes that could be chosen.
    """
    if not budgets_w:
        return BudgetCost(0)
    budgets = np.array(budgets_w)
    best_s = np.array([step_s[power_w <= budget_w].min() for budget_w in budgets_w])
    rows = np.asarray(chosen, dtype=np.intp)
    penalty = 100.0 * (step_s[rows] / best_s - 1.0)
    over_w = power_w[rows] - budgets
    return BudgetCost(
        len(budgets_w),
        penalty_median=float(np.median(penalty)),
        penalty_mean=float(penalty.mean()),
        excess_w=float(np.maximum(over_w, 0.0).mean()),
        over_limit=100.0 * float((over_w > 0.0).mean()),
        over_limit_1w=100.0 * float((over_w > 1.0).mean()),
        verify_modes=float(np.mean(extra)),
    )
