"""Cutting a module after a plan, and telling a plan that harms from one that does not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedge.analysis.topology.channel_removal import is_cut_equivalent, randomize_weights, zero_channels
from fedge.worker.channel_cuts import BadPlan, LayerCut, cut_module


def _chain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(64, 5)
    )


PLAN = {"0": LayerCut(None, (1, 4, 6)), "1": LayerCut(None, (1, 4, 6)), "3": LayerCut((1, 4, 6), None)}
SAMPLE = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def test_a_cut_module_has_the_kept_weights_and_says_its_new_width():
    module = _chain()
    small = cut_module(module, PLAN)
    assert small[0].out_channels == small[1].num_features == small[3].in_channels == 3
    assert torch.equal(small[0].weight, module[0].weight[[1, 4, 6]])
    assert torch.equal(small[3].weight, module[3].weight[:, [1, 4, 6]])
    assert small(SAMPLE).shape == (4, 5)


def test_the_whole_module_stays_as_it_was():
    module = _chain()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    cut_module(module, PLAN)
    zero_channels(module, PLAN)
    randomize_weights(module)
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


def test_a_plan_that_cuts_both_sides_of_a_tie_changes_nothing_else():
    assert is_cut_equivalent(randomize_weights(_chain()), PLAN, SAMPLE)


@pytest.mark.parametrize(
    "plan",
    [
        {**PLAN, "3": LayerCut((0, 1, 2), None)},
        {**PLAN, "1": LayerCut(None, (0, 1, 2))},
        {"0": LayerCut(None, (1, 4, 6))},
    ],
)
def test_a_plan_that_cuts_the_wrong_channels_is_seen(plan):
    assert not is_cut_equivalent(randomize_weights(_chain()), plan, SAMPLE)


def test_a_harmful_plan_is_seen_behind_a_head_of_zeros_too():
    module = _chain()
    nn.init.zeros_(module[5].weight)
    wrong = {**PLAN, "3": LayerCut((0, 1, 2), None)}
    assert is_cut_equivalent(module, wrong, SAMPLE) is True  # why weights are drawn anew: nothing shows here
    assert not is_cut_equivalent(randomize_weights(module), wrong, SAMPLE)


def test_depthwise_convolutions_lose_groups_and_grouped_ones_places():
    depthwise = nn.Sequential(nn.Conv2d(8, 8, 3, groups=8))
    small = cut_module(depthwise, {"0": LayerCut(None, (0, 5))})[0]
    assert (small.in_channels, small.out_channels, small.groups) == (2, 2, 2)
    grouped = nn.Sequential(nn.Conv2d(8, 8, 3, groups=2))
    small = cut_module(grouped, {"0": LayerCut((0, 3, 4, 7), None)})[0]
    assert (small.in_channels, small.groups, tuple(small.weight.shape)) == (4, 2, (8, 2, 3, 3))


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        ({"9": LayerCut(None, (0,))}, "layer '9'"),
        ({"2": LayerCut(None, (0,))}, "ReLU"),
        ({"0": LayerCut(None, (0, 8))}, "out of place"),
        ({"0": LayerCut(None, (1, 0))}, "out of place"),
        ({"0": LayerCut(None, ())}, "out of place"),
        ({"0": LayerCut(None, (0,), (3, 16))}, "(3, 16)"),
    ],
)
def test_a_plan_of_another_network_is_refused(plan, told):
    with pytest.raises(BadPlan) as caught:
        cut_module(_chain(), plan)
    assert told in str(caught.value)


def test_different_places_in_the_groups_of_a_convolution_are_refused():
    with pytest.raises(BadPlan, match="groups"):
        cut_module(nn.Sequential(nn.Conv2d(8, 8, 3, groups=2)), {"0": LayerCut((0, 1, 2, 4), None)})
