"""A network as its layers' costs: FLOP and bytes per sample, weights per batch; what everything else is computed from.

Counting is per operator, without fusion, at four bytes per element: a batch of b samples takes b times the FLOP, and
moves the weights once and the activations b times (Pagoda, arXiv 2509.20189). A training step takes three times both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

TRAINING_PASSES = 3.0
"""A training step beside a forward pass, in FLOP and in bytes: forward, gradient of inputs, gradient of weights."""
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution's geometry: channels in and out, the square kernel's side, padding, stride, groups, input's side.

    Of a kernel or an image that is not square, the side of the square of the same area.
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
        """The output's side: 1 + floor((i + 2p - k) / s)."""
        # A kernel that is not square has no whole side, so that a whole sum may come out a hair too small.
        return 1 + (self.input_size + 2 * self.padding - self.kernel + 1e-9) // self.stride


@dataclass(frozen=True, slots=True)
class LayerCost:
    """One operator: FLOP and activation bytes per sample, and its weights.

    ``inputs`` and ``output`` are shapes for one sample, as they were traced with a batch of one.
    """

    name: str
    """Where it stands in the network, as ``layer1.0.conv1``."""
    kind: str
    """The rule that counted it, as ``conv``."""
    flop: float
    read_bytes: float
    written_bytes: float
    weight_bytes: float = 0.0
    parameters: int = 0
    activations: int = 0
    """Elements written per sample."""
    inputs: tuple[Shape, ...] = ()
    output: Shape = ()
    convolution: Convolution | None = None


@dataclass(frozen=True, slots=True)
class BatchWork:
    """What one minibatch holds: FLOP, and bytes moved between the processor and memory."""

    flop: float
    bytes: float

    @property
    def intensity(self) -> float:
        """FLOP per byte; 0 where nothing is moved."""
        return self.flop / self.bytes if self.bytes else 0.0


@dataclass(frozen=True, slots=True)
class NetworkCost:
    """A network's layers in the order in which they run; ``unknown`` names operators that no rule counted."""

    name: str
    input_shape: Shape
    """Of one sample, without the batch."""
    layers: tuple[LayerCost, ...]
    source: str
    unknown: tuple[str, ...] = field(default=())

    @property
    def flop(self) -> float:
        """FLOP of a forward pass, per sample."""
        return sum(layer.flop for layer in self.layers)

    @property
    def weight_bytes(self) -> float:
        """Bytes of weights, read once per batch."""
        return sum(layer.weight_bytes for layer in self.layers)

    @property
    def activation_bytes(self) -> float:
        """Bytes of activations read and written in a forward pass, per sample."""
        return sum(layer.read_bytes + layer.written_bytes for layer in self.layers)

    @property
    def parameters(self) -> int:
        """How many numbers are learnt."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def activations(self) -> int:
        """Elements that the layers write in a forward pass, per sample."""
        return sum(layer.activations for layer in self.layers)

    @property
    def convolutions(self) -> tuple[Convolution, ...]:
        """The geometry of every convolution, in order."""
        return tuple(layer.convolution for layer in self.layers if layer.convolution is not None)

    def batch_work(self, batch_size: int, kind: Literal["train", "infer"] = "infer") -> BatchWork:
        """What a minibatch of ``batch_size`` samples holds: a forward pass, or a training step."""
        times = TRAINING_PASSES if kind == "train" else 1.0
        flop = batch_size * self.flop
        return BatchWork(times * flop, times * (self.weight_bytes + batch_size * self.activation_bytes))
