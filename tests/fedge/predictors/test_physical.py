"""The physical predictor keeps every predictor's promises, and learns a measured board from few modes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from contracts.boards import MAXN, another_workload, coefficients, grid
from contracts.predictor import PredictorContract, measured

from fedge.costs.profiles import priors_for
from fedge.devices.catalogue import load_catalogue
from fedge.interfaces import Predictor
from fedge.physics.model import TIME_NAMES, Coefficients, power_w, step_s
from fedge.predictors import PREDICTORS
from fedge.predictors.physical import PhysicalPredictor
from fedge.profiles.table import read_table
from fedge.registry import load
from fedge.types import Floats, Modes

TRUTH = another_workload(np.random.default_rng(9))
_SECONDS = np.array([name.endswith("_s") for name in TIME_NAMES])
DOUBLE = Coefficients(coefficients().time + np.log(2.0) * _SECONDS, coefficients().power)
"""The made-up board's coefficients for a workload of twice as long steps."""


class TestPhysicalPredictor(PredictorContract):
    @pytest.fixture
    def predictor(self) -> Predictor:
        return PhysicalPredictor([coefficients(), DOUBLE], MAXN, idle_w=12.0)

    @pytest.fixture
    def modes(self) -> Modes:
        return Modes(grid().knobs[::17])

    @pytest.fixture
    def step_s(self, modes: Modes) -> Floats:
        return step_s(TRUTH, MAXN, modes)

    @pytest.fixture
    def power_w(self, modes: Modes) -> Floats:
        return power_w(TRUTH, MAXN, modes)


def test_it_is_found_by_its_name() -> None:
    assert load("predictor", "physical", PREDICTORS) is PhysicalPredictor


def test_the_prior_that_explains_the_measurements_takes_over() -> None:
    modes = grid()
    slow = step_s(DOUBLE, MAXN, modes)
    predictor = PhysicalPredictor([coefficients(), DOUBLE], MAXN, idle_w=12.0)
    seen = measured(modes, slow, power_w(DOUBLE, MAXN, modes), [0, 200, 400, 629])

    before, after = predictor.fit([]).predict(modes), predictor.fit(seen).predict(modes)

    assert np.mean(np.abs(before.step_s / slow - 1)) > 0.2
    assert np.mean(np.abs(after.step_s / slow - 1)) < 0.05
    assert predictor.weights_[-1] > 0.5


def test_the_first_prior_counts_most_before_anything_is_measured() -> None:
    predictor = PhysicalPredictor([coefficients(), DOUBLE, DOUBLE], MAXN, idle_w=12.0).fit([])

    assert predictor.weights_.sum() == pytest.approx(1.0)
    assert (np.diff(predictor.weights_) < 0).all()


def test_two_priors_that_disagree_are_less_sure_than_one() -> None:
    one = PhysicalPredictor([coefficients()], MAXN, idle_w=12.0).fit([]).predict(grid())
    two = PhysicalPredictor([coefficients(), DOUBLE], MAXN, idle_w=12.0).fit([]).predict(grid())

    assert (two.step_s_sd_log > one.step_s_sd_log).all()


def test_a_prior_is_raised_to_the_idle_power_that_the_board_shows() -> None:
    modes = grid()
    low, high = (
        PhysicalPredictor([coefficients()], MAXN, idle_w=idle).fit([]).predict(modes).power_w for idle in (1.0, 20.0)
    )

    np.testing.assert_allclose(low, power_w(coefficients(), MAXN, modes))
    np.testing.assert_allclose(high - low, 8.0)


@pytest.mark.parametrize(
    ("device", "folder", "workload"),
    [
        ("agx-orin-64gb", "agx-orin", "mobilenetv3l-gld23k"),
        ("agx-orin-64gb", "agx-orin", "yolov8n-coco"),
        ("agx-xavier", "agx-xavier", "vit-b16-cifar10"),
        ("orin-nano", "orin-nano", "resnet18-imagenet"),
    ],
)
def test_ten_measured_modes_tell_the_others_of_a_real_board(
    device: str, folder: str, workload: str, profiles_root: Path
) -> None:
    specs = load_catalogue()
    table = read_table(profiles_root / folder / "train" / f"{workload}.csv")
    priors = [prior.coefficients for prior in priors_for(specs[device], workload, specs)]
    predictor = PhysicalPredictor(priors, specs[device].maxn, specs[device].idle_w.value)
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
