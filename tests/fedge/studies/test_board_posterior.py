"""The draws of a board cover the range of its errors, however few they are."""

from statistics import NormalDist

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedge.studies.board_posterior import draw_offsets


@given(draws=st.integers(1, 30), seed=st.integers(0, 2**32 - 1))
def test_each_of_as_many_equally_likely_ranges_as_draws_holds_one(draws, seed):
    offsets = draw_offsets(draws, np.random.default_rng(seed))

    assert offsets.shape == (draws, 2)
    for column in offsets.T:
        shares = [NormalDist().cdf(z) for z in column]
        assert sorted(int(min(share * draws, draws - 1e-6) + 1e-9) for share in shares) == list(range(draws))


def test_over_many_boards_they_are_normal_and_time_says_nothing_about_power():
    rng = np.random.default_rng(3)
    offsets = np.concatenate([draw_offsets(4, rng) for _ in range(1500)])

    assert np.allclose(offsets.mean(axis=0), 0.0, atol=0.02)
    assert np.allclose(np.cov(offsets.T), np.eye(2), atol=0.06)
