"""Budgets are few and solvable by rule, and the cost of choices is that of a plain search."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.studies.prediction_cells import (
    MAX_BUDGETS,
    PAPER_BUDGETS_W,
    default_budgets,
    filter_solvable_budgets,
    score_budget_choices,
)

WATTS = st.lists(st.floats(0.5, 90.0), min_size=1, max_size=30)


def test_a_board_that_reaches_fifty_watts_gets_the_papers_budgets() -> None:
    assert PAPER_BUDGETS_W[0] == 17.0
    assert PAPER_BUDGETS_W[-1] == 50.0
    assert len(PAPER_BUDGETS_W) == 34
    assert default_budgets(np.array([11.0, 51.0]), None) == PAPER_BUDGETS_W
    assert default_budgets(np.array([11.0, 24.5]), 60.0) == PAPER_BUDGETS_W


def test_a_smaller_board_gets_the_whole_watts_of_its_own_range() -> None:
    assert default_budgets(np.array([2.3, 5.9, 11.1]), 15.0) == tuple(range(3, 12))
    assert default_budgets(np.array([5.2, 5.7]), None) == (6.0,)


@given(WATTS, st.none() | st.floats(1.0, 80.0))
@settings(max_examples=200)
def test_default_budgets_are_few_rising_and_one_is_solvable(watts: list[float], largest_w: float | None) -> None:
    power_w = np.array(watts)

    budgets = default_budgets(power_w, largest_w)

    assert 1 <= len(budgets) <= MAX_BUDGETS
    assert list(budgets) == sorted(set(budgets))
    assert all(budget == round(budget) for budget in budgets)
    if budgets != PAPER_BUDGETS_W:
        assert filter_solvable_budgets(power_w, budgets) == budgets


@given(st.lists(st.tuples(st.floats(0.01, 2.0), st.floats(1.0, 40.0), st.integers(0, 99)), min_size=1, max_size=12))
@settings(max_examples=100)
def test_costs_are_those_of_a_plain_search(rows: list[tuple[float, float, int]]) -> None:
    step_s, power_w = (np.array([row[i] for row in rows]) for i in (0, 1))
    budgets = filter_solvable_budgets(power_w, [5.0, 20.0, 35.0])
    chosen = [rows[i % len(rows)][2] % len(rows) for i in range(len(budgets))]
    extra = list(range(len(budgets)))

    found = score_budget_choices(step_s, power_w, budgets, chosen, extra)

    assert list(budgets) == [b for b in (5.0, 20.0, 35.0) if any(p <= b for _, p, _ in rows)]
    assert found.problems == len(budgets)
    if not budgets:
        assert found.penalty_mean is None
        return
    best = [min(t for t, p, _ in rows if p <= budget) for budget in budgets]
    penalties = [100 * (rows[i][0] / t - 1) for i, t in zip(chosen, best, strict=True)]
    over = [rows[i][1] - budget for i, budget in zip(chosen, budgets, strict=True)]
    assert found.penalty_mean == pytest.approx(sum(penalties) / len(budgets))
    assert found.penalty_median == pytest.approx(sorted(penalties)[len(budgets) // 2]) or len(budgets) % 2 == 0
    assert found.excess_w == pytest.approx(sum(max(0.0, w) for w in over) / len(budgets))
    assert found.over_limit == pytest.approx(100 * sum(w > 0 for w in over) / len(budgets))
    assert found.over_limit_1w == pytest.approx(100 * sum(w > 1 for w in over) / len(budgets))
    assert found.verify_modes == pytest.approx(sum(extra) / len(budgets))


def test_choosing_the_optimum_costs_nothing() -> None:
    step_s, power_w = np.array([3.0, 2.0, 1.0]), np.array([10.0, 20.0, 30.0])

    found = score_budget_choices(step_s, power_w, (10.0, 25.0, 40.0), [0, 1, 2], [0, 0, 0])

    assert (found.penalty_mean, found.excess_w, found.over_limit) == (0.0, 0.0, 0.0)
