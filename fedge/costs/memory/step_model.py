"""Terms of a training step's memory and time from layer geometry: fedge's own, and the features of perf4sight.

Memory is the sum of a constant (CUDA's context, its libraries, the interpreter), the weights and their optimiser state,
the activations kept for the backward pass, and the largest work space of a convolution. Time is the sum of a constant,
a share per image, the arithmetic rounded up to the kernels' tiles, the traffic, and the update of the weights.

n input and m output channels, k kernel, p padding, s stride, g groups, i input and o output side, b batch size, n_e = n
/ g; a tile of t channels rounds up to a multiple of t. Terms, tiles and thresholds were selected by hand with tables of
four networks on a TX2 in sight; see docs/explanation/memory.md.

perf4sight's 56 features are sizes and operation counts of the algorithms for convolutions, each summed over a network's
convolutions. With the paper's names: tensors (5), im2col (7), GEMM (3), FFT memory (9), FFT operations (4), Winograd
memory (2 x 7), Winograd operations (2 x 7).

References:
    perf4sight (arXiv 2108.05580).

Models of a training step's memory and time over these terms: fits and predictions.

Memory is at least a floor (the peak of loading the libraries) and cannot be measured above a ceiling (the board is
full). A step is never faster than the processor launches its layers: time is (launching^p + computing^p)^(1/p). The
constants were set by hand with the evaluated tables in sight; see docs/explanation/memory.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedge.physics.nonnegative_least_squares import solve_nonnegative
from fedge.types import Floats

FEATURE_COUNT = 56
WINOGRAD_TILES = ((4, 3), (3, 2))
"""Output and kernel side of the two Winograd tiles that the paper counts."""


@dataclass(frozen=True, slots=True, eq=False)
class ConvolutionGeometry:
    """Geometry of convolutions against batch sizes, symbols as above; every array broadcasts to (batches, layers)."""

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
    """Combine rows of ``step_table.GEOMETRY_COLUMNS``, shape (layers, 7), with batch sizes, shape (batches,)."""
    n, m, k, p, s, g, i = layers.T[:, None, :]
    return ConvolutionGeometry(np.asarray(batch_size, dtype=np.float64)[:, None], n=n, m=m, k=k, p=p, s=s, g=g, i=i)


def compute_features(layers: Floats, batch_size: Floats) -> Floats:
    """Compute the features of one network, shape (batches, 56), from its geometry as in ``build_geometry``."""
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


MEMORY_TERMS = ("base", "weights", "outputs", "inputs", "workspace", "largest")
OWN_TIME_TERMS = ("base", "image", "3x3", "large", "1x1", "3x3 weights", "traffic", "depthwise", "weights")
TIME_TERMS = ("base", "image", "forward", "weight gradient", "traffic", "weights")
MEGABYTES = 4e-6
"""Size of one float32 number, in MB."""
DEPTHWISE_TRAFFIC = 0.5
"""Traffic per element of a depthwise convolution relative to a dense one, whose elements are read by more passes."""
FEW_CHANNELS = 16
"""Input channels up to which a 3 x 3 kernel has no work space, and outputs up to which a larger kernel has no
arithmetic."""
TILE, SMALL_TILE, WIDE_TILE = 64, 32, 128


def compute_memory_terms(layers: Floats, batch_size: Floats) -> Floats:
    """Compute memory in MB by term, shape (batches, 6), in the order of ``MEMORY_TERMS``.

    ``base`` is 1, since its coefficient is in MB; the coefficients of the other terms are dimensionless.
    """
    a = build_geometry(layers, batch_size)
    outputs, inputs = a.b * a.m * a.o**2, a.b * a.n * a.i**2
    asks = (a.g == 1) & (a.k == 3) & (a.n > FEW_CHANNELS)
    workspace = np.where(asks, a.b * a.i**2 * _round_to_tiles(a.m, TILE), 0.0)
    terms = (
        np.full(a.b.shape, 1.0 / MEGABYTES),
        a.m * a.n_e * a.k**2 + 0.0 * a.b,
        outputs,
        inputs,
        workspace.max(axis=1, keepdims=True),
        np.maximum(outputs, inputs).max(axis=1, keepdims=True),
    )
    return MEGABYTES * np.stack([term.sum(axis=1) for term in terms], axis=1)


def compute_own_time_terms(layers: Floats, batch_size: Floats) -> Floats:
    """Compute work by term, for a model fitted to one network's own steps.

    Returns:
        FLOP or elements in the order of ``OWN_TIME_TERMS``, shape (batches, 9); ``base`` is 1 and ``image`` the batch
        size.
    """
    a = build_geometry(layers, batch_size)
    dense = a.g == 1
    unit, three, large = dense & (a.k == 1), dense & _is_small_kernel(a.k), dense & (a.k > 3) & (a.m > FEW_CHANNELS)
    return _stack_columns(
        a,
        np.where(three, _flop(a, _round_to_tiles(a.n, SMALL_TILE), _round_to_tiles(a.m, TILE)), 0.0),
        np.where(large, _flop(a, a.n, _round_to_tiles(a.m, TILE)), 0.0),
        np.where(unit, _flop(a, a.n, a.m), 0.0),
        np.where(three, _weight_gradient(a), 0.0),
        np.where(dense, _moved_elements(a), 0.0),
        np.where(dense, 0.0, _moved_elements(a)),
        _weight_elements(a),
    )


def compute_time_terms(layers: Floats, batch_size: Floats) -> Floats:
    """Compute work by term, for a model that transfers to other networks.

    Returns:
        FLOP or elements in the order of ``TIME_TERMS``, shape (batches, 6); ``base`` is 1 and ``image`` the batch size.
    """
    a = build_geometry(layers, batch_size)
    dense = a.g == 1
    first = (np.arange(len(layers)) == 0)[None, :]  # no gradient by the input images
    forward = _flop(a, a.n_e, _round_to_tiles(a.m, WIDE_TILE)) + np.where(
        first, 0.0, _flop(a, _round_to_tiles(a.n_e, WIDE_TILE), a.m)
    )
    return _stack_columns(
        a,
        np.where(dense, forward, 0.0),
        np.where(dense, _weight_gradient(a), 0.0),
        np.where(dense, 1.0, DEPTHWISE_TRAFFIC) * _moved_elements(a),
        _weight_elements(a),
    )


def _stack_columns(a: ConvolutionGeometry, *terms: Floats) -> Floats:
    """Stack a constant, the batch size, and every term summed over the layers."""
    shape = np.broadcast_shapes(a.b.shape, a.n.shape)
    sums = [np.broadcast_to(term, shape).sum(axis=1) for term in terms]
    return np.stack([np.ones(len(a.b)), a.b[:, 0], *sums], axis=1)


def _flop(a: ConvolutionGeometry, inputs: Floats, outputs: Floats) -> Floats:
    return 2 * a.b * a.o**2 * inputs * outputs * a.k**2


def _is_small_kernel(kernel: Floats) -> np.ndarray:
    small: np.ndarray = (kernel > 1) & (kernel <= 3)
    return small


def _weight_gradient(a: ConvolutionGeometry) -> Floats:
    """Return the FLOP of weight gradients, whose tiles cover output channels and kernel weights."""
    return 2 * a.b * a.o**2 * _round_to_tiles(a.m / a.g, TILE) * _round_to_tiles(a.n_e * a.k**2, TILE)


def _moved_elements(a: ConvolutionGeometry) -> Floats:
    """Return the elements read and written, without the images read by the first layer."""
    first = (np.arange(a.n.shape[1]) == 0)[None, :]
    return np.where(first, 0.0, a.b * a.n * a.i**2) + a.b * a.m * a.o**2


def _weight_elements(a: ConvolutionGeometry) -> Floats:
    return a.m * a.n_e * a.k**2 + 0.0 * a.b


def _round_to_tiles(size: Floats, tile: int) -> Floats:
    rounded: Floats = np.ceil(size / tile) * tile
    return rounded


MEMORY_PRIOR = np.array([1400.0, 3.0, 1.5, 0.5, 6.0, 2.0])
"""Prior coefficients of ``MEMORY_TERMS``, which a few networks cannot separate: a CUDA process; weights,
gradients and momentum; two copies of a layer's output; work space and gradients of the largest layer."""
MEMORY_PULL = 0.02
MEMORY_OUTLIER, TIME_OUTLIER = 0.03, 0.1
"""Relative errors beyond which a step is down-weighted: memory varies less than time."""
TIME_PULL = 1e-4
FLOOR_SHARE, CEILING_SHARE, LAUNCH_SHARE = 0.05, 0.99, 0.02
"""Quantiles used as smallest memory, largest memory, and fastest step per layer."""
ABOVE_FLOOR_MB, BELOW_CEILING_MB = 40.0, 110.0
"""Steps closer to the floor or the ceiling do not show their own need."""
BLEND_EXPONENT = 4.0
"""p: sharpness of the transition between launching and computing; set with the evaluated tables in sight."""
LAUNCH_BOUND_FACTOR = 1.1
"""Multiple of the launching time up to which a step says nothing about its computing."""
MIN_COMPUTE_SHARE = 0.3
MAX_REWEIGHTINGS = 6
"""Largest number of re-weightings; the weights converge after three or four."""
TINY = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class MemoryModel:
    """Linear model of memory with bounds.

    Attributes:
        coefficients: Coefficients of ``MEMORY_TERMS``, shape (6,).
        floor_mb: Smallest peak of a training process in MB.
        ceiling_mb: Largest measurable peak in MB.
    """

    coefficients: Floats
    floor_mb: float
    ceiling_mb: float

    def need_mb(self, terms: Floats) -> Floats:
        """Return the memory that steps need without limits, in MB, shape (n,)."""
        need: Floats = terms @ self.coefficients
        return need

    def clip_to_board_mb(self, need_mb: Floats) -> Floats:
        """Return the memory that would be measured on this board, in MB."""
        seen: Floats = np.clip(need_mb, self.floor_mb, self.ceiling_mb)
        return seen


@dataclass(frozen=True, slots=True, eq=False)
class TimeModel:
    """Model of step time.

    Attributes:
        coefficients: Coefficients of ``TIME_TERMS`` or ``OWN_TIME_TERMS``, in ms.
        launch_ms: Launching time per layer in ms.
    """

    coefficients: Floats
    launch_ms: float

    def step_ms(self, terms: Floats, layers: Floats) -> Floats:
        """Return the time of steps in ms, shape (n,), from their terms, shape (n, terms), and numbers of launched
        layers, (n,).
        """
        computing, launching = terms @ self.coefficients, self.launch_ms * layers
        step: Floats = (computing**BLEND_EXPONENT + launching**BLEND_EXPONENT) ** (1.0 / BLEND_EXPONENT)
        return step


def find_unbounded_steps(memory_mb: Floats, floor_mb: float | Floats, ceiling_mb: float) -> np.ndarray:
    """Return which steps show their own need, neither at the floor nor where the board is full, shape (n,).

    Memory is measured per step, shape (n,), as is the floor unless it is one number.
    """
    shows: np.ndarray = (memory_mb > floor_mb + ABOVE_FLOOR_MB) & (memory_mb < ceiling_mb - BELOW_CEILING_MB)
    return shows


def estimate_floor_mb(memory_mb: Floats, networks: np.ndarray) -> float:
    """Return the median, over networks, of their lowest memory in MB."""
    return float(np.median([np.quantile(memory_mb[networks == name], FLOOR_SHARE) for name in np.unique(networks)]))


def fit_memory_model(terms: Floats, memory_mb: Floats, networks: np.ndarray, ceiling_mb: float) -> MemoryModel:
    """Fit the memory model to steps of several networks.

    Terms are of shape (n, 6); measured memory in MB and the names of the steps' networks of shape (n,); the board is
    full at ``ceiling_mb``.
    """
    floor_mb = np.array(
        [estimate_floor_mb(memory_mb[networks == name], networks[networks == name]) for name in networks]
    )
    shows = find_unbounded_steps(memory_mb, floor_mb, ceiling_mb)
    coefficients = MEMORY_PRIOR
    if shows.any():
        weight = balance_weights(networks[shows])
        coefficients = fit_relative(
            terms[shows],
            target=memory_mb[shows],
            weight=weight,
            outlier=MEMORY_OUTLIER,
            prior=MEMORY_PRIOR,
            pull=MEMORY_PULL,
        )
    return MemoryModel(coefficients, estimate_floor_mb(memory_mb, networks), ceiling_mb)


def estimate_ceiling_mb(memory_mb: Floats) -> float:
    """Return the memory at which the board is full, in MB, from the largest measured steps (n,)."""
    return float(np.quantile(memory_mb, CEILING_SHARE))


def fit_time_model(terms: Floats, step_ms: Floats, layers: Floats, networks: np.ndarray) -> TimeModel:
    """Fit the time model to steps of several networks.

    Terms are of shape (n, terms); measured ms, numbers of launched layers, and the names of the steps' networks of
    shape (n,).
    """
    fastest = [np.quantile((step_ms / layers)[networks == name], LAUNCH_SHARE) for name in np.unique(networks)]
    launch_ms = float(np.median(fastest))
    launching = launch_ms * layers
    rest = np.maximum(
        step_ms**BLEND_EXPONENT - launching**BLEND_EXPONENT, (MIN_COMPUTE_SHARE * step_ms) ** BLEND_EXPONENT
    ) ** (1.0 / BLEND_EXPONENT)
    telling = (
        np.where(
            step_ms > LAUNCH_BOUND_FACTOR * launching, np.minimum(rest / step_ms, 1.0) ** (2 * BLEND_EXPONENT), 0.0
        )
        + 1e-6
    )
    weight = telling * balance_weights(networks)
    return TimeModel(fit_relative(terms, rest, weight, TIME_OUTLIER, pull=TIME_PULL), launch_ms)


# Robust non-negative least squares on relative errors ----------------------------------------------------------------


def fit_relative(
    terms: Floats, target: Floats, weight: Floats, outlier: float, prior: Floats | None = None, pull: float = 0.01
) -> Floats:
    """Fit coefficients c >= 0 so that ``terms @ c`` is close to the target in relative error.

    Args:
        terms: Terms of each row, shape (rows, terms).
        target: Target of each row, above 0, shape (rows,).
        weight: Weight of each row, shape (rows,).
        outlier: Relative error beyond which a row counts linearly instead of quadratically (Huber).
        prior: Prior coefficients, above 0, shape (terms,); None to shrink to zero.
        pull: Strength of the shrinkage of each term, in units of a mean squared relative error.

    Returns:
        Coefficients, shape (terms,).
    """
    shares = terms / target[:, None]
    size = np.sqrt((shares**2).mean(axis=0)) if prior is None else 1.0 / prior
    size = np.where(size > 0, size, 1.0)
    wanted = np.zeros(len(size)) if prior is None else np.ones(len(size))
    scaled, weight = shares / size, weight / weight.mean()
    strength = np.sqrt(pull * len(target))
    now = weight
    for _ in range(MAX_REWEIGHTINGS):
        root = np.sqrt(now)
        rows = np.vstack([scaled * root[:, None], strength * np.eye(len(size))])
        found = solve_nonnegative(rows, np.concatenate([root, strength * wanted]))
        off = np.abs(scaled @ found - 1.0)
        now = weight * np.minimum(1.0, outlier / np.maximum(off, TINY))
    coefficients: Floats = found / size
    return coefficients


def balance_weights(groups: np.ndarray) -> Floats:
    """Return weights (rows,) with mean 1 that give every group the same total weight."""
    _, which, counts = np.unique(groups, return_inverse=True, return_counts=True)
    weights: Floats = len(groups) / (len(counts) * counts[which.reshape(-1)])
    return weights
