"""Cost of a network as its layers' costs: FLOP and bytes per sample, and weights per batch.

Costs are counted per operator, without fusion, at four bytes per element: a batch of b samples takes b times the FLOP,
and moves the weights once and the activations b times. A training step takes three times both.

References:
    Pagoda (arXiv 2509.20189).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

TRAINING_PASSES = 3.0
"""Cost of a training step in forward passes, in FLOP and bytes: forward, gradient of inputs, gradient of weights."""
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Convolution:
    """Geometry of a convolution. For a kernel or image that is not square, sides are those of the square of equal area.

    Attributes:
        in_channels: Input channels.
        out_channels: Output channels.
        kernel: Kernel side.
        padding: Padding at either end.
        stride: Stride.
        groups: Groups.
        input_size: Input side.
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
        flop: FLOP per sample.
        read_bytes: Activation bytes read per sample.
        written_bytes: Activation bytes written per sample.
        weight_bytes: Weight bytes read per batch.
        parameters: Learnt parameters.
        activations: Elements written per sample.
        inputs: Input shapes for a batch of one.
        output: Output shape for a batch of one.
        convolution: Geometry of a convolution over images.
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


@dataclass(frozen=True, slots=True)
class BatchWork:
    """Work of one minibatch.

    Attributes:
        flop: FLOP.
        bytes: Bytes moved between processor and memory.
    """

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
        name: Name of the network.
        input_shape: Shape of one sample, without the batch.
        layers: Costs of the layers.
        source: Description of how they were counted.
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

    @property
    def activation_bytes(self) -> float:
        """Return the activation bytes read and written in a forward pass per sample."""
        return sum(layer.read_bytes + layer.written_bytes for layer in self.layers)

    @property
    def parameters(self) -> int:
        """Return the number of learnt parameters."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def activations(self) -> int:
        """Return the elements written by all layers in a forward pass per sample."""
        return sum(layer.activations for layer in self.layers)

    @property
    def convolutions(self) -> tuple[Convolution, ...]:
        """Return the geometry of every convolution, in order."""
        return tuple(layer.convolution for layer in self.layers if layer.convolution is not None)

    def batch_work(self, batch_size: int, kind: Literal["train", "infer"] = "infer") -> BatchWork:
        """Return the work of one minibatch.

        Args:
            batch_size: Samples in the minibatch.
            kind: ``infer`` for a forward pass, ``train`` for a training step.
        """
        times = TRAINING_PASSES if kind == "train" else 1.0
        flop = batch_size * self.flop
        return BatchWork(times * flop, times * (self.weight_bytes + batch_size * self.activation_bytes))
