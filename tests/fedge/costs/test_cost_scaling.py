"""Rescaling follows the data sheet, term by term."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fedge.costs.cost_profile import load_calibrated_training
from fedge.costs.cost_scaling import board_distance, find_nearest_profile, scale_to_board, scale_to_workload
from fedge.devices.catalogue import load_catalogue
from fedge.physics.time_power_model import POWER_NAMES, TIME_NAMES
from fedge.types import DeviceSpec, LabelledValue

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


def test_the_same_figures_change_nothing() -> None:
    assert _changed(_with()) == {}


@pytest.mark.parametrize(
    ("figure", "names"),
    [
        ("gpu_gflops", {"gpu_s"}),
        ("mem_gbps", {"mem_s"}),
        ("cpu_score", {"prep_s", "launch_s", "host_s", "fixed_s"}),
    ],
)
def test_half_a_figure_doubles_its_own_seconds(figure: str, names: set[str]) -> None:
    changed = _changed(_with(**{figure: 0.5}))

    assert set(changed) == names
    assert list(changed.values()) == pytest.approx([2.0] * len(names))


def test_fewer_cores_slow_preprocessing_alone() -> None:
    changed = _changed(dataclasses.replace(_with(), cores=tuple(range(1, 7))))

    assert set(changed) == {"prep_s"}
    assert changed["prep_s"] > 1.5


def test_idle_watts_follow_idle_power_and_busy_watts_the_rest() -> None:
    half = _changed(_with(idle_w=0.5, max_w=0.5))

    assert all(ratio == pytest.approx(0.5) for ratio in half.values())
    assert set(half) == {name for name in POWER_NAMES if name.endswith("_w")}
    assert "static_w" not in _changed(_with(max_w=0.8))


def test_a_board_is_nearest_to_itself() -> None:
    assert board_distance(ORIN, ORIN) == 0.0
    for profile in load_calibrated_training():
        assert find_nearest_profile(load_calibrated_training(), SPECS[profile.device], SPECS).device == profile.device


def test_another_workload_stretches_every_second_and_no_watt() -> None:
    guess = scale_to_workload(PROFILE, "new", 4, 3.0)

    seconds = np.array([name.endswith("_s") for name in TIME_NAMES])
    np.testing.assert_allclose(guess.coefficients.time - PROFILE.coefficients.time, np.log(3.0) * seconds)
    np.testing.assert_array_equal(guess.coefficients.power, PROFILE.coefficients.power)
    assert (guess.workload, guess.batch_size, guess.label) == ("new", 4, "estimated")
