"""The robust fit finds a line through bad rows, and its prior where there are no rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.physics.log_derivatives import linearize_log_time
from fedge.physics.robust_fit import GaussianPrior, fit_curve, fit_curves, student_weights
from fedge.physics.time_power_model import TIME_NAMES
from fedge.types import Floats

X = np.linspace(0.0, 1.0, 50)
LOOSE = GaussianPrior(np.zeros(2), np.eye(2) * 1e-6)


def _line(p: Floats) -> tuple[Floats, Floats]:
    return p[0] + p[1] * X, np.stack([np.ones_like(X), X])


def test_a_tenth_of_wild_rows_does_not_bend_the_line():
    data = 1.0 + 2.0 * X + 0.01 * np.random.default_rng(1).standard_normal(50)
    data[::10] += 5.0

    fitted = fit_curve(_line, data, 0.01, LOOSE, np.zeros(2))

    np.testing.assert_allclose(fitted.parameters, [1.0, 2.0], atol=0.02)
    assert fitted.weights[::10].max() < 0.01
    assert fitted.weights[1] > 0.3


def test_without_rows_the_prior_is_the_answer():
    prior = GaussianPrior(np.array([0.3, -0.2]), np.eye(2))

    fitted = fit_curve(lambda p: (np.zeros(0), np.zeros((2, 0))), np.zeros(0), 0.1, prior, np.zeros(2))

    np.testing.assert_allclose(fitted.parameters, prior.mean, atol=1e-3)


def test_a_curve_that_leaves_the_numbers_is_not_followed():
    def cliff(p: Floats) -> tuple[Floats, Floats]:
        if p[0] <= 0:
            return np.full(1, np.nan), np.ones((1, 1))
        return np.log(p), np.array([[1.0 / p[0]]])

    fitted = fit_curve(cliff, np.array([-3.0]), 0.1, GaussianPrior(np.ones(1), np.eye(1) * 1e-6), np.ones(1))

    np.testing.assert_allclose(fitted.parameters, np.exp(-3.0), rtol=0.01)


@given(seed=st.integers(0, 999), rows=st.integers(0, 12), count=st.integers(1, 6))
@settings(max_examples=40)
def test_fits_that_advance_together_are_those_that_are_fitted_alone(seed, rows, count):
    rng = np.random.default_rng(seed)
    x, data = rng.uniform(0.1, 1.0, (rows, 4)), rng.normal(-2.0, 1.0, rows)
    means = np.log(rng.uniform(0.05, 2.0, (count, len(TIME_NAMES))))
    precisions = np.eye(len(TIME_NAMES)) * rng.uniform(0.3, 30.0, (count, 1, 1))
    noise_sd = rng.uniform(0.01, 0.3, (count, rows))

    def curve(th: Floats) -> tuple[Floats, Floats]:
        linear = linearize_log_time(th, x)
        return linear.values, linear.stack_slopes()

    together = fit_curves(
        lambda th, _: curve(th),
        data=np.tile(data, (count, 1)),
        noise_sd=noise_sd,
        prior=GaussianPrior(means, precisions),
        start=means,
        tolerance=1e-3,
    )

    for i in range(count):
        alone = fit_curve(curve, data, noise_sd[i], GaussianPrior(means[i], precisions[i]), means[i], 1e-3)
        for field in ("parameters", "objective", "residuals", "weights"):
            np.testing.assert_allclose(getattr(together, field)[i], getattr(alone, field), rtol=1e-6, atol=1e-8)


def test_weights_fall_with_the_distance():
    weights = student_weights(np.array([0.0, 1.0, 3.0, 30.0]))

    assert (np.diff(weights) < 0).all()
