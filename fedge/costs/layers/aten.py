"""Torch's operators by name: the counting rule of each, and the position of its geometry among its arguments."""

from __future__ import annotations

from collections.abc import Iterable

from fedge.costs.layers.counting_rules import ARITHMETIC, FUNCTIONS, REDUCTIONS

VIEWS = frozenset({
    "alias", "as_strided", "broadcast_to", "chunk", "detach", "diagonal", "expand", "expand_as", "flatten",
    "lift_fresh", "movedim", "narrow", "permute", "_reshape_alias", "reshape", "select", "slice", "split",
    "split_with_sizes", "squeeze", "swapaxes", "t", "transpose", "unbind", "unflatten", "unfold", "unsafe_split",
    "unsafe_split_with_sizes", "_unsafe_view", "unsqueeze", "view", "view_as", "view_as_complex", "view_as_real",
})  # fmt: skip
"""Operators that view the same elements in another shape: free, since nothing is computed or moved."""

BOOKKEEPING = frozenset({
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_", "sym_size",
    "sym_stride", "sym_numel", "sym_storage_offset", "is_same_size", "_local_scalar_dense", "_assert_async",
    "_assert_scalar", "_assert_tensor_metadata", "_has_compatible_shallow_copy_type", "dropout", "native_dropout",
    "feature_dropout", "alpha_dropout", "prim_device",
})  # fmt: skip
"""Operators that allocate memory, read a size, or do nothing outside training (dropout): free as well."""

FREE = VIEWS | BOOKKEEPING

CREATORS = frozenset({
    "arange", "eye", "fill", "full", "full_like", "linspace", "logspace", "new_full", "new_ones", "new_zeros",
    "ones", "ones_like", "rand", "rand_like", "randn", "randn_like", "scalar_tensor", "tril_indices", "triu_indices",
    "zero", "zeros", "zeros_like",
})  # fmt: skip
"""Operators whose result depends on no sample, even if a sample's tensor determines its type or size."""


SAME_NAME = ("cat", "embedding", "flip", "gather", "glu", "masked_fill", "repeat", "roll", "tril", "triu", "where")
"""Further kinds that have the name of torch's operator."""


def _map_names(kind: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), kind)


KINDS: dict[str, str] = {
    **{kind: kind for kind in (*ARITHMETIC, *FUNCTIONS, *REDUCTIONS, *SAME_NAME)},
    **_map_names("conv", "convolution _convolution mkldnn_convolution conv1d conv2d conv3d"),
    **_map_names("matmul", "mm bmm addmm baddbmm addbmm matmul mv addmv dot linear"),
    **_map_names("attention", "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention"),
    **_map_names("attention", "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention"),
    **_map_names("attention", "_scaled_dot_product_fused_attention_overrideable"),
    **_map_names("batch_norm", "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training"),
    **_map_names("batch_norm", "cudnn_batch_norm _batch_norm_with_update batch_norm"),
    **_map_names("layer_norm", "native_layer_norm"),
    **_map_names("group_norm", "native_group_norm"),
    **_map_names("rms_norm", "_fused_rms_norm rms_norm"),
    **_map_names("hard_sigmoid", "hardsigmoid"),
    **_map_names("hard_swish", "hardswish"),
    **_map_names("relu6", "hardtanh"),
    **_map_names("clamp", "clamp_min clamp_max"),
    **_map_names("prelu", "_prelu_kernel rrelu rrelu_with_noise"),
    **_map_names("softmax", "_softmax _safe_softmax"),
    **_map_names("log_softmax", "_log_softmax"),
    **_map_names("log_sigmoid", "log_sigmoid_forward"),
    **_map_names("exp", "exp2 expm1"),
    **_map_names("log", "log2 log10 log1p"),
    **_map_names("sub", "rsub"),
    **_map_names("mul", "square"),
    **_map_names("floor", "trunc floor_divide"),
    **_map_names("compare", "isnan isinf isfinite"),
    **_map_names("logical_and", "bitwise_and"),
    **_map_names("logical_or", "bitwise_or logical_xor"),
    **_map_names("logical_not", "bitwise_not"),
    **_map_names("max_of", "maximum"),
    **_map_names("min_of", "minimum"),
    **_map_names("max", "amax"),
    **_map_names("min", "amin"),
    **_map_names("var", "var_mean std std_mean"),
    **_map_names("norm", "linalg_vector_norm"),
    **_map_names("cumsum", "cumprod"),
    **_map_names("sort", "argsort"),
    **_map_names("max_pool", "max_pool2d_with_indices max_pool3d_with_indices max_pool1d_with_indices max_pool2d"),
    **_map_names("avg_pool", "avg_pool1d avg_pool2d avg_pool3d"),
    **_map_names("adaptive_avg_pool", "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d"),
    **_map_names("adaptive_avg_pool", "adaptive_avg_pool2d adaptive_avg_pool3d"),
    **_map_names("adaptive_max_pool", "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d"),
    **_map_names("upsample_nearest", "upsample_nearest1d upsample_nearest2d upsample_nearest3d"),
    **_map_names(
        "upsample_linear", "upsample_linear1d upsample_bilinear2d upsample_trilinear3d _upsample_bilinear2d_aa"
    ),
    **_map_names("upsample_cubic", "upsample_bicubic2d"),
    **_map_names("copy", "clone contiguous _to_copy copy pixel_shuffle pixel_unshuffle channel_shuffle im2col col2im"),
    **_map_names("copy", "native_channel_shuffle"),
    **_map_names("cat", "stack"),
    **_map_names("pad", "constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d"),
    **_map_names("pad", "reflection_pad3d replication_pad3d"),
    **_map_names("repeat", "repeat_interleave tile"),
    **_map_names("gather", "index _unsafe_index index_select take"),
    **_map_names("scatter", "scatter index_put _index_put_impl index_copy masked_scatter slice_scatter select_scatter"),
    **_map_names("scatter_add", "scatter_add index_add scatter_reduce"),
    **dict.fromkeys(CREATORS, "fill"),
}
"""Kind in ``counting_rules.RULES`` of each torch operator, named as in torch without an in-place underscore.

``matmul`` becomes ``linear`` if one operand is a weight, ``conv`` becomes ``conv_transpose`` if it is transposed."""

RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
"""Functions that torch decomposes into single steps, but that are counted as one layer."""

CELLS = {f"{kind}_cell": kind for kind in RECURRENT}
"""Kind by the name of its cell: one step of one layer, which a network calls in a loop of its own."""

ONLY_FIRST_OUTPUT = frozenset({
    "attention", "batch_norm", "layer_norm", "group_norm", "rms_norm", "max_pool", "adaptive_max_pool", "log_sigmoid",
})  # fmt: skip
"""Kinds whose further outputs are statistics or indices for the backward pass, which inference does not keep."""


ONLY_LAST_INPUT = frozenset({"copy", "scatter", "scatter_add"})
"""Kinds that copy one tensor into another one, which is not read itself."""


def strip_operator_name(name: str) -> str:
    """Return an operator's name without namespace and in-place underscore: ``add`` for ``aten::add_``."""
    bare = name.removeprefix("aten::")
    return bare if bare in FREE or bare.startswith("__") else bare.rstrip("_")


def count_pooling_sides(name: str) -> int:
    """Return the number of spatial dimensions in a pooling operator's name: 2 for ``max_pool2d_with_indices``."""
    return int(next(letter for letter in name if letter.isdigit()))


def expand_per_side(value: int | Iterable[int], dimensions: int) -> tuple[int, ...]:
    """Expand a setting, one number or one per spatial dimension, to one number per dimension."""
    numbers = (value,) if isinstance(value, int) else tuple(value)
    return numbers * dimensions if len(numbers) == 1 else numbers
