"""The characterisation paper's lines: exact where the truth is a line, bounded where a line dives below zero."""

from __future__ import annotations

import numpy as np
import pytest
from contracts.baselines import MadeUpBoard, mape, real_table
from contracts.boards import MAXN, grid
from contracts.predictor import BaselineContract, measured
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors.linear_regression import POWER_CEILING, LinearPredictor
from fedge.predictors.measurement_columns import PREDICTION_FLOOR
from fedge.protocols import Predictor
from fedge.types import Measurement


class TestLinearPredictor(MadeUpBoard, BaselineContract):
    @pytest.fixture
    def predictor(self) -> Predictor:
        return LinearPredictor(PriorKnowledge(MAXN))


def test_a_board_whose_time_and_energy_are_lines_is_predicted_exactly():
    modes = grid()
    step_s = 2.0 - modes.knobs @ np.array([0.02, 1e-4, 5e-4, 1e-4])
    power_w = (5.0 + modes.knobs @ np.array([0.1, 1e-3, 2e-3, 5e-4])) / step_s
    predictor = LinearPredictor(PriorKnowledge(MAXN))

    said = predictor.fit(measured(modes, step_s, power_w, [0, 100, 211, 322, 433, 544, 629])).predict(modes)

    np.testing.assert_allclose(said.step_s, step_s, rtol=1e-6)
    np.testing.assert_allclose(said.power_w, power_w, rtol=1e-6)


@given(st.lists(st.tuples(st.integers(0, 629), st.floats(0.5, 2.0)), min_size=6, max_size=12, unique_by=lambda p: p[0]))
@settings(max_examples=30)
def test_no_other_line_is_closer_to_the_measured_times(seen):
    modes = grid()
    rows, seconds = [row for row, _ in seen], np.array([s for _, s in seen])
    predictor = LinearPredictor(PriorKnowledge(MAXN)).fit(
        [Measurement(modes[r], 40, s, 20.0) for r, s in zip(rows, seconds, strict=True)]
    )
    knobs = modes.knobs[rows]
    with_one = np.column_stack([np.ones(len(rows)), knobs / knobs.max(axis=0)])
    best = np.sum((with_one @ np.linalg.pinv(with_one) @ seconds - seconds) ** 2)

    assert np.sum((predictor.time_.predict(knobs) - seconds) ** 2) <= best + 1e-9


@given(st.lists(st.tuples(st.integers(0, 629), st.floats(0.01, 10.0), st.floats(1.0, 60.0)), min_size=1, max_size=8))
@settings(max_examples=40)
def test_predictions_stay_above_half_the_least_and_below_twice_the_largest_measured(
    seen,
):
    modes = grid()
    watts = [w for _, _, w in seen]
    said = (
        LinearPredictor(PriorKnowledge(MAXN)).fit([Measurement(modes[i], 40, s, w) for i, s, w in seen]).predict(modes)
    )

    assert (said.step_s >= PREDICTION_FLOOR * min(s for _, s, _ in seen) * (1 - 1e-9)).all()
    assert (said.power_w >= PREDICTION_FLOOR * min(watts) * (1 - 1e-9)).all()
    assert (said.power_w <= POWER_CEILING * max(watts) * (1 + 1e-9)).all()


def test_lines_that_fit_badly_say_so():
    modes = grid()
    rng = np.random.default_rng(0)
    rows = list(rng.choice(len(modes), 60, replace=False))
    line = 2.0 - modes.knobs @ np.array([0.02, 1e-4, 5e-4, 1e-4])
    power_w = np.full(len(modes), 20.0)

    good = LinearPredictor(PriorKnowledge(MAXN)).fit(measured(modes, line, power_w, rows))
    noisy = line * np.exp(0.3 * rng.standard_normal(len(modes)))
    bad = LinearPredictor(PriorKnowledge(MAXN)).fit(measured(modes, noisy, power_w, rows))

    assert good.spreads_[0] < 0.15
    assert bad.spreads_[0] == pytest.approx(0.3, rel=0.3)


def test_on_a_measured_board_the_lines_are_as_poor_as_lines_are(profiles_root):
    time_mape, power_mape = mape(LinearPredictor, real_table(profiles_root, "agx-orin", "yolov8n-coco"), 50, range(10))

    print(f"linear, 50 modes of YOLO: time {time_mape:.1%}, power {power_mape:.1%}")
    assert 0.2 < time_mape < 0.5
    assert power_mape < 0.15
