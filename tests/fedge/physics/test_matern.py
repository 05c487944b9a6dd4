"""Matern correlations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedge.physics.matern import matern3, matern5, matern5_single


def test_correlations_fall_from_one_towards_zero():
    apart = np.linspace(0.0, 24.0, 50)
    for matern in (matern3, matern5):
        alike = matern(apart)
        assert alike[0] == 1.0
        assert (np.diff(alike) < 0).all()
        assert 0.0 < alike[-1] < 1e-6


def test_correlations_by_hand():
    one, three, five = np.array([1.0]), math.sqrt(3.0), math.sqrt(5.0)
    assert matern3(three * one)[0] == pytest.approx((1 + three) * math.exp(-three))
    assert matern5(five * one)[0] == pytest.approx((1 + five + 5 / 3) * math.exp(-five))


def test_single_precision_agrees_with_double():
    squared = np.square(np.linspace(0.0, 5.0, 40))
    single = matern5_single(squared.astype(np.float32))
    np.testing.assert_allclose(single, matern5(np.sqrt(5.0 * squared)), rtol=1e-5)
