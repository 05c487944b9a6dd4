"""Confidence intervals: Student's t, batch means of series that hang together, several estimates of one figure."""

import math

import numpy as np
import pytest
from contracts.characterised_points import series
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as scipy_t

from fedge.confidence_interval import (
    Estimate,
    batch_mean_estimate,
    combine_errors,
    combine_estimates,
    estimate_ratio,
    geometric_mean,
    make_estimate,
    make_unbounded_estimate,
    mean_estimate,
    mean_interval,
    paired_interval,
    student_t,
    widen_by_scatter,
)

FIGURES = st.floats(-1e6, 1e6).map(lambda value: round(value, 3))


@given(degrees=st.integers(1, 3000), confidence=st.floats(0.001, 0.999))
def test_students_t_is_that_of_scipy_for_whole_degrees_of_freedom(degrees, confidence):
    assert student_t(degrees, confidence) == pytest.approx(scipy_t.ppf((1 + confidence) / 2, degrees), rel=1e-8)


@given(freedom=st.floats(1.0, 3000.0))
def test_students_t_is_near_that_of_scipy_for_others(freedom):
    assert student_t(freedom) == pytest.approx(scipy_t.ppf(0.975, freedom), rel=0.03)


def test_less_than_one_degree_of_freedom_says_nothing():
    assert student_t(0.5) == math.inf


@given(st.floats(1.0, 50.0), st.floats(0.01, 5.0))
def test_students_t_falls_with_the_degrees_of_freedom(freedom, more):
    assert student_t(freedom + more) < student_t(freedom)


@given(st.floats(0.1, 10.0), st.floats(0.0, 1.0), st.integers(2, 50))
def test_the_standard_error_comes_back_out_of_the_interval(value, se, n):
    assert make_estimate(value, se, n).standard_error == pytest.approx(se, abs=1e-12)


@pytest.mark.parametrize(
    ("n", "phi", "least"), [(100, 0.0, 0.92), (200, 0.5, 0.92), (200, 0.8, 0.89), (100, 0.8, 0.85), (20, 0.0, 0.92)]
)
def test_batch_means_hold_the_true_mean_nearly_as_often_as_they_say(n, phi, least):
    rng = np.random.default_rng(3)
    found = [batch_mean_estimate(series(rng, n, 0.1, phi)) for _ in range(400)]
    assert np.mean([one.low <= 1.0 <= one.high for one in found]) >= least


@given(st.lists(st.tuples(st.floats(0.01, 10.0), st.floats(1.0, 40.0)), min_size=1, max_size=5))
def test_joined_errors_have_degrees_of_freedom_between_the_least_and_all(parts):
    se, freedom = combine_errors(parts)
    assert se == pytest.approx(math.hypot(*(one for one, _ in parts)))
    assert min(v for _, v in parts) - 1e-9 <= freedom <= sum(v for _, v in parts) + 1e-9


def test_a_mean_scatters_no_less_than_its_parts_lie_apart():
    assert widen_by_scatter((1.0, 30.0), (0.5, 1.0)) == (1.0, 30.0)
    se, freedom = widen_by_scatter((1.0, 30.0), (5.0, 1.0))
    assert se == pytest.approx(5.0)
    assert freedom < 1.2


def test_one_estimate_stays_as_it_is_and_unbounded_ones_are_the_figures_themselves():
    own = Estimate(1.0, 0.5, 1.5, 7)
    assert batch_mean_estimate(np.array([3.0])) == mean_estimate([3.0]) == make_unbounded_estimate(3.0)
    assert combine_estimates([own]) is own
    assert combine_estimates([make_unbounded_estimate(1.0), make_unbounded_estimate(3.0)]) == mean_estimate([1.0, 3.0])


means = st.floats(0.1, 100.0)
relative = st.floats(0.0, 0.05)


@given(means, relative, means, relative)
def test_a_ratio_lies_in_its_interval_and_turned_round_it_is_the_inverse(a, ea, b, eb):
    one, other = make_estimate(a, ea * a, 20), make_estimate(b, eb * b, 15)
    there, back = estimate_ratio(one, other), estimate_ratio(other, one)
    assert there.low <= there.value * (1 + 1e-9)
    assert there.value <= there.high * (1 + 1e-9)
    assert (back.low, back.value, back.high) == pytest.approx((1 / there.high, 1 / there.value, 1 / there.low))


@pytest.mark.parametrize(("mean", "sd"), [(2.0, 0.2), (0.05, 0.06)])
def test_intervals_hold_the_true_ratio_nearly_as_often_as_they_say(mean, sd):
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(500):
        after, before = mean_estimate(mean + sd * rng.normal(size=10)), mean_estimate(1.0 + 0.05 * rng.normal(size=10))
        found = estimate_ratio(after, before)
        held += found is None or found.low <= mean <= found.high
    assert held >= 0.9 * 500


def test_there_is_no_ratio_to_what_may_be_nothing():
    assert estimate_ratio(make_estimate(1.0, 0.1, 10), make_estimate(0.1, 0.2, 10)) is None
    assert estimate_ratio(make_estimate(1.0, 0.1, 10), make_estimate(0.0, 0.0, 10)) is None


def test_a_single_figure_makes_a_ratio_of_which_nothing_is_certain():
    found = estimate_ratio(make_unbounded_estimate(2.0), make_estimate(1.0, 0.01, 10))
    assert (found.value, found.low, found.high) == (2.0, 0.0, math.inf)


def test_the_ratios_of_boards_are_taken_together_in_logarithms():
    ratios = [estimate_ratio(make_estimate(a, 0.01, 20), make_estimate(1.0, 0.01, 20)) for a in (0.5, 2.0)]
    found = geometric_mean([one for one in ratios if one])
    assert found.value == pytest.approx(1.0)
    assert found.low < 0.5
    assert found.high > 2.0


@given(st.lists(FIGURES, min_size=2, max_size=12))
def test_the_interval_is_that_of_scipy(values):
    found = mean_interval(values)
    spread = math.sqrt(sum((v - sum(values) / len(values)) ** 2 for v in values) / (len(values) - 1))
    assert found.n == len(values)
    assert found.mean == pytest.approx(sum(values) / len(values), abs=1e-6)
    if spread > 1e-3:
        low, high = scipy_t.interval(0.95, len(values) - 1, loc=found.mean, scale=spread / math.sqrt(len(values)))
        assert (found.low, found.high) == (pytest.approx(low, rel=1e-6), pytest.approx(high, rel=1e-6))


def test_one_figure_has_no_interval_and_none_has_no_mean():
    one = mean_interval([None, 4.0, math.nan])
    assert (one.mean, one.half_width, one.n, one.verdict) == (4.0, None, 1, "one seed")
    assert mean_interval([None]) is None


def test_pairs_decide_what_two_intervals_leave_open():
    ours, theirs = {1: 10.0, 2: 20.0, 3: 30.0}, {1: 11.0, 2: 21.1, 3: 30.9, 4: 500.0}
    assert mean_interval([*ours.values()]).high > mean_interval([11.0, 21.1, 30.9]).low
    found = paired_interval(ours, theirs)
    assert (found.n, found.verdict) == (3, "lower")
    assert found.mean == pytest.approx(-1.0)


@given(st.dictionaries(st.integers(0, 9), FIGURES), st.dictionaries(st.integers(0, 9), FIGURES))
def test_a_difference_turned_round_is_its_negative(ours, theirs):
    forth, back = paired_interval(ours, theirs), paired_interval(theirs, ours)
    if forth is None:
        assert back is None
        assert not ours.keys() & theirs.keys()
    else:
        assert (forth.mean, forth.n) == (pytest.approx(-back.mean), back.n)
        if forth.half_width is not None:
            assert forth.half_width == pytest.approx(back.half_width)


def test_the_verdict_needs_the_whole_interval_on_one_side():
    assert paired_interval({1: 1.0, 2: 2.0}, {1: 0.0, 2: 0.9}).verdict == "higher"
    assert paired_interval({1: 1.0, 2: 2.0}, {1: 0.0, 2: 3.0}).verdict == "undecided"
    assert paired_interval({1: 1.0, 2: 2.0}, {1: 1.0, 2: 2.0}).verdict == "equal"
