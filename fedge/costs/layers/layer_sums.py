"""Sums over a network's layers by GPU bottleneck, with batch normalisation as executed in training."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from fedge.costs.layers.network_cost import LayerCost, NetworkCost
from fedge.types import OperationCounts

ELEMENT_BYTES = 4
PRODUCT_KINDS = frozenset({"linear", "matmul", "attention", "lstm", "gru", "rnn_tanh", "rnn_relu"})
"""Kinds whose FLOP are those of matrix products."""
UNLAUNCHED_KINDS = frozenset({"view"})


def sum_layers(network: NetworkCost) -> OperationCounts:
    """Sum a network's layers; a folded batch normalisation counts with its reads and writes in training."""
    layers = [layer for layer in network.layers if layer.kind not in UNLAUNCHED_KINDS]
    return OperationCounts(
        dense_flop=_sum_over(layers, lambda layer: layer.flop if _is_dense(layer) else 0.0),
        pointwise_flop=_sum_over(layers, lambda layer: layer.flop if _is_pointwise(layer) else 0.0),
        moved_bytes=_sum_over(layers, lambda layer: 0.0 if _is_depthwise(layer) else _moved_bytes(layer)),
        depthwise_bytes=_sum_over(layers, lambda layer: _moved_bytes(layer) if _is_depthwise(layer) else 0.0),
        weight_bytes=network.weight_bytes,
        operators=len(layers),
    )


def _sum_over(layers: list[LayerCost], of: Callable[[LayerCost], float]) -> float:
    return float(sum(map(of, layers)))


def _moved_bytes(layer: LayerCost) -> float:
    told = layer.read_bytes + layer.written_bytes
    if told or layer.kind != "batch_norm":
        return told
    return float(ELEMENT_BYTES * (sum(map(prod, layer.inputs)) + prod(layer.output)))


def _is_depthwise(layer: LayerCost) -> bool:
    conv = layer.convolution
    return conv is not None and conv.groups > 1 and conv.groups == conv.in_channels


def _is_dense(layer: LayerCost) -> bool:
    return layer.convolution is not None and layer.convolution.kernel > 1 and not _is_depthwise(layer)


def _is_pointwise(layer: LayerCost) -> bool:
    conv = layer.convolution
    return (conv is not None and conv.kernel == 1 and not _is_depthwise(layer)) or layer.kind in PRODUCT_KINDS
