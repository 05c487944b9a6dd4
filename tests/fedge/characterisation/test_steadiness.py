"""The start of a series of minibatches, its outliers, and whether the rest is steady."""

from __future__ import annotations

import numpy as np
from contracts.characterised_points import series
from hypothesis import given
from hypothesis import strategies as st

from fedge.characterisation.stability import (
    MAX_OUTLIER_SHARE,
    MIN_STEPS,
    assess_steadiness,
    count_warm_up,
    describe_drift,
    find_outliers,
)

seeds = st.integers(0, 10_000)


@given(seeds, st.integers(1, 40), st.floats(1.5, 20.0))
def test_a_start_that_takes_longer_is_found_whole(seed, start, factor):
    times = series(np.random.default_rng(seed), 200, 0.03, 0.3)
    times[:start] *= factor
    assert start <= count_warm_up(times) <= 100


def test_noise_has_no_start():
    rng = np.random.default_rng(0)
    for n, phi in ((10, 0.0), (40, 0.5), (200, 0.0), (200, 0.8)):
        assert np.mean([count_warm_up(series(rng, n, 0.1, phi)) > 0 for _ in range(200)]) <= 0.1


@given(seeds, st.integers(1, 300))
def test_the_start_is_half_of_the_series_at_most(seed, n):
    times = np.exp(np.random.default_rng(seed).normal(size=n) * 2) + np.linspace(10, 0, n) ** 2
    assert 0 <= count_warm_up(times) <= n // 2


@given(seeds, st.sets(st.integers(0, 199), max_size=10))
def test_planted_outliers_are_marked_and_no_others(seed, places):
    rng = np.random.default_rng(seed)
    times = 1.0 + rng.uniform(-0.05, 0.05, 200)
    times[list(places)] *= 3.0
    assert set(np.flatnonzero(find_outliers(times))) == places


@given(st.lists(st.floats(0.001, 100.0), min_size=1, max_size=200))
def test_never_more_than_the_given_share_is_marked(values):
    assert find_outliers(np.array(values)).mean() <= MAX_OUTLIER_SHARE


def test_where_every_fourth_minibatch_waits_that_is_how_the_board_works():
    times = np.where(np.arange(200) % 4 == 0, 3.0, 1.0) * series(np.random.default_rng(0), 200, 0.02)
    assert not find_outliers(times).any()
    assert describe_drift(times) == ""


@given(seeds, st.sampled_from([-0.2, -0.1, 0.1, 0.3]))
def test_a_step_in_the_middle_and_a_trend_are_no_steady_state(seed, change):
    times = series(np.random.default_rng(seed), 200, 0.03)
    word = "more" if change > 0 else "less"
    step, trend = times.copy(), times * (1.0 + change * np.linspace(0, 1, 200))
    step[100:] *= 1.0 + change
    assert word in describe_drift(step)
    assert word in describe_drift(trend)


def test_noise_alone_is_seldom_taken_for_a_drift():
    rng = np.random.default_rng(5)
    assert np.mean([bool(describe_drift(series(rng, 100, 0.1))) for _ in range(300)]) <= 0.03


def test_a_single_long_minibatch_is_no_drift():
    times = series(np.random.default_rng(2), 100, 0.02)
    times[70] = 40.0
    judged = assess_steadiness(times)
    assert judged.settled
    assert np.flatnonzero(judged.outliers).tolist() == [70]


def test_too_few_minibatches_say_nothing():
    judged = assess_steadiness(np.ones(MIN_STEPS - 1))
    assert not judged.settled
    assert "minibatches" in judged.why
    assert assess_steadiness(np.ones(MIN_STEPS)).settled
