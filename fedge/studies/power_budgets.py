"""The power budgets of a study, and the cost of choices within them against the table's own optimum.

Symbols: B a budget in watts; a problem is a budget at which the table has a mode of at most B; t* the least measured
step time of such a mode; t, p time and power of the chosen mode in the table.
Penalty = t / t* - 1, excess = max(0, p - B).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedge.types import Floats

PAPER_BUDGETS_W = tuple(float(watts) for watts in range(17, 51))
"""PowerTrain's budgets for AGX Orin in watts (section 6 of the paper)."""
MAX_BUDGETS = 34
"""Number of budgets at most, as many as the paper has."""


@dataclass(frozen=True, slots=True)
class BudgetCost:
    """The cost of choices over several problems; all but ``problems`` are None if there is no problem.

    Attributes:
        problems: Number of problems.
        penalty_median: Median penalty in percent.
        penalty_mean: Mean penalty in percent.
        excess_w: Mean excess in watts.
        over_limit: Share of the problems with an excess, in percent.
        over_limit_1w: Share of the problems with an excess above 1 W, in percent.
        verify_modes: Further measurements per problem.
    """

    problems: int
    penalty_median: float | None = None
    penalty_mean: float | None = None
    excess_w: float | None = None
    over_limit: float | None = None
    over_limit_1w: float | None = None
    verify_modes: float | None = None


def default_budgets(power_w: Floats, largest_w: float | None) -> tuple[float, ...]:
    """Return 17, 18 ... 50 W for a board that reaches 50 W, else a similar range over the table's own powers.

    That range goes from the least whole watt that a mode of the table keeps to the largest that one exceeds, in steps
    of as many whole watts as make at most ``MAX_BUDGETS`` of them.

    Args:
        power_w: Measured powers of the modes in watts, shape (modes,).
        largest_w: The catalogue's largest power of the board in watts, if known.
    """
    if max(float(power_w.max()), largest_w or 0.0) >= PAPER_BUDGETS_W[-1]:
        return PAPER_BUDGETS_W
    low, high = math.ceil(power_w.min()), math.floor(power_w.max())
    step = max(1, math.ceil((high - low + 1) / MAX_BUDGETS))
    return tuple(float(watts) for watts in range(low, max(low, high) + 1, step))


def filter_solvable_budgets(power_w: Floats, budgets_w: Sequence[float]) -> tuple[float, ...]:
    """Return the budgets that at least one of the modes keeps."""
    least_w = float(power_w.min()) if len(power_w) else math.inf
    return tuple(budget_w for budget_w in budgets_w if least_w <= budget_w)


def score_budget_choices(
    step_s: Floats, power_w: Floats, budgets_w: Sequence[float], chosen: Sequence[int], extra: Sequence[int]
) -> BudgetCost:
    """Score the chosen modes.

    Args:
        step_s: Measured seconds per step of the candidate modes, shape (modes,).
        power_w: Measured powers of these modes in watts, shape (modes,).
        budgets_w: Solvable budgets in watts.
        chosen: The chosen row for each budget.
        extra: Further measurements made for each budget.
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
