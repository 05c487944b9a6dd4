"""A forward pass is a third of a training step, by the same counting.

Rescaling follows the data sheet, term by term; every board gets every workload.
"""

import dataclasses

import numpy as np
import pytest
from contracts.boards import at_maxn

from fedge.costs.cost_profile import load_calibrated_training
from fedge.costs.cost_scaling import (
    board_distance,
    find_cost_profile,
    find_nearest_profile,
    forward_size_of_batch,
    load_forward_sizes,
    load_workload_sizes,
    scale_to_board,
    scale_to_workload,
)
from fedge.devices.catalogue import load_catalogue
from fedge.errors import UnknownName
from fedge.physics.time_power_model import POWER_NAMES, TIME_NAMES, compute_idle_ratio
from fedge.types import DeviceSpec, LabelledValue, Modes


@pytest.mark.parametrize("name", sorted(load_workload_sizes()))
def test_three_forward_passes_are_a_training_step(name):
    step = load_workload_sizes()[name]
    forward = forward_size_of_batch(load_forward_sizes()[name], step.batch_size)

    assert 3 * forward.gflop_per_step == pytest.approx(step.gflop_per_step, rel=1e-3)
    assert 3 * forward.gbyte_per_step == pytest.approx(step.gbyte_per_step, rel=1e-3)


SPECS = load_catalogue()
ORIN = SPECS["agx-orin-64gb"]
PROFILE = next(p for p in load_calibrated_training() if p.device == ORIN.name)


def _with(**figures: float) -> DeviceSpec:
    changed = {
        name: LabelledValue(getattr(ORIN, name).value * ratio, "estimated", "test") for name, ratio in figures.items()
    }
    return dataclasses.replace(ORIN, name="other", **changed)


def _changed(other: DeviceSpec) -> dict[str, float]:
    scaled = scale_to_board(PROFILE, ORIN, other).coefficients
    time = dict(zip(TIME_NAMES, np.exp(scaled.time - PROFILE.coefficients.time), strict=True))
    power = dict(zip(POWER_NAMES, np.exp(scaled.power - PROFILE.coefficients.power), strict=True))
    return {name: ratio for name, ratio in (time | power).items() if not np.isclose(ratio, 1.0)}


@pytest.mark.parametrize(
    ("figure", "names"),
    [
        ("gpu_gflops", {"gpu_s"}),
        ("mem_gbps", {"mem_s"}),
        ("cpu_score", {"prep_s", "launch_s", "host_s", "fixed_s"}),
    ],
)
def test_half_a_figure_doubles_its_own_seconds(figure, names):
    changed = _changed(_with(**{figure: 0.5}))

    assert set(changed) == names
    assert list(changed.values()) == pytest.approx([2.0] * len(names))


def test_fewer_cores_slow_preprocessing_alone():
    changed = _changed(dataclasses.replace(_with(), cores=tuple(range(1, 7))))

    assert set(changed) == {"prep_s"}
    assert changed["prep_s"] > 1.5


def test_idle_watts_follow_idle_power_and_busy_watts_the_rest():
    half = _changed(_with(idle_w=0.5, max_w=0.5))

    assert all(ratio == pytest.approx(0.5) for ratio in half.values())
    assert set(half) == {name for name in POWER_NAMES if name.endswith("_w")}
    assert "static_w" not in _changed(_with(max_w=0.8))


def test_a_board_is_nearest_to_itself():
    assert board_distance(ORIN, ORIN) == 0.0
    for profile in load_calibrated_training():
        assert find_nearest_profile(load_calibrated_training(), SPECS[profile.device], SPECS).device == profile.device


def test_another_workload_stretches_every_second_and_no_watt():
    guess = scale_to_workload(PROFILE, "new", 4, 3.0)

    seconds = np.array([name.endswith("_s") for name in TIME_NAMES])
    np.testing.assert_allclose(guess.coefficients.time - PROFILE.coefficients.time, np.log(3.0) * seconds)
    np.testing.assert_array_equal(guess.coefficients.power, PROFILE.coefficients.power)
    assert (guess.workload, guess.batch_size, guess.label) == ("new", 4, "estimated")


CALIBRATED = load_calibrated_training()
WORKLOADS = sorted({profile.workload for profile in CALIBRATED})


@pytest.mark.parametrize("profile", CALIBRATED, ids=lambda profile: f"{profile.device}--{profile.workload}")
def test_a_calibrated_board_gets_its_own_coefficients(profile):
    assert find_cost_profile(SPECS[profile.device], profile.workload, SPECS) is profile


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("name", sorted(SPECS))
def test_every_board_gets_every_workload_at_a_power_it_could_draw(name, workload):
    spec = SPECS[name]
    profile = find_cost_profile(spec, workload, SPECS)
    seconds, watts = at_maxn(profile.coefficients, spec.maxn)

    assert 0.02 < seconds < 10
    assert spec.idle_w.value < watts < 1.15 * spec.max_w.value
    assert compute_idle_ratio(profile.coefficients, spec.maxn, Modes(np.array([[2, 400, 200, 800.0]])))[0] < 1


def test_an_estimate_says_what_it_was_scaled_from():
    estimate = find_cost_profile(SPECS["nano"], "resnet18-imagenet", SPECS)

    assert estimate.label == "estimated"
    assert estimate.device == "nano"
    assert estimate.source.startswith("scaled from orin-nano's resnet18-imagenet")
    assert estimate.time_mape is None
    assert estimate.evidence is None


def test_a_workload_that_nobody_measured_is_refused_with_the_known_ones():
    with pytest.raises(UnknownName, match="known: mobilenetv3l-gld23k, resnet18-imagenet"):
        find_cost_profile(SPECS["nano"], "gpt-5", SPECS)
