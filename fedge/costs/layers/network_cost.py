"""Cost of a network as its layers' costs: FLOP and bytes per sample, and weights per batch.

Costs are counted per operator, without fusion, at four bytes per element: a batch of b samples takes b times the FLOP,
and moves the weights once and the activations b times. A training step takes three times both: forward, gradient of the
inputs, gradient of the weights. Where part of a network is frozen, a layer with frozen weights takes two of them, and
one that stands before everything that is trained takes the forward pass alone.

A narrower network keeps a share w of every layer's channels: k(c) = ceil(w c) of c, but all of the network's input and
of its last layer's output. For a convolution with c channels in g groups and c' outputs, FLOP and weights scale as
k(c) k(c') g / (c c' g'), reads as k(c) / c and writes as k(c') / c'. Normalisation, activation and pooling scale as w.
This is the cost of such a network; ``fedge.worker.narrow_networks`` builds one, and stands alone because boards run it
without this package.

References:
    Pagoda (arXiv 2509.20189).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Literal

from fedge.costs.gpu_rates import count_optimiser_passes
from fedge.types import OperationCounts

TRAINING_PASSES = 3.0
"""Cost of a training step in forward passes, in FLOP and bytes: forward, gradient of inputs, gradient of weights."""
Shape = tuple[int, ...]
ADAPTER_NAMES = (".lora_A", ".lora_B")


@dataclass(frozen=True, slots=True)
class Convolution:
    """Geometry of a convolution. For a kernel or image that is not square, sides are those of the square of equal area.

    Attributes:
        padding: Padding at either end.
    """

    in_channels: int
    out_channels: int
    kernel: float
    padding: float
    stride: float
    groups: int
    input_size: float

    @property
    def output_size(self) -> float:
        """Return the output side: 1 + floor((i + 2p - k) / s)."""
        # The side of a kernel that is not square is irrational, so an integer sum may be rounded to slightly less.
        return 1 + (self.input_size + 2 * self.padding - self.kernel + 1e-9) // self.stride


@dataclass(frozen=True, slots=True)
class LayerCost:
    """Cost of one operator.

    Attributes:
        name: Position in the network, such as ``layer1.0.conv1``.
        kind: The rule that counted it, such as ``conv``.
        read_bytes: Activation bytes read per sample.
        written_bytes: Activation bytes written per sample.
        weight_bytes: Weight bytes read per batch.
        activations: Elements written per sample.
        inputs: Input shapes for a batch of one.
        output: Output shape for a batch of one.
        training_passes: Cost of the layer in a training step, in forward passes.
        frozen: Those of its parameters that are not trained.
        saved_bytes: Activation bytes kept per sample for the backward pass; None if they are not known.
        saved_mixed_bytes: The same in mixed precision.
    """

    name: str
    kind: str
    flop: float
    read_bytes: float
    written_bytes: float
    weight_bytes: float = 0.0
    parameters: int = 0
    activations: int = 0
    inputs: tuple[Shape, ...] = ()
    output: Shape = ()
    convolution: Convolution | None = None
    training_passes: float = TRAINING_PASSES
    frozen: int = 0
    saved_bytes: float | None = None
    saved_mixed_bytes: float | None = None

    @property
    def is_adapter(self) -> bool:
        """Return whether it is one of the low-rank matrices beside a frozen layer, as peft names them."""
        return any(part in f".{self.name}" for part in ADAPTER_NAMES)

    @property
    def training_share(self) -> float:
        """Return the cost in a training step relative to a layer whose weights are trained."""
        return self.training_passes / TRAINING_PASSES


@dataclass(frozen=True, slots=True)
class BatchWork:
    """FLOP of one minibatch, and bytes moved between processor and memory."""

    flop: float
    bytes: float

    @property
    def intensity(self) -> float:
        """Return the FLOP per byte; 0 if nothing is moved."""
        return self.flop / self.bytes if self.bytes else 0.0


@dataclass(frozen=True, slots=True)
class NetworkCost:
    """A network's layers in order of execution.

    Attributes:
        input_shape: Shape of one sample, without the batch.
        unknown: Names of operators without a counting rule.
    """

    name: str
    input_shape: Shape
    layers: tuple[LayerCost, ...]
    source: str
    unknown: tuple[str, ...] = field(default=())

    @property
    def flop(self) -> float:
        """Return the FLOP of a forward pass per sample."""
        return sum(layer.flop for layer in self.layers)

    @property
    def weight_bytes(self) -> float:
        """Return the bytes of weights, read once per batch."""
        return sum(layer.weight_bytes for layer in self.layers)

    def inference_memory_mb(self, batch_size: int) -> float:
        """Return the MB of weights and of the activations that the largest operator reads and writes for a batch."""
        largest = max((layer.read_bytes + layer.written_bytes for layer in self.layers), default=0.0)
        return (self.weight_bytes + batch_size * largest) / 1e6

    @property
    def activation_bytes(self) -> float:
        """Return the activation bytes read and written in a forward pass per sample."""
        return sum(layer.read_bytes + layer.written_bytes for layer in self.layers)

    @property
    def parameters(self) -> int:
        """Return the number of learnt parameters, trained here or frozen."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def trained_parameters(self) -> int:
        """Return the number of parameters that training changes, which clients and server exchange."""
        return sum(layer.parameters - layer.frozen for layer in self.layers)

    @property
    def activations(self) -> int:
        """Return the elements written by all layers in a forward pass per sample."""
        return sum(layer.activations for layer in self.layers)

    def saved_bytes(self, *, mixed: bool) -> float | None:
        """Return the activation bytes kept per sample for the backward pass, or None if they are not known."""
        kept = [layer.saved_mixed_bytes if mixed else layer.saved_bytes for layer in self.layers]
        known = [one for one in kept if one is not None]
        return sum(known) if known and len(known) == len(kept) else None

    @property
    def half_weight_bytes(self) -> float:
        """Return the bytes of the copies of weights in half precision that a step in mixed precision makes."""
        return sum(layer.weight_bytes for layer in self.layers if layer.kind in HALF_KINDS) / 2

    @property
    def convolutions(self) -> tuple[Convolution, ...]:
        """Return the geometry of every convolution, in order."""
        return tuple(layer.convolution for layer in self.layers if layer.convolution is not None)

    def batch_work(self, batch_size: int, kind: Literal["train", "infer"] = "infer") -> BatchWork:
        """Return the work of one minibatch: of a forward pass, or of a training step for ``train``."""
        if kind == "infer":
            return BatchWork(batch_size * self.flop, self.weight_bytes + batch_size * self.activation_bytes)
        shares = [(layer.training_share, layer) for layer in self.layers]
        flop = sum(share * layer.flop for share, layer in shares)
        weights = sum(share * layer.weight_bytes for share, layer in shares)
        moved = sum(share * (layer.read_bytes + layer.written_bytes) for share, layer in shares)
        return BatchWork(TRAINING_PASSES * batch_size * flop, TRAINING_PASSES * (weights + batch_size * moved))


ELEMENT_BYTES = 4
PRODUCT_KINDS = frozenset({"linear", "matmul", "attention", "lstm", "gru", "rnn_tanh", "rnn_relu"})
"""Kinds whose FLOP are those of matrix products."""
HALF_KINDS = PRODUCT_KINDS | {"conv", "conv_transpose", "prelu"}
"""Kinds that autocast computes in half precision, with a copy of their weights in it."""
UNLAUNCHED_KINDS = frozenset({"view"})


def sum_layers(network: NetworkCost, *, training: bool = False, optimizer_state: float = 1.0) -> OperationCounts:
    """Sum a network's layers; a folded batch normalisation counts with its reads and writes in training.

    With ``training``, a layer counts by its share of a step that trains all weights, so that passes over the sums are
    the step of a network with frozen parts, whose optimiser keeps ``optimizer_state`` elements per parameter.
    """
    layers = [layer for layer in network.layers if layer.kind not in UNLAUNCHED_KINDS]
    if training:
        layers = [_weigh_for_training(layer, count_optimiser_passes(optimizer_state)) for layer in layers]
    return OperationCounts(
        dense_flop=_sum_over(layers, lambda layer: layer.flop if _is_dense_convolution(layer) else 0.0),
        pointwise_flop=_sum_over(layers, lambda layer: layer.flop if _is_pointwise(layer) else 0.0),
        moved_bytes=_sum_over(layers, lambda layer: 0.0 if _is_depthwise(layer) else _moved_bytes(layer)),
        depthwise_bytes=_sum_over(layers, lambda layer: _moved_bytes(layer) if _is_depthwise(layer) else 0.0),
        weight_bytes=_sum_over(layers, lambda layer: layer.weight_bytes),
        operators=round(_sum_over(layers, lambda layer: layer.training_share if training else 1.0)),
    )


def _weigh_for_training(layer: LayerCost, updating: float) -> LayerCost:
    """Return a layer times its share of a full training step; frozen weights miss the optimiser's passes as well."""
    if layer.training_passes == TRAINING_PASSES and not layer.frozen:
        return layer
    share = layer.training_share
    trained = 1.0 - layer.frozen / layer.parameters if layer.parameters else float(share == 1.0)
    of_weights = (layer.training_passes + updating * trained) / (TRAINING_PASSES + updating)
    return dataclasses.replace(
        layer,
        flop=layer.flop * share,
        read_bytes=layer.read_bytes * share,
        written_bytes=layer.written_bytes * share,
        weight_bytes=layer.weight_bytes * of_weights,
    )


def _sum_over(layers: list[LayerCost], of: Callable[[LayerCost], float]) -> float:
    return float(sum(map(of, layers)))


def _moved_bytes(layer: LayerCost) -> float:
    moved = layer.read_bytes + layer.written_bytes
    if moved or layer.kind != "batch_norm":
        return moved
    return float(ELEMENT_BYTES * (sum(map(prod, layer.inputs)) + prod(layer.output)))


def _is_depthwise(layer: LayerCost) -> bool:
    conv = layer.convolution
    return conv is not None and conv.groups > 1 and conv.groups == conv.in_channels


def _is_dense_convolution(layer: LayerCost) -> bool:
    return layer.convolution is not None and layer.convolution.kernel > 1 and not _is_depthwise(layer)


def _is_pointwise(layer: LayerCost) -> bool:
    conv = layer.convolution
    return (conv is not None and conv.kernel == 1 and not _is_depthwise(layer)) or layer.kind in PRODUCT_KINDS


DENSE_KINDS = frozenset({"conv", "conv_transpose", "linear"})
"""Kinds of layers whose weights connect all input with all output channels."""


def narrow_network(network: NetworkCost, width: float) -> NetworkCost:
    """Return the cost of a network with a share of every layer's channels, above 0 and at most 1.

    Of a network whose trained layers are all adapters, the adapters alone are narrowed: they lose rank.
    """
    if width == 1.0:
        return network
    trained = [layer.is_adapter for layer in network.layers if layer.parameters > layer.frozen]
    if trained and all(trained):
        return _narrow_adapters(network, width)
    dense = [place for place, layer in enumerate(network.layers) if _is_dense(layer)]
    first, last = (dense[0], dense[-1]) if dense else (-1, -1)
    layers = tuple(
        _narrow_layer(layer, width, first=place == first, last=place == last)
        for place, layer in enumerate(network.layers)
    )
    name, source = f"{network.name} at width {width:g}", f"{network.source}; narrowed by us"
    return dataclasses.replace(network, name=name, layers=layers, source=source)


def _narrow_adapters(network: NetworkCost, width: float) -> NetworkCost:
    layers = tuple(_scale_layer(layer, width, 1.0, 1.0) if layer.is_adapter else layer for layer in network.layers)
    return dataclasses.replace(network, name=f"{network.name} with a share {width:g} of its ranks", layers=layers)


def _is_dense(layer: LayerCost) -> bool:
    """Return whether every output depends on all input channels, so that its weights scale with both.

    A layer of another kind, such as a whole network as one layer, counts as dense if its input and output shapes
    differ.
    """
    if layer.convolution is not None or layer.kind in DENSE_KINDS:
        return True
    return layer.parameters > 0 and (not layer.inputs or layer.inputs[0] != layer.output)


def _narrow_layer(layer: LayerCost, width: float, *, first: bool, last: bool) -> LayerCost:
    if layer.convolution is not None:
        return _narrow_convolution(layer, layer.convolution, width, first=first, last=last)
    if not _is_dense(layer):
        return _scale_layer(layer, width, width, width)
    given, made = 1.0 if first else width, 1.0 if last else width
    if first and last:  # a whole network given as one layer
        given = made = width
    return _scale_layer(layer, given * made, given, made)


def _narrow_convolution(layer: LayerCost, conv: Convolution, width: float, *, first: bool, last: bool) -> LayerCost:
    given = conv.in_channels if first else _count_kept_channels(conv.in_channels, width)
    made = conv.out_channels if last else _count_kept_channels(conv.out_channels, width)
    groups = given if conv.groups == conv.in_channels else min(conv.groups, given)
    was = conv.in_channels * conv.out_channels / conv.groups
    narrow = _scale_layer(layer, given * made / groups / was, given / conv.in_channels, made / conv.out_channels)
    convolution = dataclasses.replace(conv, in_channels=given, out_channels=made, groups=groups)
    return dataclasses.replace(narrow, convolution=convolution)


def _scale_layer(layer: LayerCost, work: float, read: float, written: float) -> LayerCost:
    return dataclasses.replace(
        layer,
        flop=layer.flop * work,
        weight_bytes=layer.weight_bytes * work,
        parameters=round(layer.parameters * work),
        frozen=round(layer.frozen * work),
        read_bytes=layer.read_bytes * read,
        written_bytes=layer.written_bytes * written,
        activations=round(layer.activations * written),
        saved_bytes=None if layer.saved_bytes is None else layer.saved_bytes * written,
        saved_mixed_bytes=None if layer.saved_mixed_bytes is None else layer.saved_mixed_bytes * written,
        inputs=tuple(_scale_shape(shape, read) for shape in layer.inputs),
        output=_scale_shape(layer.output, written),
    )


def _scale_shape(shape: Shape, factor: float) -> Shape:
    return shape if len(shape) < 2 else (shape[0], _count_kept_channels(shape[1], factor), *shape[2:])


def _count_kept_channels(channels: int, width: float) -> int:
    return math.ceil(round(width * channels, 9))
