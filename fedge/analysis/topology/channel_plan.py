"""Plan the channels that every layer keeps, from coupled channels and the share to keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor

import numpy as np

from fedge.analysis.topology.channel_coupling import ChannelCoupling, ChannelGroup, Ints, LayerWidth

Channels = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LayerCut:
    """Channels that one layer keeps: ascending indices of its inputs and outputs in the whole network; None for all."""

    inputs: Channels | None = None
    outputs: Channels | None = None
    of: tuple[int, int] | None = None
    """Number of inputs and outputs of the whole network's layer."""

    @property
    def is_whole(self) -> bool:
        return self.inputs is None and self.outputs is None


ChannelPlan = Mapping[str, LayerCut]
"""Cuts by layer name; other layers keep all channels."""


def count_kept_units(units: int, share: float, round_to: int = 1) -> int:
    """Return how many of ``units`` stay at a share of them, rounded down so that a plan never keeps more.

    Args:
        units: Number of units.
        share: Share to keep, 0 to 1.
        round_to: The result is a multiple of this if there are as many units, and at least one.
    """
    if share >= 1.0:
        return units
    wanted = max(1, floor(share * units + 1e-9))
    if units < round_to:
        return units
    return max(round_to, wanted - wanted % round_to)


def plan_channels(coupling: ChannelCoupling, share: float, round_to: int = 1) -> dict[str, LayerCut]:
    """Plan the cuts that keep the same share of every group's units, the most important ones.

    Args:
        coupling: The network's groups.
        share: Share of the units to keep, 0 to 1.
        round_to: Layers keep multiples of this number of channels where possible.

    Returns:
        Cuts by layer name, without layers that keep all channels.
    """
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
    """Return the multiple for units of one channel in each of several groups, which need fewer units."""
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
