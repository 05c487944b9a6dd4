"""The best split of a round over two modes, against trying every pair and every split."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedge.decisions.mode_mix import find_best_split, least_energy_per_step

FIGURES = st.floats(0.1, 5.0).map(lambda value: round(value, 2))
TABLES = st.lists(st.tuples(FIGURES, FIGURES), min_size=1, max_size=6)


def brute(
    table: list[tuple[float, float]], steps: int, room_s: float, switch_s: float, switch_j: float
) -> float | None:
    """The least energy of every way to do ``steps`` in one mode or in two."""
    latest_s = room_s * (1 + 1e-9)
    found = [steps * e for t, e in table if steps * t <= latest_s]
    if not found:
        return None
    for (t, e), (u, f) in itertools.permutations(table, 2):
        for slow in range(1, steps):
            if slow * t + (steps - slow) * u + switch_s <= latest_s:
                found.append(slow * e + (steps - slow) * f + switch_j)
    return min(found)


@given(TABLES, st.integers(1, 9), st.floats(0.1, 30.0), st.floats(0.0, 0.5), st.floats(0.0, 0.5))
@example([(1.0, 5.0), (2.0, 3.0)], 4, 7.0, 0.0, 0.0)  # all steps but one in the slower mode
def test_no_pair_of_modes_and_no_split_needs_less(table, steps, room_s, switch_s, switch_j):
    t, e = np.array(table).T
    split = find_best_split(t, e, steps, room_s, switch_s=switch_s, switch_j=switch_j)
    least = brute(table, steps, room_s, switch_s, switch_j)

    assert (split is None) == (least is None)
    if split is not None and least is not None:
        assert split.work_j == pytest.approx(least)
        assert split.work_s <= room_s * (1 + 2e-9)


@given(TABLES, st.integers(1, 9), st.floats(0.1, 30.0))
def test_the_figures_of_a_split_are_those_of_its_parts(table, steps, room_s):
    t, e = np.array(table).T
    split = find_best_split(t, e, steps, room_s, switch_s=0.1, switch_j=0.2)
    if split is None:
        return
    change = 1 if split.steps else 0
    assert split.work_s == pytest.approx(
        split.steps * t[split.slow] + (steps - split.steps) * t[split.fast] + 0.1 * change
    )
    assert split.work_j == pytest.approx(
        split.steps * e[split.slow] + (steps - split.steps) * e[split.fast] + 0.2 * change
    )
    assert 0 <= split.steps < steps


def test_rows_that_are_not_finite_are_never_taken():
    split = find_best_split(np.array([math.nan, 1.0]), np.array([1.0, 5.0]), 3, 10.0)

    assert (split.slow, split.fast) == (1, 1)


@given(TABLES, TABLES, st.floats(0.2, 6.0))
def test_energy_per_step_of_a_mix_is_that_of_the_best_share(rows, known, allowed_s):
    t, e = np.array(rows).T
    u, f = np.array(known).T
    found = least_energy_per_step(t, e, u, f, np.array([allowed_s]))[:, 0]

    for (ti, ei), value in zip(rows, found, strict=True):
        shares = np.linspace(0.0, 1.0, 2001)
        best = min(
            (
                (shares * ei + (1 - shares) * fk)[shares * ti + (1 - shares) * uk <= allowed_s * (1 + 1e-9)].min(
                    initial=math.inf
                )
                for uk, fk in known
            ),
            default=math.inf,
        )
        assert value <= best + 1e-9
        if math.isfinite(best):
            assert value >= best - 5e-3 * max(abs(ei), *(abs(fk) for _, fk in known))


def test_a_known_mode_that_meets_the_budget_but_for_rounding_does_all_steps():
    """A slower mode of almost the same time, just beyond the rounding, is no reason to extrapolate."""
    allowed, known, other = np.array([1.0]), np.array([1.0 + 0.9e-9]), np.array([1.0 + 1.1e-9])
    found = least_energy_per_step(other, step_j=np.ones(1), known_s=known, known_j=np.full(1, 10.0), allowed_s=allowed)
    assert found == pytest.approx(10.0)
