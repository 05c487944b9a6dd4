"""Channels that can only be removed together, as plain arrays built once from a network's dependency graph.

A *unit* is the smallest removable part of a group of layers: one output channel of a convolution, with everything that
reads it (the next layer's input, its BatchNorm, every branch of a residual sum). Of a grouped convolution it is one
channel of each of its groups.
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
    """One side of a layer that a group reaches: ``channels[i]`` of it is removed with unit ``units[i]``."""

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
        """Return the layers, sides and channels that are removed with the ``count`` least important units."""
        gone = self.order[:count]
        return [(one.layer, one.side, one.channels[np.isin(one.units, gone)]) for one in self.members]


@dataclass(frozen=True, slots=True)
class LayerWidth:
    """Width of a layer: input and output channels, and its groups (a BatchNorm has as many inputs as outputs)."""

    inputs: int
    outputs: int
    groups: int = 1

    @property
    def is_depthwise(self) -> bool:
        """Whether every output channel has its own input channel: then both are cut as one."""
        return self.groups > 1 and self.groups == self.outputs


@dataclass(frozen=True, slots=True)
class UncutGroup:
    """A group that is not cut, and why."""

    root: str
    reason: str


@dataclass(frozen=True, slots=True)
class ChannelCoupling:
    """A network's groups, those that are not cut, and the width of every layer that can be cut."""

    groups: tuple[ChannelGroup, ...]
    kept: tuple[UncutGroup, ...]
    widths: dict[str, LayerWidth]


def is_evenly_grouped(member: GroupMember, width: LayerWidth) -> bool:
    """Return whether a grouped convolution loses the same channels in each of its groups, whatever units go."""
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
    """Return the units by importance, the least first; a unit of several channels has their mean importance."""
    scores = np.asarray(importance, dtype=np.float64).reshape(-1, units).mean(axis=0)
    return np.argsort(scores, kind="stable").astype(np.int64)


def is_convolution(layer: Any) -> bool:
    """Return whether a layer is a convolution of one to three dimensions, not a transposed one."""
    from torch import nn

    return isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)


def is_batch_norm(layer: Any) -> bool:
    """Return whether a layer is a BatchNorm of any number of dimensions."""
    from torch import nn

    return isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d)


def is_group_norm(layer: Any) -> bool:
    """Return whether a layer is a GroupNorm, which loses the same channels in each of its groups."""
    from torch import nn

    return isinstance(layer, nn.GroupNorm)


def is_norm(layer: Any) -> bool:
    """Return whether a layer keeps the number of channels."""
    return is_batch_norm(layer) or is_group_norm(layer)


def list_layer_widths(module: nn.Module) -> Iterator[tuple[str, LayerWidth]]:
    """Yield every layer of a module that can be cut, with its width."""
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
