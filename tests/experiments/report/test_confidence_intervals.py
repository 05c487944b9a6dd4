"""Student's t and the intervals made from it agree with scipy, and a difference is decided by its pairs."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.report.confidence_intervals import mean_interval, paired_interval, student_t

FIGURES = st.floats(-1e6, 1e6).map(lambda value: round(value, 3))


@given(degrees=st.integers(1, 3000), p=st.floats(0.001, 0.999))
def test_the_quantile_is_that_of_scipy(degrees, p):
    from scipy.stats import t

    assert student_t(p, degrees) == pytest.approx(t.ppf(p, degrees), rel=1e-8, abs=1e-8)


@pytest.mark.parametrize(("p", "degrees"), [(0.0, 3), (1.0, 3), (0.9, 0)])
def test_a_quantile_that_does_not_exist_is_refused(p, degrees):
    with pytest.raises(ValueError, match="at least one degree"):
        student_t(p, degrees)


@given(st.lists(FIGURES, min_size=2, max_size=12))
def test_the_interval_is_that_of_scipy(values):
    from scipy.stats import t

    found = mean_interval(values)
    spread = math.sqrt(sum((v - sum(values) / len(values)) ** 2 for v in values) / (len(values) - 1))
    assert found.n == len(values)
    assert found.mean == pytest.approx(sum(values) / len(values), abs=1e-6)
    if spread > 1e-3:
        low, high = t.interval(0.95, len(values) - 1, loc=found.mean, scale=spread / math.sqrt(len(values)))
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
