"""The processes follow what is smooth or shared, and keep single offsets and wild steps to themselves."""

from __future__ import annotations

import numpy as np
import pytest

from fedge.costs.memory.residual_process import (
    build_transfer_points,
    fit_smooth_process,
    fit_transfer_process,
    list_scale_candidates,
)

SCALES = (0.02, 0.05, 0.05, 0.5)


def places(levels: list[float]) -> np.ndarray:
    return np.array([[level, batch] for level in levels for batch in np.log([2, 8, 16, 32, 64, 128])])


def test_a_smooth_curve_is_carried_to_levels_between():
    at, between = places([0.0, 0.2, 0.4, 0.6, 0.8]), places([0.3, 0.5])

    def curve(where: np.ndarray) -> np.ndarray:
        return 0.08 * np.sin(3 * where[:, 0]) + 0.03 * np.cos(where[:, 1])

    found = fit_smooth_process(at, curve(at), list_scale_candidates(*SCALES)).predict(between)
    assert np.abs(found - curve(between)).max() < 0.02


def test_a_level_that_is_off_by_itself_does_not_pull_its_neighbours():
    at = places([0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9])
    offsets = {0.15: 0.1, 0.45: -0.12, 0.75: 0.15}
    residual = np.array([offsets.get(level, 0.0) for level in at[:, 0]])
    fitted = fit_smooth_process(at, residual, list_scale_candidates(*SCALES))
    assert fitted.scales.own >= 0.06
    assert np.abs(fitted.predict(places([0.7]))).max() < 0.075  # half of its neighbour's offset


def test_one_wild_step_changes_little():
    at = places([0.0, 0.3, 0.6])
    residual = np.zeros(len(at))
    residual[7] = 2.0
    assert np.abs(fit_smooth_process(at, residual, list_scale_candidates(*SCALES)).predict(places([0.3]))).max() < 0.1


def test_what_networks_have_in_common_is_followed_and_returns_to_zero_far_away():
    at = np.random.default_rng(0).uniform(0.0, 2.0, (40, 3))
    fitted = fit_transfer_process(at, np.full(40, 0.2))
    assert fitted.predict(at).mean() == pytest.approx(0.2, abs=0.06)
    assert np.abs(fitted.predict(at + 30.0)).max() < 1e-6


def test_one_wild_step_pulls_little():
    at = np.random.default_rng(1).uniform(0.0, 2.0, (40, 3))
    residual = np.zeros(40)
    residual[7] = 2.0
    assert np.abs(fit_transfer_process(at, residual).predict(at)).max() < 0.15


def test_a_place_is_batch_traffic_per_image_and_intensity():
    terms = np.array([[1.0, 8.0, 0.0, 0.0, 400.0, 0.0]])
    assert build_transfer_points(terms, np.array([1200.0]))[0] == pytest.approx(np.log([8.0, 50.0, 3.0]))
