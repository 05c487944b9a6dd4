"""The 56 features of perf4sight: sizes and operation counts of the algorithms for convolutions.

n input and m output channels, k kernel, p padding, s stride, g groups, i input and o output side, b batch size, n_e = n
/ g. Each feature is summed over a network's convolutions. With the paper's names: tensors (5), im2col (7), GEMM (3),
FFT memory (9), FFT operations (4), Winograd memory (2 x 7), Winograd operations (2 x 7).

References:
    perf4sight (arXiv 2108.05580).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedge.types import Floats

FEATURE_COUNT = 56
WINOGRAD_TILES = ((4, 3), (3, 2))
"""Output and kernel side of the two Winograd tiles that the paper counts."""


@dataclass(frozen=True, slots=True, eq=False)
class ConvolutionGeometry:
    """Geometry of convolutions against batch sizes; every array broadcasts to (batches, layers).

    Attributes:
        b: Batch size.
        n: Input channels.
        m: Output channels.
        k: Kernel side.
        p: Padding.
        s: Stride.
        g: Groups.
        i: Input side.
    """

    b: Floats
    n: Floats
    m: Floats
    k: Floats
    p: Floats
    s: Floats
    g: Floats
    i: Floats

    @property
    def o(self) -> Floats:
        """Return the output side."""
        side: Floats = 1 + np.floor((self.i + 2 * self.p - self.k) / self.s)
        return side

    @property
    def n_e(self) -> Floats:
        """Return the input channels per group."""
        return self.n / self.g


def build_geometry(layers: Floats, batch_size: Floats) -> ConvolutionGeometry:
    """Combine layers with batch sizes.

    Args:
        layers: Convolutions as rows of ``step_table.GEOMETRY_COLUMNS``, shape (layers, 7).
        batch_size: Batch sizes, shape (batches,).
    """
    n, m, k, p, s, g, i = layers.T[:, None, :]
    return ConvolutionGeometry(np.asarray(batch_size, dtype=np.float64)[:, None], n=n, m=m, k=k, p=p, s=s, g=g, i=i)


def compute_features(layers: Floats, batch_size: Floats) -> Floats:
    """Compute the features of one network at several batch sizes.

    Args:
        layers: Convolutions as rows of ``step_table.GEOMETRY_COLUMNS``, shape (layers, 7).
        batch_size: Batch sizes, shape (batches,).

    Returns:
        Features, shape (batches, 56).
    """
    at = build_geometry(layers, batch_size)
    groups = (_tensor_features(at), _im2col_features(at), _gemm_features(at), _fft_memory(at), _fft_operations(at))
    winograd = [f(at, t, r) for f in (_winograd_memory, _winograd_operations) for t, r in WINOGRAD_TILES]
    shape = np.broadcast_shapes(at.b.shape, at.n.shape)
    columns = [np.broadcast_to(column, shape).sum(axis=1) for group in (*groups, *winograd) for column in group]
    return np.stack(columns, axis=1)


def _tensor_features(a: ConvolutionGeometry) -> list[Floats]:
    weights = a.m * a.n_e * a.k**2
    parts = [weights, a.b * weights, 2 * a.b * a.n * a.i**2, 2 * a.b * a.m * a.o**2]
    return [*parts, sum(parts[1:], parts[0])]


def _im2col_features(a: ConvolutionGeometry) -> list[Floats]:
    output, whole = a.b * a.o**2, a.b * a.o**2 * a.k**2 * a.n
    back, back_whole = a.b * a.i**2, a.b * a.i**2 * a.k**2 * a.n
    group = a.b * a.o**2 * a.k**2 * a.n_e
    return [output, whole, back, back_whole, group, whole + back_whole + group, 2 * output + back]


def _gemm_features(a: ConvolutionGeometry) -> list[Floats]:
    forward = a.b * a.m * a.o**2 * a.k**2 * a.n_e
    back = a.b * a.n * a.i**2 * a.k**2 * a.m
    return [forward, back, 2 * forward + back]


def _fft_memory(a: ConvolutionGeometry) -> list[Floats]:
    i, o = a.i * (1 + a.i), a.o * (1 + a.o)
    f1, f2, f3 = i * a.m * a.n_e, i * a.b * a.n, i * a.b * a.m
    f4, f5 = o * a.m * a.n_e, o * a.b * a.m
    return [f1, f2, f3, f4, f5, f1 + f2, f4 + f5, f3 + f2, f1 + 2 * f2 + f3 + f4 + f5]


def _fft_operations(a: ConvolutionGeometry) -> list[Floats]:
    q = a.b * a.n + a.b * a.m + a.m * a.n_e
    products = a.b * a.m * a.n
    parts = [
        a.i**2 * np.log2(a.i) * q + products * a.i**2,
        a.o**2 * np.log2(a.o) * q + products * a.o**2,
        a.i * np.log2(a.i**2) * q + products * a.i**2,
    ]
    return [*parts, parts[0] + parts[1] + parts[2]]


def _winograd_memory(a: ConvolutionGeometry, t: int, r: int) -> list[Floats]:
    tile, tiles_in, tiles_out = (t + r - 1) ** 2, np.ceil(a.i / t) ** 2, np.ceil(a.o / t) ** 2
    return _with_sums(
        3 * a.b * a.m * tile * tiles_in, 3 * a.b * a.n * tile * tiles_out, 3 * a.b * a.m * a.n_e * tile * tiles_in
    )


def _winograd_operations(a: ConvolutionGeometry, t: int, r: int) -> list[Floats]:
    tile, tiles_in, tiles_out = (t + r - 1) ** 2, np.ceil(a.i / t) ** 2, np.ceil(a.o / t) ** 2
    kernels, kernels_out = np.ceil(a.k / r) ** 2, np.ceil(a.o / r) ** 2
    return _with_sums(
        a.b * a.m * a.n_e * tiles_in * kernels * tile,
        a.b * a.n * a.m * tiles_out * kernels * tile,
        a.b * a.m * a.n_e * tiles_in * kernels_out * tile,
    )


def _with_sums(first: Floats, second: Floats, third: Floats) -> list[Floats]:
    return [first, second, third, first + second, first + third, second + third, first + second + third]
