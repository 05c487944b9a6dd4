"""The parts of a choice: margins are quantiles, limits forgive rounding, the best row is what a sort would find."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.decisions.limits import add_margin, compute_margin_z, find_best_row, format_figure, mask_within
from fedge.errors import BadInput, FedgeError


@given(st.floats(0.01, 0.99))
def test_a_margin_holds_with_its_confidence(confidence):
    share_below = 0.5 * math.erfc(-compute_margin_z(confidence) / math.sqrt(2.0))
    assert share_below == pytest.approx(confidence)


@pytest.mark.parametrize("confidence", [0.0, 1.0, -0.1, 84.0, math.nan])
def test_a_confidence_that_is_no_share_is_refused_by_the_name_of_its_field(confidence):
    with pytest.raises(BadInput, match=r"--confidence: got .*; a number between 0 and 1"):
        compute_margin_z(confidence, "--confidence")


def test_a_margin_of_one_spread_overestimates_by_one_standard_deviation_of_the_logarithm():
    careful = add_margin(np.array([10.0, 20.0]), np.array([0.0, 0.1]), 1.0)
    np.testing.assert_allclose(careful, [10.0, 20.0 * math.exp(0.1)])


def test_a_limit_is_kept_by_its_own_value_computed_another_way():
    assert mask_within(np.array([0.1 + 0.2, 0.31]), 0.3).tolist() == [True, False]


_values = st.sampled_from([1.0, 2.0, 3.0, math.nan, math.inf])


@given(st.lists(st.tuples(_values, _values, st.booleans()), min_size=1, max_size=12))
def test_the_best_row_is_the_first_of_the_least_pair_among_the_finite_and_allowed(
    rows,
):
    primary, secondary = np.array([r[0] for r in rows]), np.array([r[1] for r in rows])
    allowed = np.array([r[2] for r in rows])
    candidates = [(a, b, i) for i, (a, b, ok) in enumerate(rows) if ok and math.isfinite(a) and math.isfinite(b)]

    if candidates:
        assert find_best_row(primary, secondary, allowed) == min(candidates)[2]
    else:
        with pytest.raises(FedgeError, match="has a finite prediction"):
            find_best_row(primary, secondary, allowed)


@pytest.mark.parametrize(("value", "text"), [(0.05123, "0.0512"), (9.876, "9.88"), (17.0, "17.0"), (-12.34, "-12.3")])
def test_a_number_for_a_sentence_has_one_decimal_or_three_digits(value, text):
    assert format_figure(value) == text
