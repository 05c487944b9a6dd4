"""Units of channels that go together: what is removed with the least important ones."""

from __future__ import annotations

import numpy as np

from fedge.analysis.topology.channel_coupling import (
    ChannelGroup,
    GroupMember,
    LayerWidth,
    is_evenly_grouped,
    rank_units,
)


def _ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def test_the_least_important_units_go_first_with_every_channel_of_theirs() -> None:
    flattened = GroupMember("dense", "in", _ints(0, 0, 1, 1, 2, 2), _ints(0, 1, 2, 3, 4, 5))
    group = ChannelGroup(
        "conv", _ints(2, 0, 1), (GroupMember("conv", "out", _ints(0, 1, 2), _ints(0, 1, 2)), flattened)
    )
    removed = {(layer, side): channels.tolist() for layer, side, channels in group.select_removed(2)}
    assert removed == {("conv", "out"): [0, 2], ("dense", "in"): [0, 1, 4, 5]}


def test_importance_of_a_unit_is_the_mean_over_its_channels() -> None:
    assert rank_units([1.0, 5.0, 9.0, 2.0], 2).tolist() == [1, 0]  # units (1 + 9) / 2 and (5 + 2) / 2
    assert rank_units([3.0, 1.0, 2.0], 3).tolist() == [1, 2, 0]


def test_a_grouped_convolution_must_lose_the_same_places_in_every_group() -> None:
    grouped = LayerWidth(4, 4, 2)
    assert is_evenly_grouped(GroupMember("conv", "in", _ints(0, 1, 0, 1), _ints(0, 1, 2, 3)), grouped)
    assert not is_evenly_grouped(GroupMember("conv", "in", _ints(0, 0, 1, 1), _ints(0, 1, 2, 3)), grouped)
    assert not is_evenly_grouped(GroupMember("conv", "in", _ints(0, 1), _ints(0, 1)), grouped)


def test_depthwise_and_plain_layers_may_lose_any_channel() -> None:
    member = GroupMember("conv", "out", _ints(0, 1), _ints(0, 3))
    assert LayerWidth(4, 4, 4).is_depthwise
    assert is_evenly_grouped(member, LayerWidth(4, 4, 4))
    assert is_evenly_grouped(member, LayerWidth(4, 4))
