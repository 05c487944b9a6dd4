"""Margins on slowdowns: from the errors on other workloads, for each mode, with a stated probability."""

from dataclasses import replace

import numpy as np
import pytest

from fedge.costs.cost_profile import load_calibrated_inference, load_calibrated_training
from fedge.costs.layer_estimate import load_timed_steps
from fedge.costs.layered_work import find_known_layers
from fedge.costs.slowdown_margin import CostEvidence, PredictionErrors, compute_margin_t, rotate_predictions
from fedge.costs.table_calibration import build_planning_modes
from fedge.devices.catalogue import find, load_catalogue
from fedge.errors import BadInput
from fedge.modes import find_mode_index
from fedge.physics.time_power_model import TIME_NAMES
from fedge.types import Workload

ORIN = find("agx-orin")
MODES = build_planning_modes(ORIN)
MAXN_ROW = find_mode_index(MODES, ORIN.maxn) or 0


@pytest.fixture(scope="module")
def evidence() -> CostEvidence:
    every = (*load_calibrated_training(), *load_calibrated_inference())
    return CostEvidence(every, load_timed_steps(), load_catalogue())


def workload(name: str, kind: str = "infer", batch_size: int = 16) -> Workload:
    return Workload(name, batch_size, kind, find_known_layers(name, kind))


def test_a_rotation_leaves_out_what_the_workload_is_to_the_evidence(evidence):
    assert evidence.find_left_out(ORIN, workload("resnet50-imagenet")) == "batch"
    assert evidence.find_left_out(ORIN, workload("resnet18-imagenet")) == "workload"
    assert evidence.find_left_out(ORIN, workload("vit-b16-cifar10")) == "family"
    assert evidence.find_left_out(find("nano"), workload("resnet18-imagenet")) == "board"


def test_nothing_of_a_left_out_family_remains(evidence):
    case = next(profile for profile in evidence.calibrated if profile.workload == "resnet18-imagenet")

    rest = evidence.leave_out(case, "resnet18", "family")

    assert not any("resnet" in profile.workload for profile in rest.calibrated)
    assert not any("resnet" in step.network for step in rest.timed)
    assert rest.calibrated


def test_a_measured_batch_size_is_its_own_prediction(evidence):
    (known,) = [
        one
        for one in load_calibrated_inference()
        if (one.device, one.workload, one.batch_size) == (ORIN.name, "resnet50-imagenet", 16)
    ]

    assert evidence.predict(ORIN, workload("resnet50-imagenet")) is known


def test_batch_sizes_share_the_weight_of_their_workload(evidence):
    errors = rotate_predictions(evidence, "workload")

    assert errors.weights.sum() == pytest.approx(1.0)
    assert errors.cases < len(errors.offsets)
    assert errors.offsets.shape == (len(errors.weights), len(TIME_NAMES))


def test_a_margin_grows_with_the_probability_and_is_none_at_maxn(evidence):
    cost = evidence.predict(ORIN, workload("vit-b16-cifar10"))
    errors = rotate_predictions(evidence, "family")

    usual, careful = (errors.compute_margin(cost, ORIN.maxn, MODES, MAXN_ROW, p) for p in (0.9, 0.99))

    assert usual[MAXN_ROW] == 0.0
    others = np.arange(len(MODES)) != MAXN_ROW
    assert (careful[others] > usual[others]).all()
    assert careful[others] / usual[others] == pytest.approx(
        compute_margin_t(errors.cases, 0.99) / compute_margin_t(errors.cases, 0.9)
    )


def test_an_error_of_all_times_alike_needs_no_margin(evidence):
    cost = evidence.predict(ORIN, workload("vit-b16-cifar10"))
    seconds = [name.endswith("_s") for name in TIME_NAMES]
    errors = PredictionErrors(1, np.where(seconds, 0.5, 0.0)[None, :], np.ones(1), "workload")

    assert errors.compute_margin(cost, ORIN.maxn, MODES, MAXN_ROW, 0.95) == pytest.approx(0.0, abs=1e-9)


def test_without_a_case_no_margin_is_enough(evidence):
    cost = evidence.predict(ORIN, workload("vit-b16-cifar10"))
    nothing = rotate_predictions(replace(evidence, calibrated=()), "family")

    assert np.isinf(nothing.compute_margin(cost, ORIN.maxn, MODES, MAXN_ROW, 0.95)).all()


@pytest.mark.parametrize("confidence", [0.4, 1.0])
def test_a_probability_that_cannot_be_kept_is_named(confidence):
    with pytest.raises(BadInput, match="--confidence"):
        compute_margin_t(3, confidence)
