"""Repeats of a setting as one, with what epochs and repeats differ on the board."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from contracts.characterised_points import Noise, Truth, stats, sweep, varied

from fedge.characterisation.point_statistics import pool_repeats
from fedge.characterisation.sweep_plan import SweepPoint

POINT = SweepPoint("here", "net")
POINTS = varied(POINT, "batch_size", [1, 2, 4, 8, 16, 32]) + varied(POINT, "workers", [1, 2, 3])


def test_repeats_of_a_setting_become_one_and_boards_stay_apart():
    points = [*varied(POINT, "repeat", [2, 0, 1]), replace(POINT, board="nano-1"), replace(POINT, workers=1)]
    found = pool_repeats(sweep(points, lambda _: Truth()))
    assert [len(one.points) for one in found] == [3, 1, 1]
    assert found[0].point.repeat == 0
    assert found[0].points == tuple(one.key for one in varied(POINT, "repeat", [0, 1, 2]))


def test_the_mean_over_repeats_is_that_of_their_means():
    own = sweep(varied(POINT, "repeat", range(3)), lambda _: Truth(), Noise(epoch=0.03))
    (found,) = pool_repeats(own)
    assert found.stats.e2e_s.value == pytest.approx(np.mean([one.e2e_s.value for one in own]))
    assert found.stats.minibatches == sum(one.minibatches for one in own)


@pytest.mark.parametrize("epoch", [0.0, 0.01, 0.03])
def test_two_epochs_a_point_are_enough_where_there_are_several_points(epoch):
    """The scatter of epochs is that of all points; the truth is held as often as it should, by short intervals."""
    found = [
        one.stats.e2e_s
        for seed in range(12)
        for one in pool_repeats(sweep(POINTS, lambda _: Truth(), Noise(epoch=epoch), seed=seed))
    ]
    assert np.mean([one.low <= 1.2 <= one.high for one in found]) >= 0.92
    assert np.median([one.high - one.low for one in found]) / 1.2 <= 0.015 + 4.5 * epoch


def test_what_repeats_differ_beyond_their_minibatches_widens_every_setting_of_the_board():
    points = [replace(one, repeat=repeat) for one in POINTS[:3] for repeat in range(2)]

    def slow(point: SweepPoint) -> Truth:
        return Truth(compute_s=0.007 * (1.0 + 0.1 * (point.repeat - 0.5) * (-1) ** point.batch_size))

    alone, repeated = pool_repeats(sweep(points[::2], slow)), pool_repeats(sweep(points, slow))
    for before, after in zip(alone, repeated, strict=True):
        assert after.stats.compute_s.standard_error > 2 * before.stats.compute_s.standard_error


def test_what_nobody_metered_stays_unknown():
    (found,) = pool_repeats([stats(POINT, Truth(), metered=False)])
    assert found.stats.energy_j is None
