"""Cut a module by a plan, and verify that it computes the same as the whole module with those channels at zero."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from typing import TYPE_CHECKING, Any

from fedge.analysis.topology.channel_plan import (
    ChannelPlan,
    Channels,
    LayerCut,
    is_batch_norm,
    is_convolution,
    is_group_norm,
)
from fedge.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor, nn


def cut_module(module: nn.Module, plan: ChannelPlan) -> nn.Module:
    """Return a copy of ``module`` with the plan's channels only, each with its original weights.

    Raises:
        BadInput: For a layer or a channel that the module does not have.
    """
    copied = deepcopy(module)
    for name, one in plan.items():
        _cut_layer(name, _find_layer(copied, name), one)
    return copied


def _find_layer(module: nn.Module, name: str) -> Any:
    found = dict(module.named_modules()).get(name)
    if found is None:
        raise BadInput("plan", f"layer {name!r}", "the name of a layer of the network")
    return found


def _cut_layer(name: str, layer: Any, one: LayerCut) -> None:
    from torch import nn

    if is_convolution(layer):
        _cut_convolution(name, layer, one)
    elif isinstance(layer, nn.Linear):
        _check_cut(name, one, layer.in_features, layer.out_features)
        _slice_tensors(layer, ("weight", "bias"), 0, one.outputs)
        _slice_tensors(layer, ("weight",), 1, one.inputs)
        layer.out_features, layer.in_features = layer.weight.shape
    elif is_batch_norm(layer):
        _check_cut(name, one, layer.num_features, layer.num_features)
        _slice_tensors(layer, ("weight", "bias", "running_mean", "running_var"), 0, one.outputs)
        layer.num_features = layer.num_features if one.outputs is None else len(one.outputs)
    elif is_group_norm(layer):
        _cut_group_norm(name, layer, one)
    else:
        raise BadInput(
            "plan", f"layer {name!r}, a {type(layer).__name__}", "a convolution, Linear, Batch- or GroupNorm"
        )


def _cut_convolution(name: str, layer: Any, one: LayerCut) -> None:
    _check_cut(name, one, layer.in_channels, layer.out_channels)
    depthwise = layer.groups > 1 and layer.groups == layer.out_channels
    inputs, groups = one.outputs if depthwise else one.inputs, layer.groups
    each = layer.in_channels // groups
    _slice_tensors(layer, ("weight", "bias"), 0, one.outputs)
    layer.out_channels = layer.weight.shape[0]
    if depthwise:
        layer.groups = layer.out_channels
        layer.in_channels = each * layer.groups
    elif inputs is not None:
        _slice_tensors(layer, ("weight",), 1, tuple(place for place in inputs if place < each))
        layer.in_channels = len(inputs)
    if layer.out_channels % layer.groups or layer.weight.shape[1] * layer.groups != layer.in_channels:
        raise BadInput("plan", f"channels of {name} that differ between its groups", "the same places in every group")


def _cut_group_norm(name: str, layer: Any, one: LayerCut) -> None:
    _check_cut(name, one, layer.num_channels, layer.num_channels)
    if one.outputs is None:
        return
    _slice_tensors(layer, ("weight", "bias"), 0, one.outputs)
    if layer.num_groups == layer.num_channels:
        layer.num_groups = len(one.outputs)
    layer.num_channels = len(one.outputs)
    if layer.num_channels % layer.num_groups:
        raise BadInput(
            "plan", f"{layer.num_channels} channels of {name}", f"a multiple of its {layer.num_groups} groups"
        )


def _check_cut(name: str, one: LayerCut, inputs: int, outputs: int) -> None:
    if one.of not in (None, (inputs, outputs)):
        raise BadInput(
            "plan", f"{name} of {one.of} inputs and outputs", f"a layer of {(inputs, outputs)}, as it is here"
        )
    for kept, whole in ((one.inputs, inputs), (one.outputs, outputs)):
        if kept is not None and (not kept or list(kept) != sorted(set(kept)) or kept[0] < 0 or kept[-1] >= whole):
            raise BadInput("plan", f"channels of {name} out of place", f"some of 0 to {whole - 1}, in order, each once")


def _slice_tensors(layer: nn.Module, names: Sequence[str], dim: int, kept: Channels | None) -> None:
    import torch
    from torch import nn

    if kept is None:
        return
    for name in names:
        old = getattr(layer, name, None)
        if old is None:
            continue
        picked = old.detach().index_select(dim, torch.tensor(kept, device=old.device))
        setattr(layer, name, nn.Parameter(picked, old.requires_grad) if isinstance(old, nn.Parameter) else picked)


def zero_channels(module: nn.Module, plan: ChannelPlan) -> nn.Module:
    """Return a copy of ``module`` with its original width, and zeros for the channels that the plan removes."""
    import torch

    copied = deepcopy(module)
    with torch.no_grad():
        for name, one in plan.items():
            _zero_layer(_find_layer(copied, name), one)
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
        except (RuntimeError, ValueError, BadInput):
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
