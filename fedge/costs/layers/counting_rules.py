"""How much one operator computes and moves: a table of one function per kind of operator, without fusion.

    b      samples of a batch; everything here is for one sample, and weights are for one batch
    s      4 bytes per element, whatever the type (``ELEMENT_BYTES``)
    read   elements of activations read, per sample; written: elements written, per sample
    weight elements of weights read, once per batch

Convolution 2 Cout Ho Wo (Cin/g) Kh Kw + Cout Ho Wo (the last for a bias, its own or that of a folded normalisation);
dense and matrix product 2 m n k; element-wise operators one or a few FLOP per element, one read per tensor that is not
a weight (a broadcast one counts in full) and one write; pooling k^2 - 1 (max) or k^2 (average) per output. Counting
rules and FLOP per element are Pagoda's (arXiv 2509.20189); where a comment says so, they were chosen by us.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil, prod

from fedge.costs.layers.network_cost import Shape

ELEMENT_BYTES = 4.0


@dataclass(frozen=True, slots=True)
class Operation:
    """One operator as it ran on one sample: shapes of what it read and wrote, and the geometry that its kind needs."""

    kind: str
    activations: tuple[Shape, ...] = ()
    """Inputs that depend on the sample."""
    weights: tuple[Shape, ...] = ()
    """Inputs that do not, bias included; read once per batch."""
    outputs: tuple[Shape, ...] = ()
    window: Shape = ()
    """Of a convolution or a pooling: the kernel's sides."""
    groups: int = 1
    inner: int = 0
    """Of a product: the dimension summed over. Of a recurrent network: the hidden size."""
    sizes: Shape = field(default=())
    """Of attention: (heads times samples, queries, keys, width of keys, width of values). Of a recurrent network:
    (steps, inputs of layer 1, inputs of layer 2, ...), a direction counting as a layer."""

    @property
    def read_elements(self) -> int:
        """Elements of all activations read."""
        return sum(prod(shape) for shape in self.activations)

    @property
    def weight_elements(self) -> int:
        """Elements of all weights."""
        return sum(prod(shape) for shape in self.weights)

    @property
    def written_elements(self) -> int:
        """Elements of all outputs."""
        return sum(prod(shape) for shape in self.outputs)


@dataclass(frozen=True, slots=True)
class OperationCount:
    """What a rule found: FLOP and elements moved per sample, elements of weights per batch."""

    flop: float
    read: float
    written: float
    weight: float = 0.0


CountingRule = Callable[[Operation], OperationCount]


def _count_moved(operation: Operation, flop: float) -> OperationCount:
    """Everything that goes in is read once, everything that comes out is written once."""
    return OperationCount(flop, operation.read_elements, operation.written_elements, operation.weight_elements)


def count_convolution(operation: Operation) -> OperationCount:
    """2 Cout Ho Wo (Cin/g) Kh Kw + Cout Ho Wo; of one to three dimensions."""
    per_output = operation.activations[0][1] // operation.groups * prod(operation.window)
    return _count_moved(operation, (2 * per_output + 1) * operation.written_elements)


def count_transposed_convolution(operation: Operation) -> OperationCount:
    """2 Cin Hi Wi (Cout/g) Kh Kw + Cout Ho Wo: every input is multiplied into a window of outputs."""
    per_input = operation.outputs[0][1] // operation.groups * prod(operation.window)
    return _count_moved(operation, 2 * per_input * prod(operation.activations[0]) + operation.written_elements)


def count_product(operation: Operation) -> OperationCount:
    """2 m n k of a dense layer or a matrix product; adding the bias is not counted."""
    return _count_moved(operation, 2 * operation.inner * operation.written_elements)


def count_attention(operation: Operation) -> OperationCount:
    """Queries and keys scaled, their product, its softmax, and the product of that with the values.

    Each of the five reads and writes (no fusion), as they do where torch and ONNX take attention apart.
    """
    heads, queries, keys, key_width, value_width = operation.sizes
    scores, scaled = heads * queries * keys, heads * (queries + keys) * key_width
    flop = scaled + 2 * scores * key_width + SOFTMAX_FLOP * scores + 2 * scores * value_width
    between = scaled + 2 * scores
    return OperationCount(
        flop, operation.read_elements + between, operation.written_elements + between, operation.weight_elements
    )


def build_recurrent_rule(gates: int, gate_flop: int) -> CountingRule:
    """A recurrent network: per step and layer 2 gates (din h + h h), and ``gate_flop`` per hidden element."""

    def rule(operation: Operation) -> OperationCount:
        steps, *widths = operation.sizes
        hidden = operation.inner
        flop = sum(2 * gates * hidden * (width + hidden) + gate_flop * hidden for width in widths)
        between = steps * hidden * (len(widths) - 1)  # what one layer hands to the next
        count = _count_moved(operation, steps * flop)
        return OperationCount(count.flop, count.read + between, count.written + between, count.weight)

    return rule


def build_elementwise_rule(flop: float) -> CountingRule:
    """So many FLOP per element written; every input that is no weight is read in full, broadcast or not."""

    def rule(operation: Operation) -> OperationCount:
        written = operation.written_elements
        return OperationCount(flop * written, len(operation.activations) * written, written, operation.weight_elements)

    return rule


def build_per_input_rule(flop: float) -> CountingRule:
    """So many FLOP per element of the first input: reductions and normalisations."""

    def rule(operation: Operation) -> OperationCount:
        first = (*operation.activations, *operation.weights)[0]
        return _count_moved(operation, flop * prod(first))

    return rule


def count_max_pool(operation: Operation) -> OperationCount:
    """k^2 - 1 comparisons per output."""
    return _count_moved(operation, (prod(operation.window) - 1) * operation.written_elements)


def count_average_pool(operation: Operation) -> OperationCount:
    """k^2 per output."""
    return _count_moved(operation, prod(operation.window) * operation.written_elements)


def count_adaptive_pool(operation: Operation) -> OperationCount:
    """One FLOP per element of every window; windows overlap where the sizes do not divide."""
    inside, outside = operation.activations[0], operation.outputs[0]
    spans = [_count_window_elements(i, o) for i, o in zip(inside, outside, strict=True)]
    return _count_moved(operation, float(prod(spans)))


def _count_window_elements(size: int, windows: int) -> int:
    """Over all windows of adaptive pooling along one side, how many elements they hold; as torch places them."""
    return sum(ceil((i + 1) * size / windows) - i * size // windows for i in range(windows))


def count_gather(operation: Operation) -> OperationCount:
    """Elements picked out of a larger tensor: as many are read as are written, and the larger one never whole."""
    return OperationCount(0.0, operation.written_elements, operation.written_elements)


def build_scatter_rule(flop: float) -> CountingRule:
    """Elements put (or added) into places of a larger tensor, which is neither read nor written as a whole."""

    def rule(operation: Operation) -> OperationCount:
        put = operation.read_elements + operation.weight_elements
        return OperationCount(flop * put, operation.read_elements, put, operation.weight_elements)

    return rule


def count_fill(operation: Operation) -> OperationCount:
    """Constants put into a tensor: nothing is read."""
    return OperationCount(0.0, 0.0, operation.written_elements)


def count_view(operation: Operation) -> OperationCount:
    """Another way of looking at the same elements: no arithmetic, nothing moved."""
    return OperationCount(0.0, 0.0, 0.0)


def count_copy(operation: Operation) -> OperationCount:
    """A copy: no arithmetic, all that goes in is read and all that comes out is written."""
    return _count_moved(operation, 0.0)


SOFTMAX_FLOP = 7

ARITHMETIC = (
    "abs", "add", "ceil", "clamp", "compare", "div", "eq", "floor", "ge", "gt", "le", "logical_and", "logical_not",
    "logical_or", "lt", "max_of", "min_of", "mul", "ne", "neg", "reciprocal", "remainder", "round", "sign", "sub",
)  # fmt: skip
"""One FLOP per element."""

FUNCTIONS: dict[str, float] = {
    "relu": 1, "sigmoid": 4, "tanh": 5, "hard_sigmoid": 4, "hard_swish": 5, "silu": 5, "softmax": SOFTMAX_FLOP, "erf": 8,
    # Chosen by us, from the operators that they are made of, with 4 for exp (as in sigmoid) and for log:
    "relu6": 2, "leaky_relu": 2, "prelu": 2, "threshold": 1, "elu": 6, "selu": 7, "celu": 7, "gelu": 12,
    "softshrink": 2, "hardshrink": 1, "softplus": 9, "mish": 15, "softsign": 3, "log_sigmoid": 9, "log_softmax": 8,
    "exp": 4, "log": 4, "sqrt": 1, "rsqrt": 2, "pow": 1, "sin": 4, "cos": 4,
    "addcmul": 2, "addcdiv": 2, "lerp": 3,
}  # fmt: skip
"""FLOP per element of functions."""

REDUCTIONS: dict[str, float] = {
    "mean": 1, "sum": 1, "max": 1, "min": 1, "argmax": 1, "argmin": 1, "prod": 1, "any": 1, "all": 1, "cumsum": 1,
    # Chosen by us. Sorting counts as one comparison per element: its bytes matter, not its FLOP.
    "var": 4, "norm": 2, "logsumexp": 6, "topk": 1, "sort": 1,
}  # fmt: skip
"""FLOP per element of the first input."""

NORMALISATIONS: dict[str, float] = {
    "batch_norm": 2,
    # Chosen by us: mean 1, deviation 1, square 1, its mean 1, scale 1, the learnt scale and shift 2 (RMS: no mean).
    "layer_norm": 7, "group_norm": 7, "instance_norm": 7, "rms_norm": 4, "local_response_norm": 8,
}  # fmt: skip
"""FLOP per element normalised."""

COPIES = ("copy", "cat", "pad", "roll", "repeat", "flip", "tril", "triu")
"""All that goes in is read, all that comes out is written, nothing is computed."""

CHOICES = ("where", "masked_fill")
"""Element-wise without arithmetic."""

GATHERS = ("gather", "embedding", "one_hot")
FILLS = ("fill",)
VIEWS = ("view",)

RULES: Mapping[str, CountingRule] = {
    "conv": count_convolution,
    "conv_transpose": count_transposed_convolution,
    "linear": count_product,
    "matmul": count_product,
    "attention": count_attention,
    # Gates and state per hidden element, chosen by us: LSTM three sigmoids, two tanh, four products and sums, four sums
    # of the two products; GRU two sigmoids, a tanh, and seven; plain: the sum and the function.
    "lstm": build_recurrent_rule(4, 3 * 4 + 2 * 5 + 4 + 4),
    "gru": build_recurrent_rule(3, 2 * 4 + 5 + 7),
    "rnn_tanh": build_recurrent_rule(1, 6),
    "rnn_relu": build_recurrent_rule(1, 2),
    "max_pool": count_max_pool,
    "avg_pool": count_average_pool,
    "adaptive_avg_pool": count_adaptive_pool,
    "adaptive_max_pool": count_adaptive_pool,
    "glu": lambda operation: _count_moved(
        operation, 5 * operation.written_elements
    ),  # a sigmoid and a product; chosen by us
    "upsample_nearest": count_copy,
    "upsample_linear": lambda operation: _count_moved(
        operation, 7 * operation.written_elements
    ),  # of two dimensions; chosen by us
    "upsample_cubic": lambda operation: _count_moved(
        operation, 31 * operation.written_elements
    ),  # of two dimensions; chosen by us
    **dict.fromkeys(ARITHMETIC, build_elementwise_rule(1)),
    **{kind: build_elementwise_rule(flop) for kind, flop in FUNCTIONS.items()},
    **{kind: build_per_input_rule(flop) for kind, flop in (REDUCTIONS | NORMALISATIONS).items()},
    **dict.fromkeys(CHOICES, build_elementwise_rule(0)),
    **dict.fromkeys(COPIES, count_copy),
    **dict.fromkeys(GATHERS, count_gather),
    "scatter": build_scatter_rule(0),
    "scatter_add": build_scatter_rule(1),
    **dict.fromkeys(FILLS, count_fill),
    **dict.fromkeys(VIEWS, count_view),
}
"""One rule per kind of operator."""


def count_operation(operation: Operation) -> OperationCount:
    """What an operator holds. Raises ``KeyError`` for a kind without a rule: the caller reports it."""
    return RULES[operation.kind](operation)
