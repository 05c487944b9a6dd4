"""What other networks have in common is carried to an unseen one, and forgotten far away from all of them."""

from __future__ import annotations

import numpy as np
import pytest

from fedge.costs.memory.residual_process import build_transfer_points, fit_transfer_process


def test_what_networks_have_in_common_is_followed_and_returns_to_zero_far_away() -> None:
    at = np.random.default_rng(0).uniform(0.0, 2.0, (40, 3))
    fitted = fit_transfer_process(at, np.full(40, 0.2))
    assert fitted.predict(at).mean() == pytest.approx(0.2, abs=0.06)
    assert np.abs(fitted.predict(at + 30.0)).max() < 1e-6


def test_one_wild_step_pulls_little() -> None:
    at = np.random.default_rng(1).uniform(0.0, 2.0, (40, 3))
    residual = np.zeros(40)
    residual[7] = 2.0
    assert np.abs(fit_transfer_process(at, residual).predict(at)).max() < 0.15


def test_a_place_is_batch_traffic_per_image_and_intensity() -> None:
    terms = np.array([[1.0, 8.0, 0.0, 0.0, 400.0, 0.0]])
    assert build_transfer_points(terms, np.array([1200.0]))[0] == pytest.approx(np.log([8.0, 50.0, 3.0]))
