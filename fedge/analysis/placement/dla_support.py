"""Operators that a DLA runs itself, from NVIDIA's lists; the others fall back to the GPU, at the cost of switching.

Parameters may exclude more (kernels above 32, say); only TensorRT knows the real fallback when it builds the engine.
So this is an estimate.

References:
    TensorRT, "DLA Supported Layers and Restrictions"; the operator matrix of NVIDIA's Deep-Learning-Accelerator-SW
    repository (operators that are native through TensorRT).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from fedge.analysis.placement.accelerators import Accelerator
from fedge.costs.layers.network_cost import BatchWork, LayerCost, NetworkCost

VIEW_OPERATORS = frozenset({"view"})
"""Operators that only change the view of the same elements: nothing runs."""
DLA_1 = frozenset({
    "conv", "conv_transpose", "linear", "batch_norm", "max_pool", "avg_pool", "adaptive_avg_pool", "mean", "relu",
    "relu6", "clamp", "leaky_relu", "prelu", "sigmoid", "tanh", "silu", "add", "sub", "mul", "max_of", "abs", "cat",
    "upsample_nearest", "upsample_linear", "local_response_norm",
})  # fmt: skip
"""DLA 1.0 (Xavier). A dense layer runs as a convolution, a mean over an image as pooling, SiLU as sigmoid times x."""
DLA_2 = DLA_1 | {"softmax"}
"""DLA 2.0 (Orin)."""
DLA_GENERATIONS = {1: DLA_1, 2: DLA_2}


@dataclass(frozen=True, slots=True)
class NetworkSplit:
    """Work that an accelerator runs itself and work that falls back: per sample, weights per batch; and switches."""

    flop: float
    activation_bytes: float
    weight_bytes: float
    launches: int
    fallback_flop: float = 0.0
    fallback_activation_bytes: float = 0.0
    fallback_weight_bytes: float = 0.0
    fallback_launches: int = 0
    switches: int = 0
    fallen: tuple[str, ...] = ()
    """The kinds of operators that fall back."""


def split_network(network: NetworkCost, supported: frozenset[str] | None) -> NetworkSplit:
    """Split the network's work by the ``supported`` kinds of an accelerator; None supports all."""
    running = [layer for layer in network.layers if layer.kind not in VIEW_OPERATORS]
    own = [layer for layer in running if supported is None or layer.kind in supported]
    other = [layer for layer in running if not (supported is None or layer.kind in supported)]
    here, there = _sum_work(own), _sum_work(other)
    return NetworkSplit(
        flop=here[0].flop,
        activation_bytes=here[0].bytes,
        weight_bytes=here[1],
        launches=len(own),
        fallback_flop=there[0].flop,
        fallback_activation_bytes=there[0].bytes,
        fallback_weight_bytes=there[1],
        fallback_launches=len(other),
        switches=_count_switches(running, supported) if other and own else 0,
        fallen=tuple(dict.fromkeys(layer.kind for layer in other)),
    )


def can_run(place: Accelerator, network: NetworkCost) -> bool:
    """Return whether an accelerator runs any part of a network itself."""
    return split_network(network, place.supported).launches > 0


def _sum_work(layers: list[LayerCost]) -> tuple[BatchWork, float]:
    """Return FLOP and activation bytes per sample, and bytes of weights per batch."""
    moved = sum(layer.read_bytes + layer.written_bytes for layer in layers)
    return BatchWork(sum(layer.flop for layer in layers), moved), sum(layer.weight_bytes for layer in layers)


def _count_switches(layers: list[LayerCost], supported: frozenset[str] | None) -> int:
    """Return the number of switches between accelerator and GPU; the work begins and ends on the accelerator."""
    sides = [True, *(supported is None or layer.kind in supported for layer in layers), True]
    return sum(a != b for a, b in pairwise(sides))
