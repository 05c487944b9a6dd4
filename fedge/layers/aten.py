"""The operators of torch by name: which rule counts each of them, and where its geometry stands among its arguments."""

from __future__ import annotations

from collections.abc import Iterable

from fedge.layers.rules import ARITHMETIC, FUNCTIONS, REDUCTIONS, RULES

VIEWS = frozenset({
    "alias", "as_strided", "broadcast_to", "chunk", "detach", "diagonal", "expand", "expand_as", "flatten",
    "lift_fresh", "movedim", "narrow", "permute", "_reshape_alias", "reshape", "select", "slice", "split",
    "split_with_sizes", "squeeze", "swapaxes", "t", "transpose", "unbind", "unflatten", "unfold", "unsafe_split",
    "unsafe_split_with_sizes", "_unsafe_view", "unsqueeze", "view", "view_as", "view_as_complex", "view_as_real",
})  # fmt: skip
"""They look at the same elements in another way: no arithmetic, nothing moved, free."""

BOOKKEEPING = frozenset({
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_", "sym_size",
    "sym_stride", "sym_numel", "sym_storage_offset", "is_same_size", "_local_scalar_dense", "_assert_async",
    "_assert_scalar", "_assert_tensor_metadata", "_has_compatible_shallow_copy_type", "dropout", "native_dropout",
    "feature_dropout", "alpha_dropout", "prim_device",
})  # fmt: skip
"""They reserve memory or ask for a size, or do nothing outside training (dropout): free as well."""

FREE = VIEWS | BOOKKEEPING

CREATORS = frozenset({
    "arange", "eye", "fill", "full", "full_like", "linspace", "logspace", "new_full", "new_ones", "new_zeros",
    "ones", "ones_like", "rand", "rand_like", "randn", "randn_like", "scalar_tensor", "tril_indices", "triu_indices",
    "zero", "zeros", "zeros_like",
})  # fmt: skip
"""Their result does not depend on any sample, even where a sample's tensor says its type or size."""


def _names(kind: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), kind)


KINDS: dict[str, str] = {
    # What has the same name here and there
    **{kind: kind for kind in (*ARITHMETIC, *FUNCTIONS, *REDUCTIONS) if kind in RULES},
    **_names("conv", "convolution _convolution mkldnn_convolution conv1d conv2d conv3d"),
    **_names("matmul", "mm bmm addmm baddbmm addbmm matmul mv addmv dot linear"),
    **_names("attention", "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention"),
    **_names("attention", "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention"),
    **_names("attention", "_scaled_dot_product_fused_attention_overrideable"),
    **_names("batch_norm", "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training"),
    **_names("batch_norm", "cudnn_batch_norm _batch_norm_with_update batch_norm"),
    **_names("layer_norm", "native_layer_norm"),
    **_names("group_norm", "native_group_norm"),
    **_names("rms_norm", "_fused_rms_norm rms_norm"),
    **_names("hard_sigmoid", "hardsigmoid"),
    **_names("hard_swish", "hardswish"),
    **_names("relu6", "hardtanh"),
    **_names("clamp", "clamp_min clamp_max"),
    **_names("prelu", "_prelu_kernel rrelu rrelu_with_noise"),
    **_names("softmax", "_softmax _safe_softmax"),
    **_names("log_softmax", "_log_softmax"),
    **_names("log_sigmoid", "log_sigmoid_forward"),
    **_names("glu", "glu"),
    **_names("exp", "exp2 expm1"),
    **_names("log", "log2 log10 log1p"),
    **_names("sub", "rsub"),
    **_names("mul", "square"),
    **_names("floor", "trunc floor_divide"),
    **_names("compare", "isnan isinf isfinite"),
    **_names("logical_and", "bitwise_and"),
    **_names("logical_or", "bitwise_or logical_xor"),
    **_names("logical_not", "bitwise_not"),
    **_names("max_of", "maximum"),
    **_names("min_of", "minimum"),
    **_names("max", "amax"),
    **_names("min", "amin"),
    **_names("var", "var_mean std std_mean"),
    **_names("norm", "linalg_vector_norm"),
    **_names("cumsum", "cumprod"),
    **_names("sort", "argsort"),
    **_names("max_pool", "max_pool2d_with_indices max_pool3d_with_indices max_pool1d_with_indices max_pool2d"),
    **_names("avg_pool", "avg_pool1d avg_pool2d avg_pool3d"),
    **_names("adaptive_avg_pool", "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d"),
    **_names("adaptive_avg_pool", "adaptive_avg_pool2d adaptive_avg_pool3d"),
    **_names("adaptive_max_pool", "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d"),
    **_names("upsample_nearest", "upsample_nearest1d upsample_nearest2d upsample_nearest3d"),
    **_names("upsample_linear", "upsample_linear1d upsample_bilinear2d upsample_trilinear3d _upsample_bilinear2d_aa"),
    **_names("upsample_cubic", "upsample_bicubic2d"),
    **_names("copy", "clone contiguous _to_copy copy pixel_shuffle pixel_unshuffle channel_shuffle im2col col2im"),
    **_names("copy", "native_channel_shuffle"),
    **_names("cat", "cat stack"),
    **_names("pad", "constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d"),
    **_names("pad", "reflection_pad3d replication_pad3d"),
    **_names("repeat", "repeat repeat_interleave tile"),
    **_names("roll", "roll"),
    **_names("flip", "flip"),
    **_names("tril", "tril"),
    **_names("triu", "triu"),
    **_names("where", "where"),
    **_names("masked_fill", "masked_fill"),
    **_names("gather", "gather index _unsafe_index index_select take"),
    **_names("embedding", "embedding"),
    **_names("scatter", "scatter index_put _index_put_impl index_copy masked_scatter slice_scatter select_scatter"),
    **_names("scatter_add", "scatter_add index_add scatter_reduce"),
    **dict.fromkeys(CREATORS, "fill"),
}
"""Which kind of ``rules.RULES`` counts an operator of torch; names as torch has them, without an in-place underscore.

``matmul`` becomes ``linear`` where one side is a weight, ``conv`` becomes ``conv_transpose`` where it is one.
"""

RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
"""Functions that torch takes apart into single steps, and that are counted as one layer."""

ONLY_FIRST_OUTPUT = frozenset({
    "attention", "batch_norm", "layer_norm", "group_norm", "rms_norm", "max_pool", "adaptive_max_pool", "log_sigmoid",
})  # fmt: skip
"""Kinds whose further outputs are statistics or places for the backward pass, which inference does not keep."""


ONLY_LAST_INPUT = frozenset({"copy", "scatter", "scatter_add"})
"""Kinds that put one tensor into another, which is not read itself."""


def plain(name: str) -> str:
    """An operator's name without name space and the underscore of what works in place: ``add`` of ``aten::add_``."""
    bare = name.removeprefix("aten::")
    return bare if bare in FREE or bare.startswith("__") else bare.rstrip("_")


def dimensions(name: str) -> int:
    """Over how many sides a pooling goes, as its name says: 2 of ``max_pool2d_with_indices``."""
    return int(next(letter for letter in name if letter.isdigit()))


def per_side(value: int | Iterable[int], dimensions: int) -> tuple[int, ...]:
    """A setting that may be one number for all sides, as one number for each."""
    numbers = (value,) if isinstance(value, int) else tuple(value)
    return numbers * dimensions if len(numbers) == 1 else numbers
