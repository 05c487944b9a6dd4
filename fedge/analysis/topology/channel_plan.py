"""Channels that can only be removed together, the plan of those that every layer keeps, and the network that it gives.

A *unit* is the smallest removable part of a group of layers: one output channel of a convolution, with everything that
reads it (the next layer's input, its BatchNorm, every branch of a residual sum). Of a grouped convolution it is one
channel of each of its groups. Groups are plain arrays, built once from a network's dependency graph.

Verify that a module cut by a plan computes the same as the whole module with those channels at zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from math import ceil, floor
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedge.costs.layers.network_cost import NetworkCost, Shape
from fedge.worker.channel_cuts import (
    ChannelPlan,
    Channels,
    LayerCut,
    cut_module,
    find_layer,
    is_batch_norm,
    is_convolution,
    is_group_norm,
)
from fedge.worker.refusal import Refusal

if TYPE_CHECKING:
    from torch import Tensor, nn


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


@dataclass(frozen=True, slots=True)
class NetworkVariant:
    """A network without some of its channels, as a plan of those kept; the weights are stored separately."""

    model: str
    """Name of the whole network, as a user gives it."""
    input_shape: Shape
    method: str
    """How its channels were ranked."""
    round_to: int
    """Channels are multiples of this if the layer has as many."""
    channel_share: float
    """Share of every group's channels that is kept."""
    parameter_share: float
    flop_share: float
    plan: ChannelPlan
    cost: NetworkCost

    @property
    def name(self) -> str:
        """A name with the share of the parameters, such as ``resnet50 at 62 %``."""
        return f"{self.model} at {100 * self.parameter_share:.3g} %"


def count_kept_units(units: int, share: float, round_to: int = 1) -> int:
    """Return how many of ``units`` stay at a share of them, rounded down, and at least one.

    If there are ``round_to`` units, the result is a multiple of it, at least ``round_to``; fewer units all stay.
    """
    if share >= 1.0:
        return units
    wanted = max(1, floor(share * units + 1e-9))
    if units < round_to:
        return units
    return max(round_to, wanted - wanted % round_to)


def plan_channels(coupling: ChannelCoupling, share: float, round_to: int = 1) -> dict[str, LayerCut]:
    """Plan the cuts that keep the same share of every group's units, the most important ones.

    Layers keep multiples of ``round_to`` channels where possible.

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


def zero_channels(module: nn.Module, plan: ChannelPlan) -> nn.Module:
    """Return a copy of ``module`` with its original width, and zeros for the channels that the plan removes."""
    import torch

    copied = deepcopy(module)
    with torch.no_grad():
        for name, one in plan.items():
            _zero_layer(find_layer(copied, name), one)
    return copied


def _zero_layer(layer: Any, one: LayerCut) -> None:
    for tensor in (layer.weight, layer.bias):
        if one.outputs is not None and tensor is not None:
            tensor[_list_removed_channels(one.outputs, tensor.shape[0])] = 0.0
    grouped = getattr(layer, "groups", 1) > 1
    if one.inputs is not None and not grouped and layer.weight.dim() > 1:
        layer.weight[:, _list_removed_channels(one.inputs, layer.weight.shape[1])] = 0.0


def _list_removed_channels(kept: Channels, whole: int) -> list[int]:
    return sorted(set(range(whole)) - set(kept))


def randomize_weights(module: nn.Module) -> nn.Module:
    """Return a copy with random weights, because a head of zeros or a scale near zero would hide errors.

    Its GroupNorms only scale and shift: their statistics mix channels by design, and would hide which layer reads
    which.
    """
    import torch

    copied = deepcopy(module)
    for part in copied.modules():
        if is_group_norm(part):
            part.__class__ = _scaling_norm_class()
    chance = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in copied.named_parameters():
            noise = torch.randn(parameter.shape, generator=chance)
            if parameter.dim() > 1:
                parameter.copy_(noise * (2.0 / (parameter[0].numel() or 1)) ** 0.5)
            else:
                parameter.copy_(1.0 + 0.2 * noise if name.endswith("weight") else 0.1 * noise)
    return copied


@cache
def _scaling_norm_class() -> type:
    from torch import nn

    class Scaling(nn.GroupNorm):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's own name
            if not self.affine:
                return input
            shape = (1, -1, *(1,) * (input.dim() - 2))
            return input * self.weight.view(shape) + self.bias.view(shape)

    return Scaling


def is_cut_equivalent(module: nn.Module, plan: ChannelPlan, sample: Tensor) -> bool:
    """Return whether the cut module computes the same as the zeroed one, within 0.1 % of the output's range.

    Both run with BatchNorm in training mode and without dropout; a mismatch of shapes counts as False.
    """
    import torch

    with torch.no_grad():
        whole = _run_forward(zero_channels(module, plan), sample)
        try:
            small = _run_forward(cut_module(module, plan), sample)
        except (RuntimeError, ValueError, Refusal):
            return False
    return len(whole) == len(small) and all(_is_close(a, b) for a, b in zip(whole, small, strict=True))


def _is_close(whole: Tensor, small: Tensor) -> bool:
    if whole.shape != small.shape or not bool(whole.isfinite().all()):
        return False
    spread = (whole - whole.mean(dim=0)).abs().max()
    return bool((whole - small).abs().max() <= 1e-3 * spread)


def _run_forward(module: nn.Module, sample: Tensor) -> list[Tensor]:
    module.eval()
    module.training = True  # the module's own flag alone: auxiliary heads answer, nothing is dropped
    for part in module.modules():
        if is_batch_norm(part):
            part.train()
    return flatten_tensors(module(sample))


def flatten_tensors(output: Any) -> list[Any]:
    """Return every tensor of an output, whatever holds them."""
    if hasattr(output, "grad_fn"):
        return [output]
    parts = output.values() if isinstance(output, dict) else output
    return [tensor for part in parts if part is not None for tensor in flatten_tensors(part)]
