"""Channels that can only go together, as plain arrays: what a network's dependency graph says, asked for once.

A *unit* is the smallest thing that can be removed from a group of layers: one output channel of a convolution, with
what reads it (the next layer's input, its BatchNorm, every branch of a residual sum). Of a grouped convolution it is
one channel of each of its groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import nn


LayerSide = Literal["in", "out"]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class GroupMember:
    """One side of a layer that a group reaches: ``channels[i]`` of it goes when unit ``units[i]`` goes."""

    layer: str
    side: LayerSide
    units: Ints
    channels: Ints


@dataclass(frozen=True, slots=True, eq=False)
class ChannelGroup:
    """Layers that are cut together; ``order`` holds the units, the least important first."""

    root: str
    order: Ints
    members: tuple[GroupMember, ...]

    def select_removed(self, count: int) -> list[tuple[str, LayerSide, Ints]]:
        """What goes with the ``count`` least important units: layer, side, its channels."""
        gone = self.order[:count]
        return [(one.layer, one.side, one.channels[np.isin(one.units, gone)]) for one in self.members]


@dataclass(frozen=True, slots=True)
class LayerWidth:
    """How wide a layer is: channels in and out, and its groups (a BatchNorm has as many in as out)."""

    inputs: int
    outputs: int
    groups: int = 1

    @property
    def is_depthwise(self) -> bool:
        """Whether every output channel has one input channel of its own: then both are cut as one."""
        return self.groups > 1 and self.groups == self.outputs


@dataclass(frozen=True, slots=True)
class UncutGroup:
    """A group of which nothing is removed, and why."""

    root: str
    reason: str


@dataclass(frozen=True, slots=True)
class ChannelCoupling:
    """A network's groups, those that stay as they are, and the width of every layer that is cut."""

    groups: tuple[ChannelGroup, ...]
    kept: tuple[UncutGroup, ...]
    widths: dict[str, LayerWidth]


def is_evenly_grouped(member: GroupMember, width: LayerWidth) -> bool:
    """Whether a grouped convolution loses the same places in each of its groups, whatever units go."""
    if width.groups == 1 or width.is_depthwise:
        return True
    whole = width.inputs if member.side == "in" else width.outputs
    each = whole // width.groups
    if len(member.channels) != whole:
        return False
    unit_of = np.empty(whole, dtype=np.int64)
    unit_of[member.channels] = member.units
    return bool((unit_of.reshape(width.groups, each) == unit_of[:each]).all())


def rank_units(importance: Sequence[float] | NDArray[np.float64], units: int) -> Ints:
    """Units by importance, the least first; a unit of several channels counts as their mean."""
    scores = np.asarray(importance, dtype=np.float64).reshape(-1, units).mean(axis=0)
    return np.argsort(scores, kind="stable").astype(np.int64)


def is_convolution(layer: Any) -> bool:
    """A convolution of one, two or three dimensions, not a transposed one."""
    from torch import nn

    return isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)


def is_batch_norm(layer: Any) -> bool:
    """A BatchNorm of any number of dimensions."""
    from torch import nn

    return isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d)


def is_group_norm(layer: Any) -> bool:
    """A GroupNorm: its groups lose the same places, as those of a grouped convolution."""
    from torch import nn

    return isinstance(layer, nn.GroupNorm)


def is_norm(layer: Any) -> bool:
    """A layer that keeps the number of channels."""
    return is_batch_norm(layer) or is_group_norm(layer)


def list_layer_widths(module: nn.Module) -> Iterator[tuple[str, LayerWidth]]:
    """Every layer of a module that can be cut, with its width."""
    from torch import nn

    for name, part in module.named_modules():
        if is_convolution(part):
            yield name, LayerWidth(part.in_channels, part.out_channels, part.groups)
        elif isinstance(part, nn.Linear):
            yield name, LayerWidth(part.in_features, part.out_features)
        elif is_batch_norm(part):
            yield name, LayerWidth(part.num_features, part.num_features)
        elif is_group_norm(part):
            yield name, LayerWidth(part.num_channels, part.num_channels, part.num_groups)
