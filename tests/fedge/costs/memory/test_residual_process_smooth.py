"""The process follows what is smooth, and keeps a level's own offset and a wild step to themselves."""

from __future__ import annotations

import numpy as np

from fedge.costs.memory.residual_process import fit_smooth_process, list_scale_candidates

SCALES = (0.02, 0.05, 0.05, 0.5)


def places(levels: list[float]) -> np.ndarray:
    return np.array([[level, batch] for level in levels for batch in np.log([2, 8, 16, 32, 64, 128])])


def test_a_smooth_curve_is_carried_to_levels_between() -> None:
    at, between = places([0.0, 0.2, 0.4, 0.6, 0.8]), places([0.3, 0.5])

    def curve(where: np.ndarray) -> np.ndarray:
        return 0.08 * np.sin(3 * where[:, 0]) + 0.03 * np.cos(where[:, 1])

    found = fit_smooth_process(at, curve(at), list_scale_candidates(*SCALES)).predict(between)
    assert np.abs(found - curve(between)).max() < 0.02


def test_a_level_that_is_off_by_itself_does_not_pull_its_neighbours() -> None:
    at = places([0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9])
    offsets = {0.15: 0.1, 0.45: -0.12, 0.75: 0.15}
    residual = np.array([offsets.get(level, 0.0) for level in at[:, 0]])
    fitted = fit_smooth_process(at, residual, list_scale_candidates(*SCALES))
    assert fitted.scales.own >= 0.06
    assert np.abs(fitted.predict(places([0.7]))).max() < 0.075  # half of its neighbour's offset


def test_one_wild_step_changes_little() -> None:
    at = places([0.0, 0.3, 0.6])
    residual = np.zeros(len(at))
    residual[7] = 2.0
    assert np.abs(fit_smooth_process(at, residual, list_scale_candidates(*SCALES)).predict(places([0.3]))).max() < 0.1
