"""The forest stays within what was measured, agrees with it, and is unsure where its trees disagree."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from contracts.baselines import TRUTH, MadeUpBoard, mape, real_table
from contracts.boards import MAXN, grid
from contracts.predictor import BaselineContract, measured

from fedge.errors import BadInput
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.physics.time_power_model import compute_power_w, compute_step_s
from fedge.predictors.forest import ForestPredictor
from fedge.protocols import Predictor
from fedge.types import Modes

ROWS = [0, 50, 111, 200, 333, 450, 520, 629]


class TestForestPredictor(MadeUpBoard, BaselineContract):
    @pytest.fixture
    def predictor(self) -> Predictor:
        return ForestPredictor(PriorKnowledge(MAXN))


@pytest.fixture
def fitted() -> ForestPredictor:
    modes = grid()
    return ForestPredictor(PriorKnowledge(MAXN)).fit(
        measured(modes, compute_step_s(TRUTH, MAXN, modes), compute_power_w(TRUTH, MAXN, modes), ROWS)
    )


def test_a_measured_mode_is_predicted_as_measured(fitted):
    modes = Modes(grid().knobs[ROWS])
    said = fitted.predict(modes)

    np.testing.assert_allclose(said.step_s, compute_step_s(TRUTH, MAXN, modes))
    np.testing.assert_allclose(said.power_w, compute_power_w(TRUTH, MAXN, modes))


def test_nothing_is_predicted_outside_what_was_measured(fitted):
    said, seen = fitted.predict(grid()), Modes(grid().knobs[ROWS])

    for values, truth in (
        (said.step_s, compute_step_s(TRUTH, MAXN, seen)),
        (said.power_w, compute_power_w(TRUTH, MAXN, seen)),
    ):
        assert values.min() >= truth.min() * (1 - 1e-9)
        assert values.max() <= truth.max() * (1 + 1e-9)


def test_a_mode_between_measured_ones_is_less_sure_than_a_measured_one(fitted):
    sd = fitted.predict(grid()).step_s_sd_log
    others = np.setdiff1d(np.arange(len(grid())), ROWS)

    assert sd[ROWS].max() < 0.1
    assert np.median(sd[others]) > 2 * sd[ROWS].max()


def test_the_seed_grows_other_trees():
    modes = grid()
    seen = measured(modes, compute_step_s(TRUTH, MAXN, modes), compute_power_w(TRUTH, MAXN, modes), ROWS)
    first, other = (ForestPredictor(PriorKnowledge(MAXN, seed=seed)).fit(seen).predict(modes).step_s for seed in (0, 1))

    assert not np.array_equal(first, other)


@pytest.mark.slow
def test_fifty_modes_of_a_measured_board_are_enough_for_a_rough_picture(profiles_root):
    time_mape, power_mape = mape(ForestPredictor, real_table(profiles_root, "agx-orin", "yolov8n-coco"), 50, range(5))

    print(f"forest, 50 modes of YOLO: time {time_mape:.1%}, power {power_mape:.1%}")
    assert time_mape < 0.13
    assert power_mape < 0.06


def test_without_scikit_learn_it_says_which_predictor_to_take(monkeypatch):
    for name in ("sklearn", "sklearn.ensemble"):
        monkeypatch.setitem(sys.modules, name, None)
    modes = grid()
    few = measured(modes, compute_step_s(TRUTH, MAXN, modes), compute_power_w(TRUTH, MAXN, modes), ROWS)

    with pytest.raises(BadInput, match=r"predictor: got forest, .*boards never have it: take the predictor fedge"):
        ForestPredictor(PriorKnowledge(MAXN)).fit(few)
