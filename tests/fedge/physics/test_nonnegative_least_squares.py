"""Non-negative least squares meets its optimality conditions."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedge.physics.nonnegative_least_squares import solve_nonnegative


@given(st.integers(0, 10**6), st.integers(1, 6))
def test_no_coefficient_is_negative_and_none_could_be_better(seed, terms):
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((12, terms)), rng.standard_normal(12)
    x = solve_nonnegative(a, b)
    slope = a.T @ (b - a @ x)
    assert (x >= 0).all()
    assert (slope <= 1e-7).all()
    assert np.abs(slope[x > 0]).max(initial=0.0) < 1e-7
