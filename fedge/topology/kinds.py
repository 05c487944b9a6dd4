"""Which layers can be cut, and how wide each of them is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fedge.topology.coupling import Width

if TYPE_CHECKING:
    from torch import nn


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


def widths_of(module: nn.Module) -> Iterator[tuple[str, Width]]:
    """Every layer of a module that can be cut, with its width."""
    from torch import nn

    for name, part in module.named_modules():
        if is_convolution(part):
            yield name, Width(part.in_channels, part.out_channels, part.groups)
        elif isinstance(part, nn.Linear):
            yield name, Width(part.in_features, part.out_features)
        elif is_batch_norm(part):
            yield name, Width(part.num_features, part.num_features)
        elif is_group_norm(part):
            yield name, Width(part.num_channels, part.num_channels, part.num_groups)
