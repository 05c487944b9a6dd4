"""What is believed of a workload beforehand never saw it, and begins with its layers where they are known."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from contracts.boards import at_maxn

from fedge.costs.cost_priors import build_priors
from fedge.costs.cost_profile import load_calibrated_inference, load_calibrated_training
from fedge.costs.layered_work import find_known_layers, find_profile_network
from fedge.costs.workload_sizes import load_workload_sizes
from fedge.devices.catalogue import load_catalogue
from fedge.errors import BadInput
from fedge.physics.time_power_model import Coefficients

SPECS = load_catalogue()
CALIBRATED = load_calibrated_training()
WORKLOADS = sorted({profile.workload for profile in CALIBRATED})


def _slower(coefficients: Coefficients) -> Coefficients:
    return Coefficients(coefficients.time + 1.0, coefficients.power)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("name", sorted(SPECS))
def test_priors_do_not_change_when_the_workloads_tables_are_lost(name, workload):
    layers = find_known_layers(workload)
    strangers = [
        profile
        for profile in (*CALIBRATED, *load_calibrated_inference())
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
    own = [dataclasses.replace(p, workload=renamed) for p in CALIBRATED if p.workload == "resnet50-tinyimagenet224"]
    others = [profile for profile in CALIBRATED if profile.workload != "resnet50-tinyimagenet224"]
    slow = [dataclasses.replace(p, coefficients=_slower(p.coefficients)) for p in own]

    first, same = (build_priors(spec, "resnet50-tinyimagenet224", SPECS, [*others, *some])[0] for some in (own, slow))

    np.testing.assert_array_equal(first.coefficients.time, same.coefficients.time)
    with pytest.raises(BadInput, match="another one is calibrated"):
        build_priors(
            spec, "resnet50-tinyimagenet224", SPECS, [p for p in load_calibrated_inference() if p.workload != renamed]
        )


@pytest.mark.parametrize("workload", [*WORKLOADS, "unheard-of"])
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


def test_the_networks_own_batch_size_changes_nothing():
    told = build_priors(SPECS["nano"], "resnet18-imagenet", SPECS, batch_size=16)

    for one, other in zip(told, build_priors(SPECS["nano"], "resnet18-imagenet", SPECS), strict=True):
        np.testing.assert_array_equal(one.coefficients.time, other.coefficients.time)


def test_a_prior_needs_some_other_workload():
    only = [profile for profile in CALIBRATED if profile.workload == "resnet18-imagenet"]

    with pytest.raises(BadInput, match="another one is calibrated"):
        build_priors(SPECS["nano"], "resnet18-imagenet", SPECS, only)


def test_a_prior_never_saw_the_table_that_is_replayed_whatever_it_is_called():
    specs = load_catalogue()
    profile = next(p for p in load_calibrated_training() if p.workload == "yolov8n-coco")
    everything = build_priors(specs["agx-orin-64gb"], "resnet18-imagenet", specs)
    unseen = build_priors(specs["agx-orin-64gb"], "resnet18-imagenet", specs, unseen=profile.evidence.sha256)

    assert any("yolov8n-coco" in prior.source for prior in everything)
    assert not any("yolov8n-coco" in prior.source for prior in unseen)
