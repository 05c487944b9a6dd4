"""ONNX operators by name: the counting rule of each."""

from __future__ import annotations

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
