"""Which channels of every layer stay: from coupled channels and a share of them to a plan; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor

import numpy as np

from fedge.analysis.topology.channel_coupling import ChannelCoupling, ChannelGroup, Ints, LayerWidth

Channels = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LayerCut:
    """What stays of one layer: places of its input and output channels in the whole network, in order.

    None: all of them.
    """

    inputs: Channels | None = None
    outputs: Channels | None = None
    of: tuple[int, int] | None = None
    """How many inputs and outputs the whole network's layer has."""

    @property
    def is_whole(self) -> bool:
        return self.inputs is None and self.outputs is None


ChannelPlan = Mapping[str, LayerCut]
"""By the layer's name; a layer that is not named stays as it is."""


def count_kept_units(units: int, share: float, round_to: int = 1) -> int:
    """How many of ``units`` stay at a share of them: at least one, a multiple of ``round_to`` where there are as many.

    Rounded down, so that a plan never keeps more than was asked for.
    """
    if share >= 1.0:
        return units
    wanted = max(1, floor(share * units + 1e-9))
    if units < round_to:
        return units
    return max(round_to, wanted - wanted % round_to)


def plan_channels(coupling: ChannelCoupling, share: float, round_to: int = 1) -> dict[str, LayerCut]:
    """Every group keeps the same share of its units, the most important ones."""
    gone: dict[tuple[str, str], list[Ints]] = {}
    for group in coupling.groups:
        count = len(group.order) - count_kept_units(
            len(group.order), share, _round_units_to(group, coupling.widths, round_to)
        )
        for layer, side, channels in group.select_removed(count):
            gone.setdefault((layer, side), []).append(channels)
    layers = dict.fromkeys(layer for layer, _ in gone)
    cuts = {
        layer: _build_cut(coupling.widths[layer], gone.get((layer, "in")), gone.get((layer, "out"))) for layer in layers
    }
    return {layer: cut for layer, cut in cuts.items() if not cut.is_whole}


def _round_units_to(group: ChannelGroup, widths: Mapping[str, LayerWidth], round_to: int) -> int:
    """Of units that are one channel in each of several groups, fewer make a multiple of ``round_to`` channels."""
    channels = max(widths[group.root].outputs // len(group.order), 1)
    return ceil(round_to / channels)


def _build_cut(width: LayerWidth, inputs: list[Ints] | None, outputs: list[Ints] | None) -> LayerCut:
    return LayerCut(
        _list_kept_channels(width.inputs, inputs),
        _list_kept_channels(width.outputs, outputs),
        (width.inputs, width.outputs),
    )


def _list_kept_channels(whole: int, gone: list[Ints] | None) -> Channels | None:
    stays = np.ones(whole, dtype=bool)
    for channels in gone or ():
        stays[channels] = False
    return None if stays.all() else tuple(int(place) for place in np.flatnonzero(stays))
