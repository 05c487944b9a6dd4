"""From coupled channels and a share to the channels that stay."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedge.analysis.topology.channel_plan import (
    ChannelCoupling,
    ChannelGroup,
    GroupMember,
    LayerWidth,
    count_kept_units,
    is_evenly_grouped,
    plan_channels,
    rank_units,
)
from fedge.worker.channel_cuts import LayerCut


def _ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def test_the_least_important_units_go_first_with_every_channel_of_theirs():
    flattened = GroupMember("dense", "in", _ints(0, 0, 1, 1, 2, 2), _ints(0, 1, 2, 3, 4, 5))
    group = ChannelGroup(
        "conv", _ints(2, 0, 1), (GroupMember("conv", "out", _ints(0, 1, 2), _ints(0, 1, 2)), flattened)
    )
    removed = {(layer, side): channels.tolist() for layer, side, channels in group.select_removed(2)}
    assert removed == {("conv", "out"): [0, 2], ("dense", "in"): [0, 1, 4, 5]}


def test_importance_of_a_unit_is_the_mean_over_its_channels():
    assert rank_units([1.0, 5.0, 9.0, 2.0], 2).tolist() == [1, 0]  # units (1 + 9) / 2 and (5 + 2) / 2
    assert rank_units([3.0, 1.0, 2.0], 3).tolist() == [1, 2, 0]


def test_a_grouped_convolution_must_lose_the_same_places_in_every_group():
    grouped = LayerWidth(4, 4, 2)
    assert is_evenly_grouped(GroupMember("conv", "in", _ints(0, 1, 0, 1), _ints(0, 1, 2, 3)), grouped)
    assert not is_evenly_grouped(GroupMember("conv", "in", _ints(0, 0, 1, 1), _ints(0, 1, 2, 3)), grouped)
    assert not is_evenly_grouped(GroupMember("conv", "in", _ints(0, 1), _ints(0, 1)), grouped)


def test_depthwise_and_plain_layers_may_lose_any_channel():
    member = GroupMember("conv", "out", _ints(0, 1), _ints(0, 3))
    assert LayerWidth(4, 4, 4).is_depthwise
    assert is_evenly_grouped(member, LayerWidth(4, 4, 4))
    assert is_evenly_grouped(member, LayerWidth(4, 4))


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
