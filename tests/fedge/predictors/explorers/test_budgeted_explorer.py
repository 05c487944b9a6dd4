"""A bounded explorer never proposes more than its budget allows, and charges what profiling really cost."""

from __future__ import annotations

import math

import numpy as np
import pytest
from contracts.boards import grid
from contracts.explorer import ExplorerContract, Make, known, measured
from hypothesis import given
from hypothesis import strategies as st

from fedge.modes import stack_modes
from fedge.predictors.explorers.budgeted_explorer import (
    MIN_FURTHER_MODES,
    BudgetedExplorer,
    compute_profiling_j,
    compute_profiling_s,
)
from fedge.predictors.explorers.simple_explorers import RandomExplorer
from fedge.types import Floats, Measurement, Modes, PowerMode

CANDIDATES = Modes(grid().knobs[::7])


def gpu_ghz(modes: Modes) -> Floats:
    """A made-up cost: 0.2 to 1.2 a mode."""
    costs: Floats = modes.knobs[:, 2] / 1000.0
    return costs


def total(modes: Modes) -> float:
    return float(gpu_ghz(modes).sum())


class TestBoundedWithoutEnd(ExplorerContract):
    @pytest.fixture
    def make(self) -> Make:
        return lambda candidates, knowledge: BudgetedExplorer(RandomExplorer(candidates, knowledge), gpu_ghz, math.inf)


class InOrder:
    """Proposes the candidates as they stand; counts what it was asked for."""

    def __init__(self, modes: Modes) -> None:
        self.left = list(modes)
        self.asked: list[int] = []
        self.told: list[Measurement] = []

    def ask(self, count: int) -> Modes:
        self.asked.append(count)
        now, self.left = self.left[:count], self.left[count:]
        return stack_modes(now)

    def tell(self, measurements: list[Measurement]) -> None:
        self.told += measurements


@given(st.floats(0.0, 30.0), st.lists(st.integers(0, 12), min_size=1, max_size=5), st.booleans())
def test_what_is_proposed_never_costs_more_than_the_budget(budget, counts, tell):
    explorer = BudgetedExplorer(RandomExplorer(CANDIDATES, known()), gpu_ghz, budget)
    proposed: list[PowerMode] = []
    for count in counts:
        asked = explorer.ask(count)
        proposed += list(asked)
        assert len(asked) <= count
        if tell:
            explorer.tell(measured(asked))

    assert len({*proposed}) == len(proposed)
    assert total(stack_modes(proposed)) <= budget + 1e-9
    assert explorer.budget_left == pytest.approx(budget - total(stack_modes(proposed)))


@given(st.integers(1, 15), st.integers(0, 99))
def test_a_budget_for_everything_changes_nothing(count, seed):
    bounded, free = (
        BudgetedExplorer(RandomExplorer(CANDIDATES, known(seed)), gpu_ghz, 1e6),
        RandomExplorer(CANDIDATES, known(seed)),
    )
    assert list(bounded.ask(count)) == list(free.ask(count))


def modes_costing(*costs: float) -> Modes:
    return stack_modes([PowerMode(i + 1, 1000.0, 1000.0 * cost, 2000.0) for i, cost in enumerate(costs)])


def costs_of(modes: Modes) -> list[float]:
    return [round(cost, 6) for cost in gpu_ghz(modes).tolist()]


def test_a_mode_that_was_too_dear_comes_first_once_the_real_costs_leave_room():
    explorer = BudgetedExplorer(InOrder(modes_costing(3.0, 2.0, 0.5)), gpu_ghz, 4.0, charge=lambda m: m.step_s)
    first = explorer.ask(2)
    assert costs_of(first) == [3.0, 0.5]

    explorer.tell([Measurement(mode, 40, 0.25, 20.0) for mode in first])

    assert explorer.budget_left == pytest.approx(3.5)
    assert costs_of(explorer.ask(1)) == [2.0]


def test_a_real_cost_above_the_expected_one_leaves_less():
    explorer = BudgetedExplorer(InOrder(modes_costing(1.0, 1.0, 1.0)), gpu_ghz, 3.0, charge=lambda m: m.step_s)
    explorer.tell([Measurement(mode, 40, 2.5, 20.0) for mode in explorer.ask(1)])

    assert explorer.budget_left == pytest.approx(0.5)
    assert len(explorer.ask(1)) == 0


def test_a_mode_told_twice_is_charged_once_and_one_not_proposed_not_at_all():
    inner = InOrder(modes_costing(1.0, 2.0))
    explorer = BudgetedExplorer(inner, gpu_ghz, 3.0)
    once = [Measurement(mode, 40, 0.1, 20.0) for mode in explorer.ask(1)]
    foreign = Measurement(PowerMode(9, 900.0, 900.0, 900.0), 40, 0.1, 20.0)

    explorer.tell([*once, foreign])
    explorer.tell(once)

    assert explorer.budget_left == pytest.approx(2.0)
    assert inner.told == [*once, foreign, *once]


def test_a_kept_mode_that_was_told_meanwhile_is_not_proposed():
    modes = modes_costing(5.0, 1.0)
    explorer = BudgetedExplorer(InOrder(modes), gpu_ghz, 6.0)
    explorer.budget = 2.0
    assert costs_of(explorer.ask(2)) == [1.0]
    explorer.tell([Measurement(modes[0], 40, 0.1, 20.0)])
    explorer.budget = 100.0
    assert len(explorer.ask(2)) == 0


def test_when_nothing_fits_it_looks_a_little_further_and_then_gives_up():
    one_further = BudgetedExplorer(InOrder(modes_costing(*[9.0] * MIN_FURTHER_MODES, 1.0)), gpu_ghz, 2.0)
    assert costs_of(one_further.ask(1)) == [1.0]

    endless = InOrder(modes_costing(*[9.0] * 10 * MIN_FURTHER_MODES))
    assert len(BudgetedExplorer(endless, gpu_ghz, 2.0).ask(1)) == 0
    assert endless.asked == [1, MIN_FURTHER_MODES]


class OneAtATime(InOrder):
    """Would learn from each mode before it proposes the next."""

    def ask(self, count: int) -> Modes:
        return super().ask(min(count, 1))


def test_an_explorer_of_one_mode_at_a_time_is_asked_for_as_many_further_ones():
    far = OneAtATime(modes_costing(*[9.0] * (MIN_FURTHER_MODES - 1), 1.0, 1.0))

    assert costs_of(BudgetedExplorer(far, gpu_ghz, 2.5).ask(2)) == [1.0]
    assert len(far.left) == 1


def test_profiling_costs_forty_minibatches_and_the_settling_before_them():
    np.testing.assert_allclose(compute_profiling_s(np.array([0.1, 0.5])), [7.0, 23.0])
    np.testing.assert_allclose(compute_profiling_s(np.array([0.1]), steps=10, settle_s=1.0), [2.0])
    np.testing.assert_allclose(compute_profiling_j(np.array([0.1]), np.array([30.0])), [210.0])
