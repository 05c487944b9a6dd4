"""Cost of an operator as executed: counted by its rule, with batch normalisation folded where possible.

A batch normalisation directly after a convolution or dense layer is folded into its weights before inference, which
leaves one bias per channel. The constants printed with Pagoda are counted in this way (ResNet-50: 8.2063 GFLOP and
234.66 MB per image), also for training, which counts as three forward passes.
"""

from __future__ import annotations

from math import prod, sqrt

from fedge.costs.layers.counting_rules import ELEMENT_BYTES, Operation, OperationCount, count_operation
from fedge.costs.layers.network_cost import Convolution, LayerCost, Shape

FOLDABLE_KINDS = frozenset({"conv", "conv_transpose", "linear"})
"""Kinds that a following batch normalisation can be folded into."""


def build_layer_cost(
    name: str, operation: Operation, parameters: int, convolution: Convolution | None = None
) -> LayerCost:
    """Count the cost of one operator; inputs that depend on no sample move once per batch, as weights do.

    ``parameters`` are the learnt ones that no earlier layer has used.

    Raises:
        KeyError: There is no rule for the operator's kind.
    """
    found = count_operation(operation)
    if operation.weights and not operation.activations:
        found = OperationCount(found.flop, 0.0, 0.0, found.read + found.written + found.weight)
    elif operation.kind == "fill":
        found = OperationCount(found.flop, 0.0, 0.0, found.written)
    return LayerCost(
        name=name,
        kind=operation.kind,
        flop=float(found.flop),
        read_bytes=ELEMENT_BYTES * found.read,
        written_bytes=ELEMENT_BYTES * found.written,
        weight_bytes=ELEMENT_BYTES * found.weight,
        parameters=parameters,
        activations=int(found.written),
        inputs=operation.activations,
        output=operation.outputs[0] if operation.outputs else (),
        convolution=convolution,
    )


def build_folded_layer_cost(name: str, operation: Operation, parameters: int) -> LayerCost:
    """Return the cost of a folded batch normalisation: one weight per channel, and nothing else."""
    output = operation.outputs[0]
    return LayerCost(
        name=name,
        kind=operation.kind,
        flop=0.0,
        read_bytes=0.0,
        written_bytes=0.0,
        weight_bytes=ELEMENT_BYTES * output[1],
        parameters=parameters,
        inputs=operation.activations,
        output=output,
    )


def build_convolution(operation: Operation, stride: Shape, padding: Shape, dilation: Shape) -> Convolution | None:
    """Return the geometry of a two-dimensional convolution, or None for one or three dimensions.

    The padding is the one that yields the output's size with the undilated kernel, also for dilated convolutions.
    """
    if len(operation.window) != 2:
        return None
    inside, kernel = operation.activations[0], _square_side(operation.window)
    reach = [d * (k - 1) + 1 for k, d in zip(operation.window, dilation, strict=True)]
    growth = sum(2 * p - r for p, r in zip(padding, reach, strict=True)) / len(reach)
    return Convolution(
        in_channels=inside[1],
        out_channels=operation.outputs[0][1],
        kernel=kernel,
        padding=_as_whole((growth + kernel) / 2),
        stride=_square_side(stride),
        groups=operation.groups,
        input_size=_square_side(inside[2:]),
    )


def _square_side(sides: Shape) -> float:
    """Return the side of the square with the same area."""
    return _as_whole(sqrt(prod(sides)))


def _as_whole(number: float) -> float:
    """Convert whole numbers to integers, so that files and tables show them as such."""
    return round(number) if number == round(number) else number
