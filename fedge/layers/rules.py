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

from fedge.layers.network import Shape

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
    def read(self) -> int:
        """Elements of all activations read."""
        return sum(prod(shape) for shape in self.activations)

    @property
    def weight(self) -> int:
        """Elements of all weights."""
        return sum(prod(shape) for shape in self.weights)

    @property
    def written(self) -> int:
        """Elements of all outputs."""
        return sum(prod(shape) for shape in self.outputs)


@dataclass(frozen=True, slots=True)
class Count:
    """What a rule found: FLOP and elements moved per sample, elements of weights per batch."""

    flop: float
    read: float
    written: float
    weight: float = 0.0


Rule = Callable[[Operation], Count]


def _moving(operation: Operation, flop: float) -> Count:
    """Everything that goes in is read once, everything that comes out is written once."""
    return Count(flop, operation.read, operation.written, operation.weight)


def convolution(operation: Operation) -> Count:
    """2 Cout Ho Wo (Cin/g) Kh Kw + Cout Ho Wo; of one to three dimensions."""
    per_output = operation.activations[0][1] // operation.groups * prod(operation.window)
    return _moving(operation, (2 * per_output + 1) * operation.written)


def transposed_convolution(operation: Operation) -> Count:
    """2 Cin Hi Wi (Cout/g) Kh Kw + Cout Ho Wo: every input is multiplied into a window of outputs."""
    per_input = operation.outputs[0][1] // operation.groups * prod(operation.window)
    return _moving(operation, 2 * per_input * prod(operation.activations[0]) + operation.written)


def product(operation: Operation) -> Count:
    """2 m n k of a dense layer or a matrix product; adding the bias is not counted."""
    return _moving(operation, 2 * operation.inner * operation.written)


def attention(operation: Operation) -> Count:
    """Queries and keys scaled, their product, its softmax, and the product of that with the values.

    Each of the five reads and writes (no fusion), as they do where torch and ONNX take attention apart.
    """
    heads, queries, keys, key_width, value_width = operation.sizes
    scores, scaled = heads * queries * keys, heads * (queries + keys) * key_width
    flop = scaled + 2 * scores * key_width + SOFTMAX * scores + 2 * scores * value_width
    between = scaled + 2 * scores
    return Count(flop, operation.read + between, operation.written + between, operation.weight)


def recurrent(gates: int, gate_flop: int) -> Rule:
    """A recurrent network: per step and layer 2 gates (din h + h h), and ``gate_flop`` per hidden element."""

    def rule(operation: Operation) -> Count:
        steps, *widths = operation.sizes
        hidden = operation.inner
        flop = sum(2 * gates * hidden * (width + hidden) + gate_flop * hidden for width in widths)
        between = steps * hidden * (len(widths) - 1)  # what one layer hands to the next
        count = _moving(operation, steps * flop)
        return Count(count.flop, count.read + between, count.written + between, count.weight)

    return rule


def elementwise(flop: float) -> Rule:
    """So many FLOP per element written; every input that is no weight is read in full, broadcast or not."""

    def rule(operation: Operation) -> Count:
        written = operation.written
        return Count(flop * written, len(operation.activations) * written, written, operation.weight)

    return rule


def per_input(flop: float) -> Rule:
    """So many FLOP per element of the first input: reductions and normalisations."""

    def rule(operation: Operation) -> Count:
        first = (*operation.activations, *operation.weights)[0]
        return _moving(operation, flop * prod(first))

    return rule


def max_pool(operation: Operation) -> Count:
    """k^2 - 1 comparisons per output."""
    return _moving(operation, (prod(operation.window) - 1) * operation.written)


def average_pool(operation: Operation) -> Count:
    """k^2 per output."""
    return _moving(operation, prod(operation.window) * operation.written)


def adaptive_pool(operation: Operation) -> Count:
    """One FLOP per element of every window; windows overlap where the sizes do not divide."""
    inside, outside = operation.activations[0], operation.outputs[0]
    spans = [_covered(i, o) for i, o in zip(inside, outside, strict=True)]
    return _moving(operation, float(prod(spans)))


def _covered(size: int, windows: int) -> int:
    """Over all windows of adaptive pooling along one side, how many elements they hold; as torch places them."""
    return sum(ceil((i + 1) * size / windows) - i * size // windows for i in range(windows))


def gathering(operation: Operation) -> Count:
    """Elements picked out of a larger tensor: as many are read as are written, and the larger one never whole."""
    return Count(0.0, operation.written, operation.written)


def scattering(flop: float) -> Rule:
    """Elements put (or added) into places of a larger tensor, which is neither read nor written as a whole."""

    def rule(operation: Operation) -> Count:
        put = operation.read + operation.weight
        return Count(flop * put, operation.read, put, operation.weight)

    return rule


def writing(operation: Operation) -> Count:
    """Constants put into a tensor: nothing is read."""
    return Count(0.0, 0.0, operation.written)


def nothing(operation: Operation) -> Count:
    """Another way of looking at the same elements: no arithmetic, nothing moved."""
    return Count(0.0, 0.0, 0.0)


def moving(operation: Operation) -> Count:
    """A copy: no arithmetic, all that goes in is read and all that comes out is written."""
    return _moving(operation, 0.0)


SOFTMAX = 7

ARITHMETIC = (
    "abs", "add", "ceil", "clamp", "compare", "div", "eq", "floor", "ge", "gt", "le", "logical_and", "logical_not",
    "logical_or", "lt", "max_of", "min_of", "mul", "ne", "neg", "reciprocal", "remainder", "round", "sign", "sub",
)  # fmt: skip
"""One FLOP per element."""

FUNCTIONS: dict[str, float] = {
    "relu": 1, "sigmoid": 4, "tanh": 5, "hard_sigmoid": 4, "hard_swish": 5, "silu": 5, "softmax": SOFTMAX, "erf": 8,
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

RULES: Mapping[str, Rule] = {
    "conv": convolution,
    "conv_transpose": transposed_convolution,
    "linear": product,
    "matmul": product,
    "attention": attention,
    # Gates and state per hidden element, chosen by us: LSTM three sigmoids, two tanh, four products and sums, four sums
    # of the two products; GRU two sigmoids, a tanh, and seven; plain: the sum and the function.
    "lstm": recurrent(4, 3 * 4 + 2 * 5 + 4 + 4),
    "gru": recurrent(3, 2 * 4 + 5 + 7),
    "rnn_tanh": recurrent(1, 6),
    "rnn_relu": recurrent(1, 2),
    "max_pool": max_pool,
    "avg_pool": average_pool,
    "adaptive_avg_pool": adaptive_pool,
    "adaptive_max_pool": adaptive_pool,
    "glu": lambda operation: _moving(operation, 5 * operation.written),  # a sigmoid and a product; chosen by us
    "upsample_nearest": moving,
    "upsample_linear": lambda operation: _moving(operation, 7 * operation.written),  # of two dimensions; chosen by us
    "upsample_cubic": lambda operation: _moving(operation, 31 * operation.written),  # of two dimensions; chosen by us
    **dict.fromkeys(ARITHMETIC, elementwise(1)),
    **{kind: elementwise(flop) for kind, flop in FUNCTIONS.items()},
    **{kind: per_input(flop) for kind, flop in (REDUCTIONS | NORMALISATIONS).items()},
    **dict.fromkeys(CHOICES, elementwise(0)),
    **dict.fromkeys(COPIES, moving),
    **dict.fromkeys(GATHERS, gathering),
    "scatter": scattering(0),
    "scatter_add": scattering(1),
    **dict.fromkeys(FILLS, writing),
    **dict.fromkeys(VIEWS, nothing),
}
"""One rule per kind of operator."""


def count(operation: Operation) -> Count:
    """What an operator holds. Raises ``KeyError`` for a kind without a rule: the caller reports it."""
    return RULES[operation.kind](operation)
