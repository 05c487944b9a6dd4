"""Verify that a module cut by a plan computes the same as the whole module with those channels at zero."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import TYPE_CHECKING, Any

from fedge.worker.channel_cuts import (
    ChannelPlan,
    Channels,
    LayerCut,
    cut_module,
    find_layer,
    is_batch_norm,
    is_group_norm,
)
from fedge.worker.refusal import Refusal

if TYPE_CHECKING:
    from torch import Tensor, nn


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
