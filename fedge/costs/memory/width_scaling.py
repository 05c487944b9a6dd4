"""A network's cost once every layer keeps a part of its channels: what the narrow network of a client costs; pure.

Symbols: w the width, k(c) = ceil(w c) the channels kept of c; the network's input and its last layer's output stay.
Of a convolution with c channels in g groups and c' out, FLOP and weights follow k(c) k(c') g / (c c' g'), what is read
follows k(c) / c and what is written k(c') / c'. Normalisation, activation and pooling follow w.
"""

from __future__ import annotations

import dataclasses
import math

from fedge.costs.layers.network_cost import Convolution, LayerCost, NetworkCost, Shape

DENSE_KINDS = frozenset({"conv", "conv_transpose", "linear"})
"""Kinds of layers whose weights lie between all channels before and after."""


def narrow_network(network: NetworkCost, width: float) -> NetworkCost:
    """The cost with a part ``width`` (above 0 to 1) of every layer's channels; the same network for 1."""
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
    """Whether every output is made of all inputs' channels: its weights follow both.

    Of kinds that are not told, like a whole network in one layer, those that give another shape than they are given.
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
    if first and last:  # a whole network told as one layer
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
    """A shape with a batch of one, of which so large a part of the channels is left."""
    return shape if len(shape) < 2 else (shape[0], _count_kept_channels(shape[1], factor), *shape[2:])


def _count_kept_channels(channels: int, width: float) -> int:
    return math.ceil(round(width * channels, 9))
