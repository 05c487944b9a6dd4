"""From coupled channels and a share to the channels that stay.

Cutting a module after a plan, and telling a plan that harms from one that does not.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedge.analysis.topology.channel_plan import (
    ChannelCoupling,
    ChannelGroup,
    GroupMember,
    LayerWidth,
    count_kept_units,
    is_cut_equivalent,
    is_evenly_grouped,
    plan_channels,
    randomize_weights,
    zero_channels,
)
from fedge.worker.channel_cuts import BadPlan, LayerCut, cut_module


def _ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def test_the_least_important_units_go_first_with_every_channel_of_theirs():
    flattened = GroupMember("dense", "in", _ints(0, 0, 1, 1, 2, 2), _ints(0, 1, 2, 3, 4, 5))
    group = ChannelGroup(
        "conv", _ints(2, 0, 1), (GroupMember("conv", "out", _ints(0, 1, 2), _ints(0, 1, 2)), flattened)
    )
    removed = {(layer, side): channels.tolist() for layer, side, channels in group.select_removed(2)}
    assert removed == {("conv", "out"): [0, 2], ("dense", "in"): [0, 1, 4, 5]}


def test_a_grouped_convolution_must_lose_the_same_places_in_every_group():
    grouped = LayerWidth(4, 4, 2)
    assert is_evenly_grouped(GroupMember("conv", "in", _ints(0, 1, 0, 1), _ints(0, 1, 2, 3)), grouped)
    assert not is_evenly_grouped(GroupMember("conv", "in", _ints(0, 0, 1, 1), _ints(0, 1, 2, 3)), grouped)
    assert not is_evenly_grouped(GroupMember("conv", "in", _ints(0, 1), _ints(0, 1)), grouped)


def _chain(units: int, order: list[int] | None = None) -> ChannelCoupling:
    """A convolution of so many outputs that a second one reads."""
    every = np.arange(units, dtype=np.int64)
    group = ChannelGroup(
        "a",
        np.array(order if order is not None else range(units), dtype=np.int64),
        (GroupMember("a", "out", every, every), GroupMember("b", "in", every, every)),
    )
    return ChannelCoupling((group,), (), {"a": LayerWidth(3, units), "b": LayerWidth(units, 10)})


@given(units=st.integers(1, 300), share=st.floats(0.01, 1.0), round_to=st.integers(1, 16))
def test_never_more_than_asked_stays_unless_nothing_would(units, share, round_to):
    kept = count_kept_units(units, share, round_to)
    assert 1 <= kept <= units
    assert kept <= max(share * units + 1e-6, min(round_to, units))
    if share < 1.0 and units >= round_to:
        assert kept % round_to == 0


@given(
    units=st.integers(1, 300), shares=st.tuples(st.floats(0.01, 1.0), st.floats(0.01, 1.0)), round_to=st.integers(1, 9)
)
def test_a_larger_share_never_keeps_fewer(units, shares, round_to):
    low, high = sorted(shares)
    assert count_kept_units(units, low, round_to) <= count_kept_units(units, high, round_to)


def test_what_is_least_important_goes_on_both_sides():
    plan = plan_channels(_chain(4, order=[2, 0, 3, 1]), 0.5)
    assert plan == {"a": LayerCut(None, (1, 3), (3, 4)), "b": LayerCut((1, 3), None, (4, 10))}


def test_channels_are_rounded_to_multiples_also_where_a_unit_is_several():
    every = np.arange(32, dtype=np.int64)
    grouped = ChannelGroup("a", np.arange(16, dtype=np.int64), (GroupMember("a", "out", every % 16, every),))
    plan = plan_channels(ChannelCoupling((grouped,), (), {"a": LayerWidth(32, 32, 2)}), 0.6, round_to=8)
    assert len(plan["a"].outputs or ()) == 16  # 19 of 32 rounded down: 8 of 16 places in both groups


def test_two_groups_that_reach_one_layer_both_take_their_channels():
    one, two = np.arange(4, dtype=np.int64), np.arange(4, 8, dtype=np.int64)
    groups = tuple(
        ChannelGroup(root, np.arange(4, dtype=np.int64), (GroupMember("joined", "in", one, places),))
        for root, places in (("a", one), ("b", two))
    )
    widths = {"a": LayerWidth(3, 4), "b": LayerWidth(3, 4), "joined": LayerWidth(8, 2)}
    assert plan_channels(ChannelCoupling(groups, (), widths), 0.5)["joined"].inputs == (2, 3, 6, 7)


def _module() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(64, 5)
    )


PLAN = {"0": LayerCut(None, (1, 4, 6)), "1": LayerCut(None, (1, 4, 6)), "3": LayerCut((1, 4, 6), None)}
SAMPLE = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def test_a_cut_module_has_the_kept_weights_and_says_its_new_width():
    module = _module()
    small = cut_module(module, PLAN)
    assert small[0].out_channels == small[1].num_features == small[3].in_channels == 3
    assert torch.equal(small[0].weight, module[0].weight[[1, 4, 6]])
    assert torch.equal(small[3].weight, module[3].weight[:, [1, 4, 6]])
    assert small(SAMPLE).shape == (4, 5)


def test_the_whole_module_stays_as_it_was():
    module = _module()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    cut_module(module, PLAN)
    zero_channels(module, PLAN)
    randomize_weights(module)
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


def test_a_plan_that_cuts_both_sides_of_a_tie_changes_nothing_else():
    assert is_cut_equivalent(randomize_weights(_module()), PLAN, SAMPLE)


@pytest.mark.parametrize(
    "plan",
    [
        {**PLAN, "3": LayerCut((0, 1, 2), None)},
        {**PLAN, "1": LayerCut(None, (0, 1, 2))},
        {"0": LayerCut(None, (1, 4, 6))},
    ],
)
def test_a_plan_that_cuts_the_wrong_channels_is_seen(plan):
    assert not is_cut_equivalent(randomize_weights(_module()), plan, SAMPLE)


def test_a_harmful_plan_is_seen_behind_a_head_of_zeros_too():
    module = _module()
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
        cut_module(_module(), plan)
    assert told in str(caught.value)


def test_different_places_in_the_groups_of_a_convolution_are_refused():
    with pytest.raises(BadPlan, match="groups"):
        cut_module(nn.Sequential(nn.Conv2d(8, 8, 3, groups=2)), {"0": LayerCut((0, 1, 2, 4), None)})
