"""Correlations are one at no distance, and fall with the distance as their formula says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedge.costs.memory.residual_process import matern3, matern5


def test_correlations_fall_from_one_towards_zero() -> None:
    apart = np.linspace(0.0, 12.0, 50)
    for matern in (matern3, matern5):
        alike = matern(apart)
        assert alike[0] == 1.0
        assert (np.diff(alike) < 0).all()
        assert 0.0 < alike[-1] < 1e-6


def test_correlations_at_one_length_by_hand() -> None:
    one, three, five = np.array([1.0]), math.sqrt(3.0), math.sqrt(5.0)
    assert matern3(one)[0] == pytest.approx((1 + three) * math.exp(-three))
    assert matern5(one)[0] == pytest.approx((1 + five + 5 / 3) * math.exp(-five))
