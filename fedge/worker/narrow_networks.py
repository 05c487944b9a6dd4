"""Narrow networks: keep the leading channels of every layer of a full network, and verify the result against it.

Every channel count c that is not the network's input or output becomes f(c), the same f everywhere, so that added
branches still match: f(c) = ceil(width c), rounded up to whole groups where a group normalisation has c channels.
Whether the result is a sub-network of the full one is not inferred from the layers but tested: the full network with
zeros everywhere outside the leading blocks must compute exactly the same scores. Networks that concatenate branches,
shuffle channels, normalise over all of them or split them into heads fail this test and cannot be narrowed.

A network with adapters (low-rank matrices A and B beside frozen layers, of peft) loses rank instead: it keeps the first
f(r) rows of A and columns of B, at the scale of the full rank, which is the full network with zeros in the other ranks.

Inputs with missing channels are scaled by full / kept, as in dropout, so that sums keep their magnitude. It only
matters for layers that are not followed by a normalisation.
"""

import copy
import math
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Set, Tuple

import torch
from torch import Tensor, nn

from fedge.worker.refusal import Refusal, one_line
from fedge.worker.subnetwork_arrays import ShapeMismatch, write_leading
from fedge.worker.task_shape import Shape

PROOF_IMAGES = 2
"""Random images on which a narrow network is compared with the full one."""
SCORE_TOLERANCE = 1e-4
"""Largest difference of their scores, relative to the difference between two images. A default well above float32
rounding, since sums of different lengths round differently, and below the effect of a missing channel.
"""
DENSE = (nn.Conv2d, nn.Linear)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm)
ONE_SLOPE = 1


class CannotNarrow(Refusal):
    """A network that cannot be narrowed."""

    kind = "narrow"


class ExecutedLayer(NamedTuple):
    """A layer in execution order, with the channels and pixels of the last image-shaped tensor before it.

    Attributes:
        channels_before: Channels of that tensor; a later flattening multiplies them with the pixels.
        pixels_before: Height times width of that tensor.
    """

    name: str
    module: nn.Module
    channels_before: int
    pixels_before: int


def narrow_network(full: nn.Module, width: float, shape: Shape) -> nn.Module:
    """Build a network on the CPU from the leading channels of every layer of ``full``: a share ``width``, above 0 to 1.

    Raises:
        CannotNarrow: The result would not be a sub-network of the full one.
    """
    if not 0 < width <= 1:
        raise CannotNarrow("width", str(width), "a part above 0 and at most 1")
    if find_adapters(full):
        return _cut_adapters(full, width)
    if shape.sample:
        raise CannotNarrow("width", f"samples of shape {shape.sample}", "a network for images")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        whole = copy.deepcopy(full).cpu().eval()
        net = copy.deepcopy(whole)
        layers = _trace_layers(net, _random_images(shape))
        inputs = _cut_layers(layers, _make_channel_rule(layers, width))
        _check_equivalence(whole, net, shape)
    for module, factor in inputs:
        module.register_forward_pre_hook(partial(_scale_input, factor))
    return net.train(full.training)


def find_adapters(net: nn.Module) -> List[Tuple[str, nn.Linear]]:
    """Return the low-rank matrices of a network with adapters, by name; none if it has no adapters."""
    return [
        (name, module)
        for name, module in net.named_modules()
        if isinstance(module, nn.Linear) and (".lora_A." in name or ".lora_B." in name)
    ]


def _cut_adapters(full: nn.Module, width: float) -> nn.Module:
    """Return a network of lower rank that shares the frozen weights of ``full``."""
    frozen = {id(weight): weight for weight in full.parameters() if not weight.requires_grad}
    net = copy.deepcopy(full, frozen)
    for name, module in find_adapters(net):
        if ".lora_A." in name:
            module.out_features = kept = _kept_ranks(module.out_features, width)
            _cut_array(module, "weight", kept)
        else:
            module.in_features = kept = _kept_ranks(module.in_features, width)
            _cut_array(module, "weight", module.out_features, kept)
    return net


def _kept_ranks(rank: int, width: float) -> int:
    return math.ceil(round(width * rank, 9))


def _random_images(shape: Shape) -> Tensor:
    return torch.randn(PROOF_IMAGES, shape.channels, shape.side, shape.side)


def _trace_layers(net: nn.Module, images: Tensor) -> List[ExecutedLayer]:
    """Return the layers with weights in the order in which they first run."""
    _check_known(net)
    seen: List[ExecutedLayer] = []
    ran: Set[nn.Module] = set()
    last = [(int(images.shape[1]), int(images.shape[2] * images.shape[3]))]
    names = {module: name for name, module in net.named_modules()}

    def note_layer(module: nn.Module, given: Tuple[Tensor, ...]) -> None:
        x = given[0]
        if x.dim() == 4:
            last[0] = int(x.shape[1]), int(x.shape[2] * x.shape[3])
        if isinstance(module, DENSE + NORMS) and module not in ran:
            ran.add(module)
            seen.append(ExecutedLayer(names[module], module, *last[0]))

    def note_shape(_module: nn.Module, _given: Any, x: Any) -> None:
        if isinstance(x, Tensor) and x.dim() == 4:
            last[0] = int(x.shape[1]), int(x.shape[2] * x.shape[3])

    hooks = []
    for module in net.modules():
        if not list(module.children()):
            hooks += [module.register_forward_pre_hook(note_layer), module.register_forward_hook(note_shape)]
    try:
        net(images)
    except Exception as error:
        raise CannotNarrow("network", f"{type(error).__name__}: {error}", "one that runs by itself") from error
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _check_known(net: nn.Module) -> None:
    """Raise ``CannotNarrow`` for layers with weights of an unsupported type."""
    for name, module in net.named_modules():
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        slopes = isinstance(module, nn.PReLU) and module.num_parameters == ONE_SLOPE
        if own and not isinstance(module, DENSE + NORMS) and not slopes:
            known = ", ".join(kind.__name__ for kind in DENSE + NORMS)
            raise CannotNarrow(f"layer {name or 'of the network'!r}", type(module).__name__, f"one of {known}")


def _make_channel_rule(layers: List[ExecutedLayer], width: float) -> Callable[[int], int]:
    """Return f, which maps a channel count to the number kept."""
    steps: Dict[int, int] = {}
    for layer in layers:
        if isinstance(layer.module, nn.GroupNorm):
            channels = layer.module.num_channels
            step = channels // layer.module.num_groups
            known = steps.get(channels, 1)
            steps[channels] = known * step // math.gcd(known, step)

    def count_kept(channels: int) -> int:
        step = steps.get(channels, 1)
        # Rounded before ceil, or floating-point error would make 0.55 * 100 keep 56 channels, not 55.
        return min(channels, math.ceil(round(width * channels, 9) / step) * step)

    return count_kept


def _cut_layers(layers: List[ExecutedLayer], count_kept: Callable[[int], int]) -> List[Tuple[nn.Module, float]]:
    """Cut the layers in place; return those with missing inputs and their scale factors full / kept."""
    dense = [layer.name for layer in layers if isinstance(layer.module, DENSE)]
    if len(dense) < 2:
        raise CannotNarrow("network", f"{len(dense)} layers with channels", "at least two: those between are narrowed")
    begun = False
    scaled: List[Tuple[nn.Module, float]] = []
    for layer in layers:
        first = not begun
        if isinstance(layer.module, DENSE):
            begun = True
            factor = _cut_dense(layer, first, layer.name == dense[-1], count_kept)
            if factor != 1.0:
                scaled.append((layer.module, factor))
        elif begun:
            _cut_norm(layer.module, count_kept)
    return scaled


def _cut_dense(layer: ExecutedLayer, first: bool, last: bool, count_kept: Callable[[int], int]) -> float:
    module: Any = layer.module
    weight = module.weight
    rows = weight.shape[0] if last else count_kept(int(weight.shape[0]))
    if isinstance(module, nn.Linear):
        full = module.in_features
        flat = full == layer.channels_before * layer.pixels_before
        narrow = count_kept(layer.channels_before) * layer.pixels_before if flat else count_kept(full)
        columns = given = full if first else narrow
        module.in_features, module.out_features = columns, rows
    else:
        full = module.in_channels
        given = full if first else count_kept(full)
        module.groups, columns = _cut_groups(layer, given, rows)
        module.in_channels, module.out_channels = given, rows
    _cut_array(module, "weight", rows, columns)
    _cut_array(module, "bias", rows)
    return full / given


def _cut_groups(layer: ExecutedLayer, given: int, rows: int) -> Tuple[int, int]:
    """Return a convolution's groups and input channels per group; supports one group, or one per channel."""
    module: Any = layer.module
    if module.groups == 1:
        return 1, given
    times = module.out_channels // module.in_channels
    if module.groups != module.in_channels or rows != given * times:
        raise CannotNarrow(f"layer {layer.name!r}", f"{module.groups} groups", "one group, or one for every channel")
    return given, 1


def _cut_norm(norm: nn.Module, count_kept: Callable[[int], int]) -> None:
    module: Any = norm
    if isinstance(norm, nn.GroupNorm):
        channels = count_kept(norm.num_channels)
        module.num_groups = channels // (norm.num_channels // norm.num_groups)
        module.num_channels = channels
    else:
        channels = module.num_features = count_kept(int(module.num_features))
    for name in ("weight", "bias", "running_mean", "running_var"):
        _cut_array(module, name, channels)


def _cut_array(module: Any, name: str, *lengths: int) -> None:
    """Replace one of a layer's arrays by its leading block, if the layer has it."""
    array: Optional[Tensor] = getattr(module, name, None)
    if array is None:
        return
    block = array.detach()[tuple(slice(0, length) for length in lengths)].clone()
    setattr(module, name, nn.Parameter(block, array.requires_grad) if isinstance(array, nn.Parameter) else block)


def _check_equivalence(whole: nn.Module, net: nn.Module, shape: Shape) -> None:
    """Raise ``CannotNarrow`` unless the narrow network equals the full one with zeros outside the leading blocks."""
    right = "one whose narrow form is a part of it: no branches side by side, shuffled channels or attention"
    try:
        part = {name: tensor.numpy().copy() for name, tensor in net.state_dict().items()}
        zeros = {name: 0 * tensor.numpy() for name, tensor in whole.state_dict().items()}
        _copy_arrays(whole, write_leading(zeros, part))
        # Use batch statistics: with the initial running ones the scores of a fresh network are little more than biases.
        for module in (*whole.modules(), *net.modules()):
            module.train(isinstance(module, NORMS))
        images = _random_images(shape)
        want, got = whole(images), net(images)
        _copy_arrays(net, part)
        worst = float((want - got).abs().max()) / max(float((want[0] - want[1]).abs().max()), 1e-12)
    except (ShapeMismatch, RuntimeError, ValueError) as error:
        raise CannotNarrow("network", one_line(error), right) from error
    if not worst <= SCORE_TOLERANCE:
        raise CannotNarrow("network", f"scores that differ by {worst:.1%} once it is narrow", right)


def _copy_arrays(net: nn.Module, arrays: Mapping[str, Any]) -> None:
    for name, tensor in net.state_dict().items():
        tensor.copy_(torch.as_tensor(arrays[name]))


def _scale_input(factor: float, _module: nn.Module, given: Tuple[Tensor, ...]) -> Tuple[Tensor, ...]:
    return (given[0] * factor, *given[1:])
