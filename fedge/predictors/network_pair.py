"""Two stacked networks, one for time and one for power: layers, gradient, Adam.

PowerTrain (doi 10.1016/j.future.2024.07.001): four knobs in, dense layers of 256, 128 and 64 units with ReLU, dropout
0.4 after the first and 0.3 after the second, one linear output: 42,497 parameters each.

The networks share nothing. They are stacked (time first) because one product of stacked matrices is faster than two
products. In numpy a step takes half as long as with a tensor library, whose overhead dominates for such small layers.

Symbols: x rows of standardised knobs (n, 4); y targets (2, n); h_l = f_l * (h_{l-1} W_l + b_l), where f_l is 0 where
ReLU or dropout zeroes a unit, else 1 / (1 - dropout); d_l the loss's derivative at layer l before f_l.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float32Array = NDArray[np.float32]

LAYERS = ((4, 256), (256, 128), (128, 64), (64, 1))
"""Inputs and outputs of each layer."""
DROPOUT = (0.4, 0.3, 0.0)
"""Dropout rate during training after every layer but the last."""
RATE, BETA_1, BETA_2, EPSILON = 1e-3, 0.9, 0.999, 1e-8
"""Adam's settings: the learning rate is PowerTrain's, the others are Adam's usual defaults."""

_SIZE = sum(2 * (ins + 1) * outs for ins, outs in LAYERS)


@dataclass(frozen=True, slots=True, eq=False)
class NetworkPair:
    """Parameters of both networks.

    Attributes:
        flat: All parameters, shape (parameters,).
        weights: Weights of each layer, shape (2, in, out); views into ``flat``.
        biases: Biases of each layer, shape (2, 1, out); views into ``flat``.
    """

    flat: Float32Array
    weights: tuple[Float32Array, ...]
    biases: tuple[Float32Array, ...]


def view_pair(flat: Float32Array, layers: Sequence[tuple[int, int]] = LAYERS) -> NetworkPair:
    """View consecutive layers of both networks in a flat array of parameters.

    Args:
        flat: The parameters, contiguous, shape (parameters,). Layer by layer: the weights of both networks, time
            first, then the biases of both.
        layers: Inputs and outputs of each layer.

    Returns:
        The layers as views: whoever writes to one changes ``flat``.
    """
    weights, biases, start = [], [], 0
    for ins, outs in layers:
        middle, end = start + 2 * ins * outs, start + 2 * (ins + 1) * outs
        weights.append(flat[start:middle].reshape(2, ins, outs))
        biases.append(flat[middle:end].reshape(2, 1, outs))
        start = end
    return NetworkPair(flat, tuple(weights), tuple(biases))


def init_pair(rng: np.random.Generator) -> NetworkPair:
    """Create untrained networks with all parameters uniform within 1 / sqrt(inputs), torch's default for dense layers.

    The paper does not state its initialisation.
    """
    pair = view_pair(np.empty(_SIZE, np.float32))
    for layer in range(len(LAYERS)):
        _draw_layer(pair, layer, rng)
    return pair


def reset_output_layer(pair: NetworkPair, rng: np.random.Generator) -> NetworkPair:
    """Return a copy of the networks with a newly initialised last layer."""
    copied = view_pair(pair.flat.copy())
    _draw_layer(copied, len(LAYERS) - 1, rng)
    return copied


def compute_outputs(pair: NetworkPair, x: Float32Array) -> Float32Array:
    """Return the outputs of both networks, without dropout.

    Args:
        pair: The networks.
        x: Standardised knobs, shape (n, 4).

    Returns:
        Outputs, shape (2, n).
    """
    hidden = x[None]
    for weight, bias in zip(pair.weights[:-1], pair.biases[:-1], strict=True):
        hidden = hidden @ weight + bias
        np.maximum(hidden, 0.0, out=hidden)
    said: Float32Array = (hidden @ pair.weights[-1] + pair.biases[-1])[..., 0]
    return said


def compute_gradient(
    pair: NetworkPair,
    x: Float32Array,
    slope: Callable[[Float32Array], Float32Array],
    rng: np.random.Generator,
    into: NetworkPair,
) -> None:
    """Compute the gradient of the loss, with new dropout masks.

    Args:
        pair: The networks.
        x: Standardised knobs, shape (n, 4).
        slope: The loss's derivative by each output: from outputs (2, n) to derivatives (2, n).
        rng: Source of the dropout masks.
        into: Where the gradient is written.
    """
    hidden, passed = [x[None]], []
    for weight, bias, dropout in zip(pair.weights, pair.biases, DROPOUT, strict=False):
        before = hidden[-1] @ weight
        before += bias
        passed.append(_compute_mask(before, dropout, rng))
        before *= passed[-1]
        hidden.append(before)
    d = slope((hidden[-1] @ pair.weights[-1] + pair.biases[-1])[..., 0])[..., None]
    for layer in reversed(range(len(LAYERS))):
        np.matmul(hidden[layer].swapaxes(1, 2), d, out=into.weights[layer])
        np.sum(d, axis=1, keepdims=True, out=into.biases[layer])
        if layer:
            d = d @ pair.weights[layer].swapaxes(1, 2)
            d *= passed[layer - 1]


class Adam:
    """Adam over all parameters of a pair.

    References:
        Kingma and Ba, Adam: A Method for Stochastic Optimization (2015).
    """

    def __init__(self, size: int = _SIZE) -> None:
        self._mean, self._square = np.zeros(size, np.float32), np.zeros(size, np.float32)
        self._scratch = np.empty(size, np.float32)
        self._steps = 0

    def step(self, flat: Float32Array, slope: Float32Array) -> None:
        """Update the parameters in place.

        Args:
            flat: The parameters, shape (parameters,).
            slope: Their gradient, of the same shape.
        """
        self._steps += 1
        mean, square, scratch = self._mean, self._square, self._scratch
        mean *= np.float32(BETA_1)
        mean += np.multiply(slope, np.float32(1 - BETA_1), out=scratch)
        square *= np.float32(BETA_2)
        np.multiply(slope, slope, out=scratch)
        scratch *= np.float32(1 - BETA_2)
        square += scratch
        bias_1, bias_2 = 1 - BETA_1**self._steps, (1 - BETA_2**self._steps) ** 0.5
        np.sqrt(square, out=scratch)
        scratch += np.float32(EPSILON * bias_2)
        np.divide(mean, scratch, out=scratch)
        scratch *= np.float32(RATE * bias_2 / bias_1)
        flat -= scratch


def _draw_layer(pair: NetworkPair, layer: int, rng: np.random.Generator) -> None:
    limit = LAYERS[layer][0] ** -0.5
    for values in (pair.weights[layer], pair.biases[layer]):
        values[:] = rng.uniform(-limit, limit, values.shape)


def _compute_mask(before: Float32Array, dropout: float, rng: np.random.Generator) -> Float32Array:
    """Return the factor of each unit: 0 where ReLU or dropout zeroes it, else 1 / (1 - dropout)."""
    on: NDArray[np.bool_] = before > 0
    if dropout:
        # 16 random bits per unit: faster than floats, and a resolution of 1 in 65,536 suffices for a dropout rate.
        bits = np.frombuffer(rng.bytes(2 * before.size), np.uint16).reshape(before.shape)
        on &= bits >= round(dropout * 65536)
    return on * np.float32(1 / (1 - dropout))
