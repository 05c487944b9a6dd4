"""Costs of a network in an ONNX file, from its graph and inferred shapes; weights are not read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedge.costs.layers.counting_rules import (
    RULES,
    Operation,
    build_convolution,
    build_layer_cost,
)
from fedge.costs.layers.network_cost import Convolution, LayerCost, NetworkCost, Shape
from fedge.errors import BadInput, describe_error, one_line
from fedge.extras import build_install_command

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto


SIZE_OPERATORS = frozenset({
    "Add", "Cast", "Concat", "Constant", "ConstantOfShape", "Div", "Equal", "Expand", "Floor", "Gather", "Identity",
    "Mod", "Mul", "Neg", "Range", "ReduceProd", "Reshape", "Shape", "Slice", "Squeeze", "Sub", "Transpose", "Unsqueeze",
    "Where",
})  # fmt: skip
"""Operators with which exporters compute sizes."""
MAX_SIZE_ELEMENTS = 64
"""Number of elements up to which an integer tensor may be a list of sizes. Default; shapes have far fewer, and larger
tensors are data."""
FIXED_SIZES_HINT = "a network exported with fixed sizes; only the batch may be left open"


def read_onnx(path: Path) -> NetworkCost:
    """Read the cost per sample of the network in an ONNX file; sizes are fixed, except for the batch.

    Raises:
        BadInput: The file cannot be read, has several inputs or open sizes, or the package ``onnx`` is not installed.
    """
    model = _infer_shapes(_load_model(path), path)
    reader = _GraphReader(model.graph, path)
    for node in model.graph.node:
        try:
            reader.add_node(node)
        except (LookupError, TypeError, ValueError) as error:  # an input or attribute is missing or of another type
            got = f"an operator {node.op_type} that cannot be read ({describe_error(error)})"
            raise BadInput(f"{path}: {node.name or node.output[0]}", got, "a whole ONNX file") from error
    return NetworkCost(
        path.stem,
        input_shape=reader.input_shape,
        layers=tuple(reader.layers),
        source=f"ONNX file {path.name}",
        unknown=tuple(reader.unknown),
    )


def _load_model(path: Path) -> ModelProto:
    try:
        import onnx
    except ImportError as error:
        raise BadInput(str(path), "no package onnx", build_install_command("onnx")) from error
    try:
        model = onnx.load(str(path), load_external_data=False)
    except FileNotFoundError as error:
        raise BadInput(str(path), "no such file", "the path of an ONNX file") from error
    except Exception as error:  # the parser raises exceptions that are not part of onnx's interface
        raise BadInput(str(path), f"a file that onnx cannot read ({one_line(error)})", "a whole ONNX file") from error
    if not model.graph.node:
        raise BadInput(str(path), "a file without operators", "a whole ONNX file")
    return model


def _infer_shapes(model: ModelProto, path: Path) -> ModelProto:
    """Return the model with a batch of one, and with the shape of every tensor that can be inferred."""
    import onnx

    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    if len(inputs) != 1:
        names = ", ".join(value.name for value in inputs)
        raise BadInput(str(path), f"a network with {len(inputs)} inputs ({names})", "a network with one input")
    _check_sizes(inputs[0], path)
    for tensor in model.graph.initializer:
        if not _may_be_size(tensor):  # shape inference would copy the weights each time, and needs none
            for field in ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
                tensor.ClearField(field)
    opened = inputs[0].type.tensor_type.shape.dim[0].dim_param
    inputs[0].type.tensor_type.shape.dim[0].dim_value = 1
    for value in (*model.graph.output, *model.graph.value_info):
        for size in value.type.tensor_type.shape.dim:
            if opened and size.dim_param == opened:
                size.dim_value = 1
    try:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        while _fold_computed_sizes(model.graph):
            model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:
        raise BadInput(str(path), f"shapes that do not go together ({one_line(error)})", "a whole ONNX file") from error
    return model


def _fold_computed_sizes(graph: GraphProto) -> int:
    """Replace nodes that compute sizes from known sizes by their results, which shape inference does only in part.

    Returns the number of replaced nodes; each may make further shapes known.
    """
    from onnx import numpy_helper
    from onnx.reference import ReferenceEvaluator

    shapes = {value.name: _known_shape(value) for value in (*graph.input, *graph.value_info)}
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer if _may_be_size(tensor)}
    done = []
    for node in graph.node:
        shape = shapes.get(node.input[0]) if node.op_type == "Shape" else None
        feeds = {name: values[name] for name in node.input if name in values}
        if shape is not None:
            feeds = {node.input[0]: np.broadcast_to(np.float32(0), shape)}
        if node.op_type not in SIZE_OPERATORS or len(feeds) < len(set(node.input)):
            continue
        results: Any = ReferenceEvaluator(node).run(None, feeds)
        value = np.asarray(results[0])
        if value.size <= MAX_SIZE_ELEMENTS and (value.dtype.kind in "iub" or value.ndim == 0):
            values[node.output[0]] = value
            graph.initializer.append(numpy_helper.from_array(value, node.output[0]))
            done.append(node)
    for node in done:
        graph.node.remove(node)
    settled = [value for value in graph.value_info if _known_shape(value) is not None]
    del graph.value_info[:]  # drop incomplete shapes, so that they are inferred again
    graph.value_info.extend(settled)
    return len(done)


def _may_be_size(tensor: TensorProto) -> bool:
    """Return whether a tensor consists of a few integers stored in the file itself."""
    from onnx import TensorProto as Types

    inside = tensor.data_location != Types.EXTERNAL
    return inside and tensor.data_type in {Types.INT64, Types.INT32} and prod(tensor.dims) <= MAX_SIZE_ELEMENTS


def _check_sizes(value: ValueInfoProto, path: Path) -> None:
    sizes = value.type.tensor_type.shape.dim
    shown = "x".join(size.dim_param or str(size.dim_value or "?") for size in sizes) or "unknown"
    where = f"{path}: input {value.name}"
    if len(sizes) < 2 or not all(size.dim_value for size in sizes[1:]):
        raise BadInput(where, shown, FIXED_SIZES_HINT)
    if sizes[0].dim_value > 1:
        raise BadInput(where, f"a batch fixed at {sizes[0].dim_value} ({shown})", "a batch of one, or one left open")


class _GraphReader:
    """Converter of a graph's nodes to layers, in order of execution."""

    def __init__(self, graph: GraphProto, path: Path) -> None:
        self.path = path
        self.layers: list[LayerCost] = []
        self.unknown: list[str] = []
        tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._shapes: dict[str, Shape] = {name: tuple(tensor.dims) for name, tensor in tensors.items()}
        for value in (*graph.input, *graph.value_info, *graph.output):
            shape = _known_shape(value)
            if shape is not None and value.name not in tensors:
                self._shapes[value.name] = shape
        self._constant = set(tensors)
        self._unseen = {name: prod(tensor.dims) for name, tensor in tensors.items() if _may_be_learnt(tensor)}
        self._made_by: dict[str, str] = {}
        images = next(value.name for value in graph.input if value.name not in tensors)
        self.input_shape = self._shapes[images][1:]

    def add_node(self, node: NodeProto) -> None:
        """Add the node's layer, or its name if there is no rule for it."""
        inputs = [name for name in node.input if name]
        constant = node.op_type in CREATORS or all(name in self._constant for name in inputs)
        if constant:
            self._constant.update(node.output)
        if node.op_type in FREE:
            self._follow_reshape(node, inputs)
            return
        settings = _read_settings(node)
        kind = _find_kind(node, settings)
        if kind is None or kind not in RULES or node.domain not in {"", "ai.onnx"}:
            self._report_unknown(f"{node.domain}::{node.op_type}".removeprefix("::"))
            return
        self._add_layer(node, kind, inputs, settings)

    def _follow_reshape(self, node: NodeProto, inputs: list[str]) -> None:
        """Treat a parameter that is only reshaped as the same parameter."""
        if inputs and inputs[0] in self._unseen and node.output[0] in self._constant:
            self._unseen[node.output[0]] = self._unseen.pop(inputs[0])

    def _add_layer(self, node: NodeProto, kind: str, inputs: list[str], settings: Mapping[str, Any]) -> None:
        if node.op_type == "Concat" and not any(self._depends_on_sample(name) for name in inputs):
            return  # computes sizes for a reshape
        if node.op_type in {"Gather", "Add", "Mul", "Div", "Sub"} and all(self._is_size(name) for name in inputs):
            return  # likewise
        operation, convolution = self._build_operation(node, kind, inputs, settings)
        learnt = [name for place, name in enumerate(node.input) if not _is_statistic(node, place)]
        parameters = sum(self._unseen.pop(name, 0) for name in learnt)
        name = node.name or f"{node.op_type}:{node.output[0]}"
        made_by = self._made_by.get(inputs[0]) if inputs else None
        self.layers.append(build_layer_cost(name, operation, parameters, convolution, made_by=made_by))
        self._made_by[node.output[0]] = operation.kind

    def _depends_on_sample(self, name: str) -> bool:
        return name not in self._constant

    def _is_size(self, name: str) -> bool:
        return name in self._constant and prod(self._shapes.get(name, ())) <= 8 and name not in self._unseen

    def _report_unknown(self, name: str) -> None:
        if name not in self.unknown:
            self.unknown.append(name)

    def _find_shape(self, name: str) -> Shape:
        if name not in self._shapes:
            raise BadInput(f"{self.path}: {name}", "a shape that cannot be known beforehand", FIXED_SIZES_HINT)
        return self._shapes[name]

    def _build_operation(
        self, node: NodeProto, kind: str, inputs: list[str], settings: Mapping[str, Any]
    ) -> tuple[Operation, Convolution | None]:
        """Convert a node to its rule's operation and, for a convolution, its geometry."""
        read = inputs[:1] if node.op_type in ONLY_FIRST_INPUT else inputs[2:3] if kind == "scatter" else inputs
        operation = Operation(
            kind,
            activations=tuple(self._find_shape(name) for name in read if self._depends_on_sample(name)),
            weights=tuple(self._find_shape(name) for name in read if not self._depends_on_sample(name)),
            outputs=(self._find_shape(node.output[0]),),
        )
        if kind in {"conv", "conv_transpose"}:
            return _describe_convolution(operation, self._find_shape(inputs[1]), settings)
        details = DETAILS.get(node.op_type)
        if details is not None:
            operation = details(operation, [self._find_shape(name) for name in inputs], settings)
        return operation, None


ONLY_FIRST_INPUT = frozenset({
    "Clip", "Pad", "Tile", "Resize", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2",
    "ReduceLogSumExp", "CumSum", "TopK", "Trilu",
})  # fmt: skip
"""Operators whose further inputs are settings."""


def _known_shape(value: ValueInfoProto) -> Shape | None:
    kind = value.type.tensor_type
    if not kind.HasField("shape") or not all(size.HasField("dim_value") for size in kind.shape.dim):
        return None
    return tuple(size.dim_value for size in kind.shape.dim)


def _may_be_learnt(tensor: TensorProto) -> bool:
    """Return whether a tensor may be a parameter: integers are sizes or indices, single numbers are settings."""
    from onnx import TensorProto as Types

    real = {Types.FLOAT, Types.DOUBLE, Types.FLOAT16, Types.BFLOAT16}
    return tensor.data_type in real and prod(tensor.dims) > 1


def _is_statistic(node: NodeProto, place: int) -> bool:
    return node.op_type == "BatchNormalization" and place in STATISTICS_INPUTS


def _read_settings(node: NodeProto) -> dict[str, Any]:
    from onnx import helper

    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def _find_kind(node: NodeProto, settings: Mapping[str, Any]) -> str | None:
    """Return the kind of rule that counts a node, or None if there is none."""
    if node.op_type == "Resize":
        return RESIZE_KINDS.get(_decode_text(settings.get("mode")))
    if node.op_type == "Einsum":
        return "matmul" if len(node.input) == 2 and "." not in _decode_text(settings["equation"]) else None
    return KINDS.get(node.op_type)


def _decode_text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "nearest")


def _describe_convolution(
    operation: Operation, weight: Shape, settings: Mapping[str, Any]
) -> tuple[Operation, Convolution | None]:
    window = weight[2:]
    one = (1,) * len(window)
    made = replace(operation, window=window, groups=settings.get("group", 1))
    if operation.kind == "conv_transpose" or not operation.activations:
        return made, None
    stride, dilation = (tuple(settings.get(name, one)) for name in ("strides", "dilations"))
    return made, build_convolution(made, stride, _side_paddings(made, stride, dilation, settings), dilation)


def _side_paddings(operation: Operation, stride: Shape, dilation: Shape, settings: Mapping[str, Any]) -> Shape:
    """Return the padding of each side: half of the total at both ends, rounded up."""
    sides = len(operation.window)
    if (pads := settings.get("pads")) is not None:
        return tuple((pads[side] + pads[side + sides] + 1) // 2 for side in range(sides))
    if _decode_text(settings.get("auto_pad", b"NOTSET")) in {"NOTSET", "VALID"}:
        return (0,) * sides
    reach = [d * (k - 1) + 1 for k, d in zip(operation.window, dilation, strict=True)]
    inside, outside = operation.activations[0][2:], operation.outputs[0][2:]
    lacking = [(o - 1) * s + r - i for i, o, s, r in zip(inside, outside, stride, reach, strict=True)]
    return tuple((max(lack, 0) + 1) // 2 for lack in lacking)


OperationDetails = Callable[[Operation, list[Shape], Mapping[str, Any]], Operation]


def _describe_gemm(operation: Operation, inputs: list[Shape], settings: Mapping[str, Any]) -> Operation:
    return replace(operation, inner=inputs[0][0 if settings.get("transA") else 1])


def _describe_matmul(operation: Operation, inputs: list[Shape], settings: Mapping[str, Any]) -> Operation:
    return replace(operation, kind="linear" if operation.weights else "matmul", inner=inputs[0][-1])


def _describe_einsum(operation: Operation, inputs: list[Shape], settings: Mapping[str, Any]) -> Operation:
    """Describe a product of two tensors; the inner dimension is the product of all that are summed over."""
    letters = _decode_text(settings["equation"]).replace(" ", "").split("->")[0].split(",")
    sizes = {
        letter: size
        for names, shape in zip(letters, inputs, strict=True)
        for letter, size in zip(names, shape, strict=True)
    }
    return replace(operation, inner=prod(sizes.values()) // prod(operation.outputs[0]))


def _describe_pool(operation: Operation, inputs: list[Shape], settings: Mapping[str, Any]) -> Operation:
    return replace(operation, window=tuple(settings["kernel_shape"]))


def _describe_recurrent(operation: Operation, inputs: list[Shape], settings: Mapping[str, Any]) -> Operation:
    """Describe one recurrent layer, in one or both directions.

    Inputs are (steps, batch, width), weights (directions, gates h, width).
    """
    steps, width = inputs[0][0], inputs[0][-1]
    return replace(operation, inner=settings["hidden_size"], sizes=(steps, *(width,) * inputs[1][0]))


def _describe_attention(operation: Operation, inputs: list[Shape], settings: Mapping[str, Any]) -> Operation:
    """Describe attention on (batch, heads, length, width), or on three dimensions with merged heads."""
    query, key, value = inputs[:3]
    heads = query[1] if len(query) == 4 else settings.get("q_num_heads", 1)
    apart = 1 if len(query) == 4 else heads
    return replace(operation, sizes=(heads, query[-2], key[-2], query[-1] // apart, value[-1] // apart))


DETAILS: dict[str, OperationDetails] = {
    "Gemm": _describe_gemm,
    "Einsum": _describe_einsum,
    "MatMul": _describe_matmul,
    "MaxPool": _describe_pool,
    "AveragePool": _describe_pool,
    "LSTM": _describe_recurrent,
    "GRU": _describe_recurrent,
    "RNN": _describe_recurrent,
    "Attention": _describe_attention,
}
"""Functions that add what rules need besides shapes, by operator."""


FREE = frozenset({
    "Cast", "CastLike", "Constant", "Dropout", "Expand", "Flatten", "Identity", "Reshape", "Shape", "Size", "Slice",
    "Split", "Squeeze", "Unsqueeze",
})  # fmt: skip
"""Operators that view the same elements, compute sizes, or do nothing in inference: free, as in torch.

Transpose is not among them: a runtime that executes it moves every element, which torch does later or never."""

CREATORS = frozenset({"ConstantOfShape", "EyeLike", "RandomNormal", "RandomUniform", "Range", "Shape", "Size"})
"""Operators whose result does not depend on a sample's numbers."""

KINDS: dict[str, str] = {
    "Conv": "conv", "ConvTranspose": "conv_transpose", "Gemm": "linear", "MatMul": "matmul", "Attention": "attention",
    "LSTM": "lstm", "GRU": "gru", "RNN": "rnn_tanh",
    "BatchNormalization": "batch_norm", "LayerNormalization": "layer_norm", "GroupNormalization": "group_norm",
    "InstanceNormalization": "instance_norm", "RMSNormalization": "rms_norm", "LRN": "local_response_norm",
    "MaxPool": "max_pool", "AveragePool": "avg_pool", "GlobalAveragePool": "mean", "GlobalMaxPool": "max",
    "ReduceMean": "mean", "ReduceSum": "sum", "ReduceMax": "max", "ReduceMin": "min", "ReduceProd": "prod",
    "ReduceL2": "norm", "ReduceLogSumExp": "logsumexp", "ArgMax": "argmax", "ArgMin": "argmin", "CumSum": "cumsum",
    "TopK": "topk",
    "Relu": "relu", "Clip": "relu6", "LeakyRelu": "leaky_relu", "PRelu": "prelu", "ThresholdedRelu": "threshold",
    "Elu": "elu", "Selu": "selu", "Celu": "celu", "Gelu": "gelu", "Softplus": "softplus", "Softsign": "softsign",
    "Mish": "mish", "Swish": "silu", "Sigmoid": "sigmoid", "Tanh": "tanh", "HardSigmoid": "hard_sigmoid",
    "HardSwish": "hard_swish", "Softmax": "softmax", "LogSoftmax": "log_softmax", "Erf": "erf", "Exp": "exp",
    "Log": "log", "Sqrt": "sqrt", "Pow": "pow", "Sin": "sin", "Cos": "cos",
    "Abs": "abs", "Add": "add", "And": "logical_and", "Ceil": "ceil", "Div": "div", "Equal": "eq", "Floor": "floor",
    "Greater": "gt", "GreaterOrEqual": "ge", "Less": "lt", "LessOrEqual": "le", "Max": "max_of", "Min": "min_of",
    "Mod": "remainder", "Mul": "mul", "Neg": "neg", "Not": "logical_not", "Or": "logical_or",
    "Reciprocal": "reciprocal", "Round": "round", "Sign": "sign", "Sub": "sub", "Sum": "add",
    "Where": "where",
    "Concat": "cat", "Pad": "pad", "Tile": "repeat", "Transpose": "copy", "DepthToSpace": "copy",
    "SpaceToDepth": "copy", "Trilu": "tril", "ReverseSequence": "flip",
    "Gather": "gather", "GatherElements": "gather", "GatherND": "gather", "OneHot": "one_hot",
    "ScatterElements": "scatter", "ScatterND": "scatter", "TensorScatter": "scatter",
    **dict.fromkeys(CREATORS, "fill"),
}  # fmt: skip
"""Kind in ``counting_rules.RULES`` of each ONNX operator; that of Resize depends on its mode (``RESIZE_KINDS``)."""

RESIZE_KINDS = {"nearest": "upsample_nearest", "linear": "upsample_linear", "cubic": "upsample_cubic"}
STATISTICS_INPUTS = frozenset({3, 4})
"""Inputs of a batch normalisation that are running statistics and not learnt."""
