"""A fit of relative errors finds what made the rows, shrugs off outliers, and keeps its prior where rows are silent."""

from __future__ import annotations

import numpy as np
import pytest

from fedge.costs.memory.relative_regression import balance_weights, fit_relative


def test_without_noise_the_coefficients_are_found_and_outliers_are_not_followed() -> None:
    rng = np.random.default_rng(1)
    terms = rng.uniform(0.5, 2.0, (60, 3)) * np.array([1.0, 1e3, 1e-3])
    truth = np.array([5.0, 0.02, 300.0])
    target = terms @ truth
    target[:3] *= 6.0
    found = fit_relative(terms, target, np.ones(60), 0.03, pull=1e-8)
    assert found == pytest.approx(truth, rel=0.05)


def test_a_term_that_the_rows_do_not_show_keeps_its_prior() -> None:
    terms = np.column_stack([np.linspace(1.0, 2.0, 20), np.zeros(20)])
    found = fit_relative(terms, 3.0 * terms[:, 0], np.ones(20), 0.05, np.array([2.0, 7.0]), 1e-4)
    assert found == pytest.approx([3.0, 7.0], rel=1e-2)


def test_every_group_weighs_the_same() -> None:
    weights = balance_weights(np.array(["a", "b", "b", "b"]))
    assert weights[0] == pytest.approx(weights[1:].sum())
    assert weights.mean() == pytest.approx(1.0)
