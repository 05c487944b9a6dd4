"""The plain Gaussian process is that of scikit-learn, tunes itself uphill, and learns a power law from few modes."""

from __future__ import annotations

import numpy as np
import pytest
from contracts.baselines import TRUTH, MadeUpBoard, mape, real_table
from contracts.boards import MAXN, grid
from contracts.predictor import BaselineContract, measured
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct, Matern, WhiteKernel

from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.physics.time_power_model import compute_power_w, compute_step_s
from fedge.predictors import gaussian_process
from fedge.predictors.gaussian_process import (
    CONSTANT_SD,
    MOST_TO_LEARN,
    PRIOR,
    SLOPE_SD,
    GaussianProcess,
    GaussianProcessPredictor,
    log_posterior,
)
from fedge.protocols import Predictor
from fedge.types import Floats, Measurement, Modes

TOP = np.array([8.0, 2000.0, 1200.0, 3000.0])


class TestProcessPredictor(MadeUpBoard, BaselineContract):
    @pytest.fixture
    def predictor(self) -> Predictor:
        return GaussianProcessPredictor(PriorKnowledge(MAXN))


def _reference_process(h: Floats) -> GaussianProcessRegressor:
    """The same process in scikit-learn."""
    line = ConstantKernel(SLOPE_SD**2) * DotProduct(sigma_0=CONSTANT_SD / SLOPE_SD)
    bend = ConstantKernel(np.exp(2 * h[0])) * Matern(length_scale=np.exp(h[1:5]), nu=2.5)
    return GaussianProcessRegressor(line + bend + WhiteKernel(np.exp(2 * h[5])), alpha=0.0, optimizer=None)


hyper = st.lists(st.floats(-1.0, 1.0), min_size=6, max_size=6).map(lambda v: PRIOR + np.array(v))


@given(hyper, st.integers(0, 2**31))
@settings(max_examples=20)
def test_the_evidence_is_that_of_scikit_learn_and_its_slope_is_right(h, seed):
    rng = np.random.default_rng(seed)
    x, y = np.log(grid().knobs[rng.integers(0, 630, 7)] / TOP), rng.standard_normal(7)

    value, slope = log_posterior(h, x, y)

    evidence = _reference_process(h).fit(x, y).log_marginal_likelihood_value_ + 3.5 * np.log(2 * np.pi)
    assert value == pytest.approx(evidence - 0.5 * np.sum(((h - PRIOR) / gaussian_process.PRIOR_SD) ** 2), rel=1e-6)
    for d in range(6):
        nudge = 1e-5 * np.eye(6)[d]
        rise = (log_posterior(h + nudge, x, y)[0] - log_posterior(h - nudge, x, y)[0]) / 2e-5
        assert slope[d] == pytest.approx(rise, rel=1e-3, abs=1e-3)


def test_predictions_are_those_of_scikit_learn():
    modes = grid()
    rows = [3, 90, 222, 400, 615]
    seconds = compute_step_s(TRUTH, MAXN, modes)
    fitted = GaussianProcessPredictor(PriorKnowledge(MAXN)).fit(
        measured(modes, seconds, compute_power_w(TRUTH, MAXN, modes), rows)
    )
    log_s, every = np.log(seconds[rows]), np.log(modes.knobs[::50] / TOP)
    reference = _reference_process(fitted.time_.h).fit(np.log(modes.knobs[rows] / TOP), log_s - log_s.mean())

    predictions = fitted.predict(Modes(modes.knobs[::50]))

    mean, sd = reference.predict(every, return_std=True)
    np.testing.assert_allclose(np.log(predictions.step_s), log_s.mean() + mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(predictions.step_s_sd_log, sd, rtol=1e-5)


def test_tuning_goes_uphill_to_where_it_is_flat():
    modes = Modes(grid().knobs[::15])
    x, y = np.log(modes.knobs / TOP), np.log(compute_step_s(TRUTH, MAXN, modes))
    fitted: GaussianProcess = gaussian_process._fit_process(x, y)

    value, slope = log_posterior(fitted.h, x, y - y.mean())

    assert value > log_posterior(PRIOR, x, y - y.mean())[0] + 10
    assert np.abs(slope).max() < 0.5


def test_one_measurement_leaves_the_hyper_parameters_at_their_prior():
    fitted = GaussianProcessPredictor(PriorKnowledge(MAXN)).fit([Measurement(grid()[629], 40, 0.2, 20.0)])

    np.testing.assert_allclose(fitted.time_.h, PRIOR, atol=0.1)
    at_maxn = fitted.predict(Modes(grid().knobs[[629]]))
    assert at_maxn.step_s[0] == pytest.approx(0.2)
    assert at_maxn.step_s_sd_log[0] < 0.05


def test_of_very_many_measurements_a_part_is_learnt():
    modes = grid()
    rows = [*range(630), *range(630)]
    fitted = GaussianProcessPredictor(PriorKnowledge(MAXN)).fit(
        measured(modes, compute_step_s(TRUTH, MAXN, modes), compute_power_w(TRUTH, MAXN, modes), rows)
    )

    assert len(fitted.time_.x) == MOST_TO_LEARN
    assert np.abs(fitted.predict(modes).step_s / compute_step_s(TRUTH, MAXN, modes) - 1).mean() < 0.01


def test_more_modes_than_fit_at_once_are_predicted_in_their_order(monkeypatch):
    modes = grid()
    fitted = GaussianProcessPredictor(PriorKnowledge(MAXN)).fit(
        measured(modes, compute_step_s(TRUTH, MAXN, modes), compute_power_w(TRUTH, MAXN, modes), [0, 100, 300])
    )
    whole = fitted.predict(modes).step_s
    monkeypatch.setattr(gaussian_process, "ROWS_AT_ONCE", 100)

    np.testing.assert_allclose(fitted.predict(modes).step_s, whole)
    assert len(fitted.predict(Modes(modes.knobs[:0])).step_s) == 0


@pytest.mark.parametrize(
    ("board", "workload", "time_limit", "power_limit"),
    [
        ("agx-orin", "mobilenetv3l-gld23k", 0.12, 0.06),
        ("agx-orin", "yolov8n-coco", 0.14, 0.05),
        ("agx-xavier", "vit-b16-cifar10", 0.07, 0.05),
        ("tx2", "vit-b16-cifar10", 0.04, 0.06),
    ],
)
def test_fifty_modes_tell_the_others_of_a_measured_board(board, workload, time_limit, power_limit, profiles_root):
    time_mape, power_mape = mape(GaussianProcessPredictor, real_table(profiles_root, board, workload), 50, range(5))

    print(f"gp, 50 modes of {board} {workload}: time {time_mape:.1%}, power {power_mape:.1%}")
    assert time_mape < time_limit
    assert power_mape < power_limit
