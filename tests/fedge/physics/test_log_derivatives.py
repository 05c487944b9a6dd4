"""The closed-form slopes are those of the model."""

from __future__ import annotations

import numpy as np
from contracts.boards import MAXN, another_workload, grid

from fedge.physics import log_derivatives
from fedge.physics.time_power_model import compute_power_terms, compute_time_parts, knob_shares

STEP = 1e-6


def test_the_slopes_of_log_time_are_its_differences() -> None:
    x = knob_shares(MAXN, grid())
    time = another_workload(np.random.default_rng(3)).time

    value, by_parameter = log_derivatives.evaluate_log_time(time, x)

    np.testing.assert_allclose(value, np.log(compute_time_parts(time, x).total_s))
    for i, direction in enumerate(np.eye(len(time))):
        seen = (
            (
                log_derivatives.evaluate_log_time(time + STEP * direction, x)[0]
                - log_derivatives.evaluate_log_time(time - STEP * direction, x)[0]
            )
            / STEP
            / 2
        )
        np.testing.assert_allclose(by_parameter[i], seen, atol=1e-7)


def test_the_slopes_of_log_power_are_its_differences() -> None:
    x = knob_shares(MAXN, grid())
    other = another_workload(np.random.default_rng(4))
    parts = compute_time_parts(other.time, x)

    value, by_parameter = log_derivatives.evaluate_log_power(other.power, parts, x)

    np.testing.assert_allclose(value, np.log(compute_power_terms(other.power, parts, x).sum(axis=0)))
    for i, direction in enumerate(np.eye(len(other.power))):
        ahead = log_derivatives.evaluate_log_power(other.power + STEP * direction, parts, x)[0]
        behind = log_derivatives.evaluate_log_power(other.power - STEP * direction, parts, x)[0]
        np.testing.assert_allclose(by_parameter[i], (ahead - behind) / STEP / 2, atol=1e-7)
