"""Rules that count the FLOP and bytes of one operator: one function per kind of operator, without fusion.

    b      samples of a batch; everything here is for one sample, and weights are for one batch
    s      4 bytes per element, whatever the type (``ELEMENT_BYTES``)
    read   elements of activations read, per sample; written: elements written, per sample
    weight elements of weights read, once per batch

Convolution 2 Cout Ho Wo (Cin/g) Kh Kw + Cout Ho Wo (the last for a bias, its own or that of a folded normalisation);
dense and matrix product 2 m n k; element-wise operators one or a few FLOP per element, one read per tensor that is not
a weight (a broadcast one counts in full) and one write; pooling k^2 - 1 (max) or k^2 (average) per output. Where a
comment says so, FLOP per element are not from the reference but derived here from the operations involved.

References:
    Pagoda (arXiv 2509.20189): counting rules and FLOP per element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil, prod, sqrt

from fedge.costs.layers.network_cost import Convolution, LayerCost, Shape

ELEMENT_BYTES = 4.0


@dataclass(frozen=True, slots=True)
class Operation:
    """One operator as executed on one sample: shapes read and written, and the geometry that its rule needs.

    Attributes:
        kind: Key of ``RULES``.
        activations: Shapes of inputs that depend on the sample.
        weights: Shapes of inputs that do not, including a bias; read once per batch.
        outputs: Shapes of the outputs.
        window: Kernel sides of a convolution or pooling.
        groups: Groups of a convolution.
        inner: Dimension summed over in a product; hidden size of a recurrent network.
        sizes: For attention: (heads times samples, queries, keys, key width, value width). For a recurrent network:
            (steps, inputs of layer 1, inputs of layer 2, ...), where each direction counts as a layer.
    """

    kind: str
    activations: tuple[Shape, ...] = ()
    weights: tuple[Shape, ...] = ()
    outputs: tuple[Shape, ...] = ()
    window: Shape = ()
    groups: int = 1
    inner: int = 0
    sizes: Shape = field(default=())

    @property
    def read_elements(self) -> int:
        """Return the number of activation elements read."""
        return sum(prod(shape) for shape in self.activations)

    @property
    def weight_elements(self) -> int:
        """Return the number of weight elements."""
        return sum(prod(shape) for shape in self.weights)

    @property
    def written_elements(self) -> int:
        """Return the number of elements written."""
        return sum(prod(shape) for shape in self.outputs)


@dataclass(frozen=True, slots=True)
class OperationCount:
    """Counts of one operator: FLOP and elements read and written per sample, and weight elements read per batch."""

    flop: float
    read: float
    written: float
    weight: float = 0.0


CountingRule = Callable[[Operation], OperationCount]


def _count_moved(operation: Operation, flop: float) -> OperationCount:
    """Count every input as read once and every output as written once."""
    return OperationCount(flop, operation.read_elements, operation.written_elements, operation.weight_elements)


def count_convolution(operation: Operation) -> OperationCount:
    """Count a convolution of one to three dimensions: 2 Cout Ho Wo (Cin/g) Kh Kw + Cout Ho Wo FLOP."""
    per_output = operation.activations[0][1] // operation.groups * prod(operation.window)
    return _count_moved(operation, (2 * per_output + 1) * operation.written_elements)


def count_transposed_convolution(operation: Operation) -> OperationCount:
    """Count a transposed convolution: 2 Cin Hi Wi (Cout/g) Kh Kw + Cout Ho Wo FLOP.

    Every input is multiplied into a window of outputs.
    """
    per_input = operation.outputs[0][1] // operation.groups * prod(operation.window)
    return _count_moved(operation, 2 * per_input * prod(operation.activations[0]) + operation.written_elements)


def count_attention(operation: Operation) -> OperationCount:
    """Count attention: scaling of queries and keys, their product, its softmax, and its product with the values.

    Each of the five operations reads and writes (no fusion), as when torch and ONNX decompose attention.
    """
    heads, queries, keys, key_width, value_width = operation.sizes
    scores, scaled = heads * queries * keys, heads * (queries + keys) * key_width
    flop = scaled + 2 * scores * key_width + SOFTMAX_FLOP * scores + 2 * scores * value_width
    between = scaled + 2 * scores
    return OperationCount(
        flop, operation.read_elements + between, operation.written_elements + between, operation.weight_elements
    )


def build_recurrent_rule(gates: int, gate_flop: int) -> CountingRule:
    """Return the rule of a recurrent network.

    Args:
        gates: Gates per layer; each needs 2 h (inputs + h) FLOP per step for a hidden size h.
        gate_flop: Further FLOP per step, layer and hidden element.
    """

    def rule(operation: Operation) -> OperationCount:
        steps, *widths = operation.sizes
        hidden = operation.inner
        flop = sum(2 * gates * hidden * (width + hidden) + gate_flop * hidden for width in widths)
        between = steps * hidden * (len(widths) - 1)  # elements passed from one layer to the next
        count = _count_moved(operation, steps * flop)
        return OperationCount(count.flop, count.read + between, count.written + between, count.weight)

    return rule


def build_elementwise_rule(flop: float) -> CountingRule:
    """Return the rule of an element-wise operator, with FLOP per element written.

    Every input that is not a weight is read in full, broadcast or not.
    """

    def rule(operation: Operation) -> OperationCount:
        written = operation.written_elements
        return OperationCount(flop * written, len(operation.activations) * written, written, operation.weight_elements)

    return rule


def build_per_input_rule(flop: float) -> CountingRule:
    """Return the rule of a reduction or normalisation, with FLOP per element of its first input."""

    def rule(operation: Operation) -> OperationCount:
        first = (*operation.activations, *operation.weights)[0]
        return _count_moved(operation, flop * prod(first))

    return rule


def count_adaptive_pool(operation: Operation) -> OperationCount:
    """Count adaptive pooling: one FLOP per element of every window; windows overlap if sizes do not divide evenly."""
    inside, outside = operation.activations[0], operation.outputs[0]
    spans = [_count_window_elements(i, o) for i, o in zip(inside, outside, strict=True)]
    return _count_moved(operation, float(prod(spans)))


def _count_window_elements(size: int, windows: int) -> int:
    """Return the total size of all adaptive pooling windows along one side, placed as torch does."""
    return sum(ceil((i + 1) * size / windows) - i * size // windows for i in range(windows))


def build_scatter_rule(flop: float) -> CountingRule:
    """Return the rule of writing elements into a larger tensor, which is not read or written as a whole.

    ``flop`` is per element: 0 to replace, 1 to add.
    """

    def rule(operation: Operation) -> OperationCount:
        put = operation.read_elements + operation.weight_elements
        return OperationCount(flop * put, operation.read_elements, put, operation.weight_elements)

    return rule


SOFTMAX_FLOP = 7

ARITHMETIC = (
    "abs", "add", "ceil", "clamp", "compare", "div", "eq", "floor", "ge", "gt", "le", "logical_and", "logical_not",
    "logical_or", "lt", "max_of", "min_of", "mul", "ne", "neg", "reciprocal", "remainder", "round", "sign", "sub",
)  # fmt: skip
"""Kinds with one FLOP per element."""

FUNCTIONS: dict[str, float] = {
    "relu": 1, "sigmoid": 4, "tanh": 5, "hard_sigmoid": 4, "hard_swish": 5, "silu": 5, "softmax": SOFTMAX_FLOP,
    "erf": 8,
    # Not in the paper: summed over the operations involved, with 4 for exp (as in sigmoid) and for log.
    "relu6": 2, "leaky_relu": 2, "prelu": 2, "threshold": 1, "elu": 6, "selu": 7, "celu": 7, "gelu": 12,
    "softshrink": 2, "hardshrink": 1, "softplus": 9, "mish": 15, "softsign": 3, "log_sigmoid": 9, "log_softmax": 8,
    "exp": 4, "log": 4, "sqrt": 1, "rsqrt": 2, "pow": 1, "sin": 4, "cos": 4,
    "addcmul": 2, "addcdiv": 2, "lerp": 3,
}  # fmt: skip
"""FLOP per element written."""

REDUCTIONS: dict[str, float] = {
    "mean": 1, "sum": 1, "max": 1, "min": 1, "argmax": 1, "argmin": 1, "prod": 1, "any": 1, "all": 1, "cumsum": 1,
    # Not in the paper. Sorting counts as one comparison per element: its bytes matter, not its FLOP.
    "var": 4, "norm": 2, "logsumexp": 6, "topk": 1, "sort": 1,
}  # fmt: skip
"""FLOP per element of the first input."""

NORMALISATIONS: dict[str, float] = {
    "batch_norm": 2,
    # Not in the paper: mean 1, deviation 1, square 1, its mean 1, scale 1, learnt scale and shift 2 (RMS: no mean).
    "layer_norm": 7, "group_norm": 7, "instance_norm": 7, "rms_norm": 4, "local_response_norm": 8,
}  # fmt: skip
"""FLOP per normalised element."""

COPIES = ("copy", "cat", "pad", "roll", "repeat", "flip", "tril", "triu")
"""Kinds that read every input and write every output without arithmetic."""

CHOICES = ("where", "masked_fill")
"""Element-wise kinds without arithmetic."""

GATHERS = ("gather", "embedding", "one_hot")

RULES: Mapping[str, CountingRule] = {
    "conv": count_convolution,
    "conv_transpose": count_transposed_convolution,
    # Adding the bias is not counted.
    **dict.fromkeys(("linear", "matmul"), lambda o: _count_moved(o, 2 * o.inner * o.written_elements)),
    "attention": count_attention,
    # Gates and state per hidden element, not in the paper: LSTM three sigmoids, two tanh, four products and sums, four
    # sums of the two products; GRU two sigmoids, a tanh, and seven; plain: the sum and the function.
    "lstm": build_recurrent_rule(4, 3 * 4 + 2 * 5 + 4 + 4),
    "gru": build_recurrent_rule(3, 2 * 4 + 5 + 7),
    "rnn_tanh": build_recurrent_rule(1, 6),
    "rnn_relu": build_recurrent_rule(1, 2),
    "max_pool": lambda o: _count_moved(o, (prod(o.window) - 1) * o.written_elements),
    "avg_pool": lambda o: _count_moved(o, prod(o.window) * o.written_elements),
    "adaptive_avg_pool": count_adaptive_pool,
    "adaptive_max_pool": count_adaptive_pool,
    "glu": lambda o: _count_moved(o, 5 * o.written_elements),  # a sigmoid and a product
    # In two dimensions: products and sums of the interpolation.
    "upsample_linear": lambda o: _count_moved(o, 7 * o.written_elements),
    "upsample_cubic": lambda o: _count_moved(o, 31 * o.written_elements),
    **dict.fromkeys(ARITHMETIC, build_elementwise_rule(1)),
    **{kind: build_elementwise_rule(flop) for kind, flop in FUNCTIONS.items()},
    **{kind: build_per_input_rule(flop) for kind, flop in (REDUCTIONS | NORMALISATIONS).items()},
    **dict.fromkeys(CHOICES, build_elementwise_rule(0)),
    **dict.fromkeys((*COPIES, "upsample_nearest"), lambda o: _count_moved(o, 0.0)),
    # As many elements of the larger tensor are read as are written.
    **dict.fromkeys(GATHERS, lambda o: OperationCount(0.0, o.written_elements, o.written_elements)),
    "scatter": build_scatter_rule(0),
    "scatter_add": build_scatter_rule(1),
    "fill": lambda o: OperationCount(0.0, 0.0, o.written_elements),
    "view": lambda _: OperationCount(0.0, 0.0, 0.0),
}
"""One rule per kind of operator."""


def count_operation(operation: Operation) -> OperationCount:
    """Count the FLOP and elements moved by an operator.

    Raises:
        KeyError: There is no rule for its kind; the caller reports it.
    """
    return RULES[operation.kind](operation)


FOLDABLE_KINDS = frozenset({"conv", "conv_transpose", "linear"})
"""Kinds that a following batch normalisation can be folded into."""


def build_layer_cost(
    name: str,
    operation: Operation,
    parameters: int,
    convolution: Convolution | None = None,
    made_by: str | None = None,
) -> LayerCost:
    """Count the cost of one operator; inputs that depend on no sample move once per batch, as weights do.

    ``parameters`` are the learnt ones that no earlier layer has used. A batch normalisation that follows a foldable
    kind (``made_by``) costs one weight per channel, and nothing else.

    Raises:
        KeyError: There is no rule for the operator's kind.
    """
    if operation.kind == "batch_norm" and made_by in FOLDABLE_KINDS:
        found = OperationCount(0.0, 0.0, 0.0, operation.outputs[0][1])
    else:
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
    return _as_whole(sqrt(prod(sides)))


def _as_whole(number: float) -> float:
    """Convert whole numbers to integers, so that files and tables show them as such."""
    return round(number) if number == round(number) else number
