"""Boards get calibrated coefficients, or sensible estimates."""

from __future__ import annotations

import numpy as np
import pytest

from fedge.costs.cost_lookup import CostProfile, find_cost_profile, load_calibrated_training
from fedge.costs.workload_sizes import load_workload_sizes
from fedge.devices.catalogue import load_catalogue
from fedge.errors import UnknownName
from fedge.physics.time_power_model import compute_idle_ratio, compute_power_w, compute_step_s
from fedge.types import DeviceSpec, Modes

SPECS = load_catalogue()
CALIBRATED = load_calibrated_training()
WORKLOADS = sorted({profile.workload for profile in CALIBRATED})


def _at_maxn(profile: CostProfile, spec: DeviceSpec) -> tuple[float, float]:
    top = spec.maxn
    mode = Modes(np.array([[top.cores, top.cpu_mhz, top.gpu_mhz, top.mem_mhz]]))
    return float(compute_step_s(profile.coefficients, top, mode)[0]), float(
        compute_power_w(profile.coefficients, top, mode)[0]
    )


@pytest.mark.parametrize("profile", CALIBRATED, ids=lambda profile: f"{profile.device}--{profile.workload}")
def test_a_calibrated_board_gets_its_own_coefficients(profile: CostProfile) -> None:
    assert find_cost_profile(SPECS[profile.device], profile.workload, SPECS) is profile


def test_slower_boards_are_estimated_slower_at_resnet18() -> None:
    seconds = [
        _at_maxn(find_cost_profile(SPECS[name], "resnet18-imagenet", SPECS), SPECS[name])[0]
        for name in ("agx-orin-64gb", "agx-xavier", "xavier-nx", "nano")
    ]

    assert seconds == sorted(seconds)
    assert 0.5 < seconds[-1] < 2.5


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("name", sorted(SPECS))
def test_every_board_gets_every_workload_at_a_power_it_could_draw(name: str, workload: str) -> None:
    spec = SPECS[name]
    profile = find_cost_profile(spec, workload, SPECS)
    seconds, watts = _at_maxn(profile, spec)

    assert 0.02 < seconds < 10
    assert spec.idle_w.value < watts < 1.15 * spec.max_w.value
    assert compute_idle_ratio(profile.coefficients, spec.maxn, Modes(np.array([[2, 400, 200, 800.0]])))[0] < 1


def test_an_estimate_says_what_it_was_scaled_from() -> None:
    estimate = find_cost_profile(SPECS["nano"], "resnet18-imagenet", SPECS)

    assert estimate.label == "estimated"
    assert estimate.device == "nano"
    assert estimate.source.startswith("scaled from orin-nano's resnet18-imagenet")
    assert estimate.time_mape is None
    assert estimate.evidence is None


def test_a_workload_that_nobody_measured_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="known: mobilenetv3l-gld23k, resnet18-imagenet"):
        find_cost_profile(SPECS["nano"], "gpt-5", SPECS)


def test_every_calibrated_workload_has_its_size_at_the_same_batch() -> None:
    sizes = load_workload_sizes()

    for profile in CALIBRATED:
        assert sizes[profile.workload].batch_size == profile.batch_size
