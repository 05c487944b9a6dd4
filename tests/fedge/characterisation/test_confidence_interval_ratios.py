"""Ratios of two estimates with their intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.characterisation.confidence_interval import (
    estimate_ratio,
    geometric_mean,
    make_estimate,
    make_unbounded_estimate,
    mean_estimate,
)

means = st.floats(0.1, 100.0)
relative = st.floats(0.0, 0.05)


@given(means, relative, means, relative)
def test_a_ratio_lies_in_its_interval_and_turned_round_it_is_the_inverse(
    a: float, ea: float, b: float, eb: float
) -> None:
    one, other = make_estimate(a, ea * a, 20), make_estimate(b, eb * b, 15)
    there, back = estimate_ratio(one, other), estimate_ratio(other, one)
    assert there is not None
    assert back is not None
    assert there.low <= there.value * (1 + 1e-9)
    assert there.value <= there.high * (1 + 1e-9)
    assert (back.low, back.value, back.high) == pytest.approx((1 / there.high, 1 / there.value, 1 / there.low))


@pytest.mark.parametrize(("mean", "sd"), [(2.0, 0.2), (0.05, 0.06)])
def test_intervals_hold_the_true_ratio_nearly_as_often_as_they_say(mean: float, sd: float) -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(500):
        after, before = mean_estimate(mean + sd * rng.normal(size=10)), mean_estimate(1.0 + 0.05 * rng.normal(size=10))
        found = estimate_ratio(after, before)
        held += found is None or found.low <= mean <= found.high
    assert held >= 0.9 * 500


def test_there_is_no_ratio_to_what_may_be_nothing() -> None:
    assert estimate_ratio(make_estimate(1.0, 0.1, 10), make_estimate(0.1, 0.2, 10)) is None
    assert estimate_ratio(make_estimate(1.0, 0.1, 10), make_estimate(0.0, 0.0, 10)) is None


def test_all_of_it_may_be_gone() -> None:
    found = estimate_ratio(make_estimate(0.0, 0.0, 10), make_estimate(1.0, 0.01, 10))
    assert found is not None
    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)


def test_a_single_figure_makes_a_ratio_of_which_nothing_is_certain() -> None:
    found = estimate_ratio(make_unbounded_estimate(2.0), make_estimate(1.0, 0.01, 10))
    assert found is not None
    assert (found.value, found.low, found.high) == (2.0, 0.0, math.inf)


def test_the_ratios_of_boards_are_taken_together_in_logarithms() -> None:
    ratios = [estimate_ratio(make_estimate(a, 0.01, 20), make_estimate(1.0, 0.01, 20)) for a in (0.5, 2.0)]
    found = geometric_mean([one for one in ratios if one])
    assert found.value == pytest.approx(1.0)
    assert found.low < 0.5
    assert found.high > 2.0
