"""Cost of a narrower network in which every layer keeps a share of its channels; pure functions.

Symbols: w the width, k(c) = ceil(w c) the channels kept of c; the network's input and its last layer's output stay. For
a convolution with c channels in g groups and c' outputs, FLOP and weights scale as k(c) k(c') g / (c c' g'), reads as
k(c) / c and writes as k(c') / c'. Normalisation, activation and pooling scale as w.
"""

from __future__ import annotations

import dataclasses
import math

from fedge.costs.layers.network_cost import Convolution, LayerCost, NetworkCost, Shape

DENSE_KINDS = frozenset({"conv", "conv_transpose", "linear"})
"""Kinds of layers whose weights connect all input with all output channels."""


def narrow_network(network: NetworkCost, width: float) -> NetworkCost:
    """Return the cost of a network with a share of every layer's channels.

    Args:
        network: The full network.
        width: Share of the channels to keep, above 0 to 1; 1 returns the network itself.
    """
    if width == 1.0:
        return network
    dense = [place for place, layer in enumerate(network.layers) if _is_dense(layer)]
    first, last = (dense[0], dense[-1]) if dense else (-1, -1)
    layers = tuple(
        _narrow_layer(layer, width, first=place == first, last=place == last)
        for place, layer in enumerate(network.layers)
    )
    name, source = f"{network.name} at width {width:g}", f"{network.source}; narrowed by us"
    return dataclasses.replace(network, name=name, layers=layers, source=source)


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
        read_bytes=layer.read_bytes * read,
        written_bytes=layer.written_bytes * written,
        activations=round(layer.activations * written),
        inputs=tuple(_scale_shape(shape, read) for shape in layer.inputs),
        output=_scale_shape(layer.output, written),
    )


def _scale_shape(shape: Shape, factor: float) -> Shape:
    """Scale the channels of a shape with a batch of one."""
    return shape if len(shape) < 2 else (shape[0], _count_kept_channels(shape[1], factor), *shape[2:])


def _count_kept_channels(channels: int, width: float) -> int:
    return math.ceil(round(width * channels, 9))
