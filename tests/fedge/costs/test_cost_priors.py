"""Inference costs per batch size: calibrated, between and beyond, on other boards, and priors that never saw them.

What is believed of a workload beforehand never saw it, and begins with its layers where they are known.
"""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from contracts.boards import at_maxn
from hypothesis import given
from hypothesis import strategies as st

from fedge.costs.cost_priors import BATCH_SPREAD, build_inference_priors, build_priors, estimate_inference_cost
from fedge.costs.cost_profile import CostProfile, load_calibrated_inference, load_calibrated_training
from fedge.costs.cost_scaling import load_workload_sizes
from fedge.costs.layered_work import find_known_layers, find_profile_network
from fedge.devices.catalogue import load_catalogue
from fedge.devices.tables.mode_table import read_mode_table
from fedge.errors import BadInput, UnknownName
from fedge.modes import build_grid
from fedge.physics.time_power_model import Coefficients, compute_power_w, compute_step_s
from fedge.types import DeviceSpec, Floats, ProfileTable

SPECS = load_catalogue()
ORIN = SPECS["agx-orin-64gb"]
CALIBRATED = load_calibrated_inference()
WORKLOADS = ("mobilenetv3l-gld23k", "resnet50-imagenet")
SIZES = (1, 4, 16, 32, 64)


def _label(profile: CostProfile) -> str:
    return f"{profile.workload}--b{profile.batch_size}"


def _seconds(profile: CostProfile, spec: DeviceSpec = ORIN) -> float:
    return at_maxn(profile.coefficients, spec.maxn)[0]


def _table(root: Path, workload: str, batch_size: int) -> ProfileTable:
    path = root / "agx-orin" / "infer" / f"{workload}.csv"
    if not path.exists():
        pytest.skip(f"no {path}")
    return read_mode_table(path, batch_size=batch_size)


def _errors(profile: CostProfile, table: ProfileTable) -> tuple[Floats, Floats]:
    of = profile.coefficients
    return (
        np.abs(compute_step_s(of, ORIN.maxn, table.modes) / table.step_s - 1),
        np.abs(compute_power_w(of, ORIN.maxn, table.modes) / table.power_w - 1),
    )


def test_two_workloads_ship_at_five_batch_sizes_with_their_errors():
    assert [(p.workload, p.batch_size) for p in CALIBRATED] == [(name, size) for name in WORKLOADS for size in SIZES]
    for profile in CALIBRATED:
        assert (profile.device, profile.kind, profile.label) == (ORIN.name, "infer", "calibrated")
        assert profile.evidence.origin
        assert profile.time_mape <= 0.075
        assert profile.power_mape <= 0.075
        assert profile.residual_time_sd_log <= 0.045
        assert profile.residual_power_sd_log <= 0.055


@pytest.mark.parametrize("profile", CALIBRATED, ids=_label)
def test_shipped_coefficients_have_the_errors_that_they_tell(profile, profiles_root):
    table = _table(profiles_root, profile.workload, profile.batch_size)
    time, power = _errors(profile, table)

    assert profile.evidence.sha256 == table.sha256
    assert time.mean() == pytest.approx(profile.time_mape, abs=1e-4)
    assert power.mean() == pytest.approx(profile.power_mape, abs=1e-4)
    assert np.median(time) <= 0.03
    assert np.median(power) <= 0.04


@pytest.mark.parametrize("profile", CALIBRATED, ids=_label)
def test_a_calibrated_batch_size_gets_its_own_coefficients(profile):
    assert estimate_inference_cost(ORIN, profile.workload, profile.batch_size, SPECS) is profile


@given(st.sampled_from(WORKLOADS), st.integers(2, 127))
def test_a_larger_batch_takes_longer_but_less_per_sample(workload, size):
    here = _seconds(estimate_inference_cost(ORIN, workload, size, SPECS))
    larger = _seconds(estimate_inference_cost(ORIN, workload, size + 1, SPECS))

    assert 0.95 * here < larger
    assert larger / (size + 1) <= 1.02 * here / size


@pytest.mark.parametrize("size", [2, 8, 24, 48])
def test_between_two_sizes_the_logarithms_are_linear(size):
    below = max(known for known in SIZES if known <= size)
    above = min(known for known in SIZES if known >= size)
    a, b, mixed = (estimate_inference_cost(ORIN, "resnet50-imagenet", s, SPECS) for s in (below, above, size))
    share = math.log(size / below) / math.log(above / below)

    np.testing.assert_allclose(mixed.coefficients.time, (1 - share) * a.coefficients.time + share * b.coefficients.time)
    np.testing.assert_allclose(
        mixed.coefficients.power, (1 - share) * a.coefficients.power + share * b.coefficients.power
    )
    assert (mixed.label, mixed.batch_size, mixed.evidence) == ("estimated", size, None)
    assert mixed.source.startswith(f"interpolated between batch sizes {below} and {above} of resnet50-imagenet")
    assert mixed.residual_time_sd_log == max(BATCH_SPREAD, a.residual_time_sd_log, b.residual_time_sd_log)


def test_beyond_the_last_size_by_a_factor_two_and_no_further():
    twice = estimate_inference_cost(ORIN, "resnet50-imagenet", 128, SPECS)
    last = estimate_inference_cost(ORIN, "resnet50-imagenet", 64, SPECS)

    assert twice.source.startswith("extrapolated from batch size 64")
    assert twice.label == "estimated"
    assert 1.8 < _seconds(twice) / _seconds(last) <= 2.0
    for size in (0, -4, 129):
        with pytest.raises(BadInput, match=r"batch size of resnet50-imagenet: got .*; calibrated: 1, 4, 16, 32, 64"):
            estimate_inference_cost(ORIN, "resnet50-imagenet", size, SPECS)


@pytest.mark.parametrize("name", sorted(SPECS))
@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_carried_cost_is_one_that_the_board_can_have_in_every_mode(workload, name):
    spec = SPECS[name]
    modes = build_grid(spec)
    for size in (1, 2, *SIZES, 128):
        cost = estimate_inference_cost(spec, workload, size, SPECS)
        watts, seconds = (of(cost.coefficients, spec.maxn, modes) for of in (compute_power_w, compute_step_s))

        assert (cost.device, cost.kind, cost.batch_size) == (name, "infer", size)
        assert (cost.label == "calibrated") == (name == ORIN.name and size in SIZES)
        assert name == ORIN.name or cost.source.startswith(f"scaled from agx-orin-64gb's {workload}")
        assert 0.9 * spec.idle_w.value < watts.min() < watts.max() <= spec.max_w.value
        assert seconds.min() > 0.015
        assert seconds.max() < 1.0 + size


def test_a_workload_that_nobody_inferred_is_refused_with_the_known_ones():
    with pytest.raises(UnknownName, match="known: mobilenetv3l-gld23k, resnet50-imagenet"):
        estimate_inference_cost(ORIN, "yolov8n-coco", 4, SPECS)


@pytest.mark.parametrize("size", [1, 3, 64, 300])
@pytest.mark.parametrize("workload", [*WORKLOADS, "resnet18-imagenet", "unheard-of"])
@pytest.mark.parametrize("name", ["agx-orin-64gb", "nano"])
def test_no_prior_saw_its_workload_and_inference_comes_first(name, workload, size):
    priors = build_inference_priors(SPECS[name], workload, size, SPECS)
    carried = build_inference_priors(SPECS[name], workload, size, SPECS, layered=False)

    by_layers = find_known_layers(workload, "infer") is not None
    assert [prior.source.startswith("layers of ") for prior in priors] == [*[True] * by_layers, *[False] * len(carried)]
    kinds = [prior.source.partition(" of ")[0] for prior in carried]
    assert kinds == sorted(kinds)
    assert {"inference", "training"} == set(kinds)
    for prior in priors:
        assert workload not in prior.source
        assert (prior.device, prior.workload, prior.batch_size, prior.kind) == (name, workload, size, "infer")
        assert prior.label == "estimated"
        assert prior.evidence is None
        assert np.isfinite(prior.coefficients.time).all()


def test_a_prior_never_saw_any_batch_size_of_the_table_that_is_replayed():
    resnet = [profile for profile in CALIBRATED if profile.workload == "resnet50-imagenet"]

    unseen = build_inference_priors(ORIN, "another-name", 4, SPECS, unseen=resnet[2].evidence.sha256)

    assert any("resnet50-imagenet" in prior.source for prior in build_inference_priors(ORIN, "another-name", 4, SPECS))
    assert not any("resnet50-imagenet" in prior.source for prior in unseen)


def test_a_prior_needs_some_other_workload():
    only = [profile for profile in CALIBRATED if profile.workload == WORKLOADS[0]]

    with pytest.raises(BadInput, match="another one is calibrated"):
        build_inference_priors(ORIN, WORKLOADS[0], 4, SPECS, only)
    only = [profile for profile in load_calibrated_training() if profile.workload == "resnet18-imagenet"]
    with pytest.raises(BadInput, match="another one is calibrated"):
        build_priors(SPECS["nano"], "resnet18-imagenet", SPECS, only)


def test_a_training_prior_expects_a_third_of_the_launches_and_grows_with_the_batch():
    trained = [p for p in load_calibrated_training() if p.device == ORIN.name and p.workload == "resnet18-imagenet"]
    small, large = (build_inference_priors(ORIN, "resnet50-imagenet", size, SPECS, trained)[0] for size in (4, 64))
    change = np.exp(large.coefficients.time - small.coefficients.time)

    assert np.exp(small.coefficients.time - trained[0].coefficients.time)[7] == pytest.approx(1 / 3)
    assert 12 < change[0] < 20
    np.testing.assert_allclose(np.delete(change, [0, 1, 9]), 1.0)
    np.testing.assert_array_equal(large.coefficients.power, trained[0].coefficients.power)


TRAINED = load_calibrated_training()
TRAINING = sorted({profile.workload for profile in TRAINED})


def _slower(coefficients: Coefficients) -> Coefficients:
    return Coefficients(coefficients.time + 1.0, coefficients.power)


@pytest.mark.parametrize("workload", TRAINING)
@pytest.mark.parametrize("name", sorted(SPECS))
def test_priors_of_training_do_not_change_when_the_workloads_tables_are_lost(name, workload):
    layers = find_known_layers(workload)
    strangers = [
        profile
        for profile in (*TRAINED, *CALIBRATED)
        if profile.workload != workload and (profile.kind == "train" or find_profile_network(profile) != layers.network)
    ]

    every, blind = build_priors(SPECS[name], workload, SPECS), build_priors(SPECS[name], workload, SPECS, strangers)

    assert len(every) == len(blind) == 1 + len([profile for profile in strangers if profile.kind == "train"])
    for full, half in zip(every, blind, strict=True):
        np.testing.assert_array_equal(full.coefficients.time, half.coefficients.time)
        np.testing.assert_array_equal(full.coefficients.power, half.coefficients.power)


def test_the_same_board_and_the_closest_workload_are_the_most_credible():
    orin = [prior.source for prior in build_priors(SPECS["agx-orin-64gb"], "yolov8n-coco", SPECS)]
    tx2 = [prior.source for prior in build_priors(SPECS["tx2"], "resnet18-imagenet", SPECS)]

    assert orin[1].startswith("resnet18-imagenet on agx-orin-64gb")
    assert orin[2].startswith("mobilenetv3l-gld23k on agx-orin-64gb")
    assert tx2[1].startswith("vit-b16-cifar10 on tx2")


def test_the_estimate_by_its_layers_comes_before_other_workloads():
    first = build_priors(SPECS["nano"], "resnet18-imagenet", SPECS)[0]

    assert first.source.startswith("layers of resnet18 on nano")
    assert not any(p.source.startswith("layers of") for p in build_priors(SPECS["nano"], "unheard-of", SPECS))


def test_the_estimate_by_its_layers_learns_nothing_of_its_own_network():
    """Another workload on the same network would tell it nearly everything."""
    spec, renamed = SPECS["agx-xavier"], "resnet50-imagenet"
    own = [dataclasses.replace(p, workload=renamed) for p in TRAINED if p.workload == "resnet50-tinyimagenet224"]
    others = [profile for profile in TRAINED if profile.workload != "resnet50-tinyimagenet224"]
    slow = [dataclasses.replace(p, coefficients=_slower(p.coefficients)) for p in own]

    first, same = (build_priors(spec, "resnet50-tinyimagenet224", SPECS, [*others, *some])[0] for some in (own, slow))

    np.testing.assert_array_equal(first.coefficients.time, same.coefficients.time)
    with pytest.raises(BadInput, match="another one is calibrated"):
        build_priors(spec, "resnet50-tinyimagenet224", SPECS, [p for p in CALIBRATED if p.workload != renamed])


@pytest.mark.parametrize("workload", [*TRAINING, "unheard-of"])
def test_a_belief_at_another_batch_size_is_longer_or_shorter_as_the_layers_say(workload):
    spec, own = SPECS["agx-orin-64gb"], load_workload_sizes().get(workload)
    twice = 2 * own.batch_size if own else 32
    usual, large = (build_priors(spec, workload, SPECS, batch_size=size) for size in (own and own.batch_size, twice))
    ratios = [
        at_maxn(b.coefficients, spec.maxn)[0] / at_maxn(a.coefficients, spec.maxn)[0]
        for a, b in zip(usual, large, strict=True)
    ]

    assert np.allclose(ratios, ratios[0], rtol=1e-6)
    assert (1.2 < ratios[0] < 2.0) if own else ratios[0] == 1.0
    assert {prior.batch_size for prior in large} == {twice}


def test_a_prior_never_saw_the_table_that_is_replayed_whatever_it_is_called():
    profile = next(p for p in TRAINED if p.workload == "yolov8n-coco")
    everything = build_priors(ORIN, "resnet18-imagenet", SPECS)
    unseen = build_priors(ORIN, "resnet18-imagenet", SPECS, unseen=profile.evidence.sha256)

    assert any("yolov8n-coco" in prior.source for prior in everything)
    assert not any("yolov8n-coco" in prior.source for prior in unseen)
