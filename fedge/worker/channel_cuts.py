"""Cut a network by a plan of the channels that its layers keep, as a pruned variant is; imports torch when it cuts.

In JSON a plan maps a layer's name to ``{"inputs": [...], "outputs": [...], "of": [whole inputs, whole outputs]}``, with
ascending channels from 0; a side that keeps all its channels is left out.
"""

from copy import deepcopy
from typing import TYPE_CHECKING, Any, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

from fedge.worker.refusal import Refusal

if TYPE_CHECKING:
    from torch import nn

Channels = Tuple[int, ...]
SIDES = ("inputs", "outputs")


class BadPlan(Refusal):
    """A plan that is malformed, or of another network."""


class LayerCut(NamedTuple):
    """Channels that one layer keeps: ascending indices of its inputs and outputs in the whole network; None for all.

    Attributes:
        of: Number of inputs and outputs of the whole network's layer.
    """

    inputs: Optional[Channels] = None
    outputs: Optional[Channels] = None
    of: Optional[Tuple[int, int]] = None

    @property
    def is_whole(self) -> bool:
        return self.inputs is None and self.outputs is None


ChannelPlan = Mapping[str, LayerCut]
"""Cuts by layer name; other layers keep all channels."""


def parse_plan(channels: Any, where: str) -> Dict[str, LayerCut]:
    """Return the plan of a JSON object.

    Raises:
        BadPlan: It is none; the text names the field below ``where``.
    """
    if not isinstance(channels, dict):
        raise BadPlan(where, str(channels)[:60], "an object of layers")
    return {layer: _parse_cut(sides, where + "." + layer) for layer, sides in channels.items()}


def _parse_cut(sides: Any, where: str) -> LayerCut:
    if not isinstance(sides, dict) or not {"of"} < set(sides) <= {"of", *SIDES}:
        raise BadPlan(where, str(sides)[:60], "inputs, outputs or both, each a list of channels, and of")
    of = sides["of"]
    if not isinstance(of, list) or len(of) != 2 or not all(type(one) is int and one >= 1 for one in of):
        raise BadPlan(where + ".of", str(of)[:60], "how many inputs and outputs the whole layer has")
    inputs, outputs = [_parse_channels(sides.get(side), where + "." + side) for side in SIDES]
    return LayerCut(inputs, outputs, (of[0], of[1]))


def _parse_channels(kept: Any, where: str) -> Optional[Channels]:
    if kept is None:
        return None
    numbers = isinstance(kept, list) and all(type(one) is int and one >= 0 for one in kept)
    if not numbers or not kept or kept != sorted(set(kept)):
        raise BadPlan(where, str(kept)[:60], "whole numbers from 0 on, ascending, at least one")
    return tuple(kept)


def is_convolution(layer: Any) -> bool:
    """Return whether a layer is a convolution of one to three dimensions, not a transposed one."""
    from torch import nn

    return isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Conv3d))


def is_batch_norm(layer: Any) -> bool:
    """Return whether a layer is a BatchNorm of any number of dimensions."""
    from torch import nn

    return isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d))


def is_group_norm(layer: Any) -> bool:
    """Return whether a layer is a GroupNorm, which loses the same channels in each of its groups."""
    from torch import nn

    return isinstance(layer, nn.GroupNorm)


def cut_module(module: "nn.Module", plan: ChannelPlan) -> "nn.Module":
    """Return a copy of ``module`` with the plan's channels only, each with its original weights.

    Raises:
        BadPlan: For a layer or a channel that the module does not have.
    """
    copied = deepcopy(module)
    for name, one in plan.items():
        _cut_layer(name, find_layer(copied, name), one)
    return copied


def find_layer(module: "nn.Module", name: str) -> Any:
    """Return a module's layer by name, or raise ``BadPlan``."""
    found = dict(module.named_modules()).get(name)
    if found is None:
        raise BadPlan("plan", f"layer {name!r}", "the name of a layer of the network")
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
        raise BadPlan("plan", f"layer {name!r}, a {type(layer).__name__}", "a convolution, Linear, Batch- or GroupNorm")


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
        raise BadPlan("plan", f"channels of {name} that differ between its groups", "the same places in every group")


def _cut_group_norm(name: str, layer: Any, one: LayerCut) -> None:
    _check_cut(name, one, layer.num_channels, layer.num_channels)
    if one.outputs is None:
        return
    _slice_tensors(layer, ("weight", "bias"), 0, one.outputs)
    if layer.num_groups == layer.num_channels:
        layer.num_groups = len(one.outputs)
    layer.num_channels = len(one.outputs)
    if layer.num_channels % layer.num_groups:
        raise BadPlan(
            "plan", f"{layer.num_channels} channels of {name}", f"a multiple of its {layer.num_groups} groups"
        )


def _check_cut(name: str, one: LayerCut, inputs: int, outputs: int) -> None:
    if one.of not in (None, (inputs, outputs)):
        raise BadPlan(
            "plan", f"layer {name!r} of {(inputs, outputs)} inputs and outputs", f"one of {one.of}, which the plan cuts"
        )
    for kept, whole in ((one.inputs, inputs), (one.outputs, outputs)):
        if kept is not None and (not kept or list(kept) != sorted(set(kept)) or kept[0] < 0 or kept[-1] >= whole):
            raise BadPlan("plan", f"channels of {name} out of place", f"some of 0 to {whole - 1}, in order, each once")


def _slice_tensors(layer: "nn.Module", names: Sequence[str], dim: int, kept: Optional[Channels]) -> None:
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
