"""Confidence intervals: Student's t, batch means of series that hang together, several estimates of one figure."""

from __future__ import annotations

import math

import numpy as np
import pytest
from contracts.characterised_points import series
from hypothesis import given
from hypothesis import strategies as st

from fedge.characterisation.confidence_interval import (
    MAX_BATCHES,
    Estimate,
    batch_mean_estimate,
    combine_errors,
    combine_estimates,
    count_batches,
    make_estimate,
    make_unbounded_estimate,
    mean_estimate,
    student_t,
    widen_by_scatter,
)


@pytest.mark.parametrize(
    ("freedom", "value"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (10, 2.228), (19, 2.093), (30, 2.042), (100, 1.984)],
)
def test_students_t_is_that_of_the_tables(freedom: int, value: float) -> None:
    assert student_t(freedom) == pytest.approx(value, rel=2e-3)


def test_students_t_at_other_levels_is_that_of_the_tables() -> None:
    assert student_t(19, 0.99) == pytest.approx(2.861, rel=2e-3)
    assert student_t(30, 0.999) == pytest.approx(3.646, rel=2e-3)


@given(st.floats(1.0, 50.0), st.floats(0.01, 5.0))
def test_students_t_falls_with_the_degrees_of_freedom(freedom: float, more: float) -> None:
    assert student_t(freedom + more) < student_t(freedom)


def test_a_single_figure_has_no_interval() -> None:
    one = mean_estimate([3.0])
    assert (one.value, one.is_bounded, one.n) == (3.0, False, 1)
    assert batch_mean_estimate(np.array([3.0])) == one


@given(st.integers(2, 3000))
def test_batches_are_some_and_not_too_many(n: int) -> None:
    assert 2 <= count_batches(n) <= min(n, MAX_BATCHES)


@given(st.floats(0.1, 10.0), st.floats(0.0, 1.0), st.integers(2, 50))
def test_the_standard_error_comes_back_out_of_the_interval(value: float, se: float, n: int) -> None:
    assert make_estimate(value, se, n).standard_error == pytest.approx(se, abs=1e-12)


@pytest.mark.parametrize(
    ("n", "phi", "least"), [(100, 0.0, 0.92), (200, 0.5, 0.92), (200, 0.8, 0.89), (100, 0.8, 0.85), (20, 0.0, 0.92)]
)
def test_batch_means_hold_the_true_mean_nearly_as_often_as_they_say(n: int, phi: float, least: float) -> None:
    rng = np.random.default_rng(3)
    found = [batch_mean_estimate(series(rng, n, 0.1, phi)) for _ in range(400)]
    assert np.mean([one.low <= 1.0 <= one.high for one in found]) >= least


def test_plain_standard_errors_of_a_series_that_hangs_together_would_not() -> None:
    rng = np.random.default_rng(3)
    found = [mean_estimate(series(rng, 200, 0.1, 0.8)) for _ in range(400)]
    assert np.mean([one.low <= 1.0 <= one.high for one in found]) < 0.6


@given(st.lists(st.tuples(st.floats(0.01, 10.0), st.floats(1.0, 40.0)), min_size=1, max_size=5))
def test_joined_errors_have_degrees_of_freedom_between_the_least_and_all(
    parts: list[tuple[float, float]],
) -> None:
    se, freedom = combine_errors(parts)
    assert se == pytest.approx(math.hypot(*(one for one, _ in parts)))
    assert min(v for _, v in parts) - 1e-9 <= freedom <= sum(v for _, v in parts) + 1e-9


def test_a_mean_scatters_no_less_than_its_parts_lie_apart() -> None:
    assert widen_by_scatter((1.0, 30.0), (0.5, 1.0)) == (1.0, 30.0)
    se, freedom = widen_by_scatter((1.0, 30.0), (5.0, 1.0))
    assert se == pytest.approx(5.0)
    assert freedom < 1.2


def test_estimates_that_agree_are_joined_and_those_that_do_not_widen_the_interval() -> None:
    agreeing = combine_estimates([make_estimate(10.0, 0.1, 20), make_estimate(10.05, 0.1, 20)])
    assert agreeing.n > 20
    assert agreeing.standard_error < 0.1
    apart = combine_estimates([make_estimate(10.0, 0.1, 20), make_estimate(12.0, 0.1, 20)])
    assert apart.low < 10.0
    assert apart.high > 12.0


def test_one_estimate_stays_as_it_is_and_unbounded_ones_are_the_figures_themselves() -> None:
    own = Estimate(1.0, 0.5, 1.5, 7)
    assert combine_estimates([own]) is own
    assert combine_estimates([make_unbounded_estimate(1.0), make_unbounded_estimate(3.0)]) == mean_estimate([1.0, 3.0])
