"""Draws without replacement: in proportion to weights, complete, and rounding that is right on average."""

from __future__ import annotations

import numpy as np
import pytest

from fedge.decisions.selection.weighted_sampling import round_randomly, sample_without_replacement


def test_the_first_draw_is_in_proportion_to_the_weights_and_the_second_among_the_rest() -> None:
    rng = np.random.default_rng(1)
    draws = np.array([sample_without_replacement(np.array([6.0, 3.0, 1.0]), 2, rng) for _ in range(20_000)])

    assert np.bincount(draws[:, 0]) / 20_000 == pytest.approx([0.6, 0.3, 0.1], abs=0.015)
    after_the_first = draws[draws[:, 0] == 0, 1]
    assert (after_the_first == 1).mean() == pytest.approx(0.75, abs=0.015)


def test_rows_of_weight_zero_come_last() -> None:
    rows = sample_without_replacement(np.array([0.0, 1.0, 0.0, 2.0]), 4, np.random.default_rng(2))

    assert set(rows[:2].tolist()) == {1, 3}
    assert set(rows[2:].tolist()) == {0, 2}


def test_more_than_there_are_draws_them_all() -> None:
    assert sorted(sample_without_replacement(np.ones(3), 9, np.random.default_rng(3)).tolist()) == [0, 1, 2]
    assert sample_without_replacement(np.empty(0), 1, np.random.default_rng(3)).shape == (0,)


def test_rounding_at_random_keeps_the_mean_and_leaves_whole_numbers() -> None:
    rng = np.random.default_rng(4)

    assert np.mean([round_randomly(2.3, rng) for _ in range(20_000)]) == pytest.approx(2.3, abs=0.015)
    assert {round_randomly(2.0, rng) for _ in range(100)} == {2}
