"""The robust fit finds a line through bad rows, and its prior where there are no rows."""

from __future__ import annotations

import numpy as np

from fedge.physics.robust_fit import GaussianPrior, fit_curve, student_weights
from fedge.types import Floats

X = np.linspace(0.0, 1.0, 50)
LOOSE = GaussianPrior(np.zeros(2), np.eye(2) * 1e-6)


def _line(p: Floats) -> tuple[Floats, Floats]:
    return p[0] + p[1] * X, np.stack([np.ones_like(X), X])


def test_a_tenth_of_wild_rows_does_not_bend_the_line() -> None:
    data = 1.0 + 2.0 * X + 0.01 * np.random.default_rng(1).standard_normal(50)
    data[::10] += 5.0

    fitted = fit_curve(_line, data, 0.01, LOOSE, np.zeros(2))

    np.testing.assert_allclose(fitted.parameters, [1.0, 2.0], atol=0.02)
    assert fitted.weights[::10].max() < 0.01
    assert fitted.weights[1] > 0.3


def test_without_rows_the_prior_is_the_answer() -> None:
    prior = GaussianPrior(np.array([0.3, -0.2]), np.eye(2))

    fitted = fit_curve(lambda p: (np.zeros(0), np.zeros((2, 0))), np.zeros(0), 0.1, prior, np.zeros(2))

    np.testing.assert_allclose(fitted.parameters, prior.mean, atol=1e-3)


def test_a_curve_that_leaves_the_numbers_is_not_followed() -> None:
    def cliff(p: Floats) -> tuple[Floats, Floats]:
        if p[0] <= 0:
            return np.full(1, np.nan), np.ones((1, 1))
        return np.log(p), np.array([[1.0 / p[0]]])

    fitted = fit_curve(cliff, np.array([-3.0]), 0.1, GaussianPrior(np.ones(1), np.eye(1) * 1e-6), np.ones(1))

    np.testing.assert_allclose(fitted.parameters, np.exp(-3.0), rtol=0.01)


def test_weights_fall_with_the_distance() -> None:
    weights = student_weights(np.array([0.0, 1.0, 3.0, 30.0]))

    assert (np.diff(weights) < 0).all()
