"""The physical predictor keeps every predictor's promises, and learns a measured board from few modes."""

from __future__ import annotations

import numpy as np
import pytest
from contracts.baselines import MadeUpBoard
from contracts.boards import MAXN, another_workload, coefficients, grid
from contracts.predictor import PredictorContract, measured
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.costs.cost_priors import build_priors
from fedge.devices.catalogue import load_catalogue
from fedge.devices.tables.mode_table import read_mode_table
from fedge.errors import BadInput
from fedge.physics.model_fit import pool_measurements
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.physics.time_power_model import TIME_NAMES, Coefficients, compute_power_w, compute_step_s
from fedge.predictors.physical_predictor import PhysicalPredictor
from fedge.protocols import Predictor
from fedge.types import Measurement, Modes

TRUTH = another_workload(np.random.default_rng(9))
_SECONDS = np.array([name.endswith("_s") for name in TIME_NAMES])
DOUBLE = Coefficients(coefficients().time + np.log(2.0) * _SECONDS, coefficients().power)
"""The made-up board's coefficients for a workload of twice as long steps."""


class TestPhysicalPredictor(MadeUpBoard, PredictorContract):
    @pytest.fixture
    def predictor(self) -> Predictor:
        return PhysicalPredictor(PriorKnowledge(MAXN, (coefficients(), DOUBLE), idle_w=12.0))


def test_without_a_prior_it_says_what_it_lacks():
    with pytest.raises(BadInput, match="the predictor's prior: got nothing; at least one calibrated workload"):
        PhysicalPredictor(PriorKnowledge(MAXN)).fit([])


def test_the_first_prior_counts_most_before_anything_is_measured():
    predictor = PhysicalPredictor(PriorKnowledge(MAXN, (coefficients(), DOUBLE, DOUBLE), idle_w=12.0)).fit([])

    assert predictor.weights_.sum() == pytest.approx(1.0)
    assert (np.diff(predictor.weights_) < 0).all()


@given(st.lists(st.tuples(st.integers(0, 629), st.floats(0.5, 2.0), st.floats(0.5, 2.0)), max_size=6))
@settings(max_examples=25)
def test_weights_are_positive_and_sum_to_one_whatever_was_measured(seen):
    modes = grid()
    t, p = compute_step_s(TRUTH, MAXN, modes), compute_power_w(TRUTH, MAXN, modes)
    measurements = [Measurement(modes[i], 40, a * float(t[i]), b * float(p[i])) for i, a, b in seen]

    predictor = PhysicalPredictor(PriorKnowledge(MAXN, (coefficients(), DOUBLE, TRUTH), idle_w=12.0)).fit(measurements)

    assert (predictor.weights_ > 0).all()
    assert predictor.weights_.sum() == pytest.approx(1.0)
    assert len(predictor.weights_) == len(predictor.posteriors_)


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_the_one_prior_that_fits_wins_wherever_it_stands(place):
    modes = grid()
    others = [another_workload(np.random.default_rng(seed)) for seed in (1, 2, 3)]
    priors = [*others[:place], TRUTH, *others[place:]]
    seen = measured(
        modes, compute_step_s(TRUTH, MAXN, modes), compute_power_w(TRUTH, MAXN, modes), [0, 77, 200, 300, 400, 500, 629]
    )

    predictor = PhysicalPredictor(PriorKnowledge(MAXN, tuple(priors), idle_w=1.0)).fit(seen)
    alone = PhysicalPredictor(PriorKnowledge(MAXN, (TRUTH,), idle_w=1.0)).fit(seen)

    winner = predictor.posteriors_[int(np.argmax(predictor.weights_))]
    np.testing.assert_allclose(winner.coefficients.time, alone.posteriors_[0].coefficients.time)
    assert np.mean(np.abs(predictor.predict(modes).step_s / alone.predict(modes).step_s - 1)) < 0.05


def test_priors_that_do_not_explain_the_measurements_are_left_out():
    modes = grid()
    tenfold = Coefficients(coefficients().time + np.log(10.0) * _SECONDS, coefficients().power)
    seen = measured(
        modes,
        compute_step_s(coefficients(), MAXN, modes),
        compute_power_w(coefficients(), MAXN, modes),
        [0, 100, 300, 629],
    )

    predictor = PhysicalPredictor(PriorKnowledge(MAXN, (tenfold, coefficients()), idle_w=12.0)).fit(seen)

    assert len(predictor.weights_) == 1
    np.testing.assert_allclose(predictor.predict(modes).step_s, compute_step_s(coefficients(), MAXN, modes), rtol=0.05)


def test_a_mixture_is_the_weighted_mean_and_spread_of_its_parts():
    modes = grid()
    mixture = PhysicalPredictor(PriorKnowledge(MAXN, (coefficients(), DOUBLE), idle_w=12.0)).fit([])
    parts = [
        PhysicalPredictor(PriorKnowledge(MAXN, (c,), idle_w=12.0)).fit([]).predict(modes)
        for c in (coefficients(), DOUBLE)
    ]

    mean = sum(w * np.log(part.step_s) for w, part in zip(mixture.weights_, parts, strict=True))
    variance = sum(
        w * (part.step_s_sd_log**2 + (np.log(part.step_s) - mean) ** 2)
        for w, part in zip(mixture.weights_, parts, strict=True)
    )

    np.testing.assert_allclose(mixture.predict(modes).step_s, np.exp(mean))
    np.testing.assert_allclose(mixture.predict(modes).step_s_sd_log, np.sqrt(variance))


def test_repeats_of_a_mode_are_pooled_to_their_median_and_surer_than_one():
    mode, other = grid()[300], grid()[629]
    repeats = [Measurement(mode, 40, t, 20.0) for t in (0.10, 0.11, 0.30)]

    seen = pool_measurements([*repeats, Measurement(other, 40, 0.05, 30.0)], MAXN)

    np.testing.assert_allclose(np.exp(seen.time.log), [0.11, 0.05])
    np.testing.assert_allclose(np.exp(seen.power.log), [20.0, 30.0])
    assert seen.correlation.shape == (2, 2)
    for rows in (seen.time, seen.power):
        assert rows.x.shape == (2, 4)
        assert rows.noise_sd[0] == pytest.approx(rows.noise_sd[1] / np.sqrt(3))


def test_a_throttled_repeat_is_left_out_where_there_is_an_unthrottled_one():
    mode = grid()[300]
    cool, hot = Measurement(mode, 40, 0.1, 20.0), Measurement(mode, 40, 0.2, 15.0, 97.0, throttled=True)

    both, only_hot = pool_measurements([hot, cool, hot], MAXN), pool_measurements([hot], MAXN)

    np.testing.assert_allclose(np.exp(both.time.log), [0.1])
    np.testing.assert_allclose(np.exp(only_hot.time.log), [0.2])
    np.testing.assert_allclose(np.exp(only_hot.power.log), [15.0])
    assert both.time.noise_sd[0] < only_hot.time.noise_sd[0] / 5
    assert both.power.noise_sd[0] < only_hot.power.noise_sd[0] / 5


@pytest.mark.parametrize(
    ("device", "folder", "workload"),
    [
        ("agx-orin-64gb", "agx-orin", "mobilenetv3l-gld23k"),
        ("agx-orin-64gb", "agx-orin", "yolov8n-coco"),
        ("agx-xavier", "agx-xavier", "vit-b16-cifar10"),
        ("orin-nano", "orin-nano", "resnet18-imagenet"),
    ],
)
def test_ten_measured_modes_tell_the_others_of_a_real_board(device, folder, workload, profiles_root):
    specs = load_catalogue()
    table = read_mode_table(profiles_root / folder / "train" / f"{workload}.csv")
    priors = [prior.coefficients for prior in build_priors(specs[device], workload, specs)]
    predictor = PhysicalPredictor(PriorKnowledge(specs[device].maxn, tuple(priors), idle_w=specs[device].idle_w.value))
    errors = []
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(np.flatnonzero(table.modes.knobs[:, 1] >= 400))
        seen, held_out = list(order[:10]), order[10:]
        predictions = predictor.fit(measured(table.modes, table.step_s, table.power_w, seen)).predict(
            Modes(table.modes.knobs[held_out])
        )
        errors.append([
            np.mean(np.abs(predictions.step_s / table.step_s[held_out] - 1)),
            np.mean(np.abs(predictions.power_w / table.power_w[held_out] - 1)),
        ])  # fmt: skip
    time_mape, power_mape = np.median(errors, axis=0)

    print(f"{device} {workload}: time {time_mape:.1%}, power {power_mape:.1%} after 10 random modes")
    assert time_mape < 0.12
    assert power_mape < 0.06
