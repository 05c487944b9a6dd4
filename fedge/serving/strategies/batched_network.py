"""PowerTrain's two networks with additional inputs such as the batch size, on logarithms and around a smooth trend.

Symbols: x = ln(knobs, batch size), standardised, (n, k); y = ln(seconds, watts), (2, n); the trend is a polynomial of
second degree in x, fitted by least squares with a small ridge; the networks learn the residual at unit scale. Layers,
dropout and Adam are those of ``predictors.network_pair``. PowerTrain has no trend, logarithms or ridge; they are added
because a few dozen profiles over five batch sizes are too few for the networks alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedge.predictors.network_pair import (
    LAYERS,
    Adam,
    Float32Array,
    NetworkPair,
    compute_gradient,
    compute_outputs,
    view_pair,
)
from fedge.types import Floats

REPEATS, BATCH, EPOCHS, MORE_EPOCHS = 5, 32, 100, 50
# Repetitions of a reading, rows per step, and passes over all rows for a new fit and for a continued one. Defaults that
# trade accuracy against the time of a fit.
RIDGE = 1e-3
# Ridge of the trend per reading. Default: only keeps the least-squares problem well conditioned.


@dataclass(frozen=True, slots=True, eq=False)
class NetworkSurface:
    """A fitted trend and networks.

    Attributes:
        mean: Mean of the logarithms of the inputs, shape (k,).
        sd: Standard deviation of the logarithms of the inputs, shape (k,).
        slopes: Coefficients of the trend, shape (terms, 2).
        scale: Standard deviation of the residuals, shape (2, 1).
    """

    mean: Floats
    sd: Floats
    slopes: Floats
    scale: Floats
    networks: NetworkPair

    def predict_logs(self, inputs: Floats) -> Floats:
        """Return ln(seconds, watts), shape (2, n), at ``inputs``, shape (n, k)."""
        x = (np.log(inputs) - self.mean) / self.sd
        rest = compute_outputs(self.networks, x.astype(np.float32)).astype(np.float64)
        logs: Floats = (_trend_terms(x) @ self.slopes).T + rest * self.scale
        return logs


def fit_network_surface(
    inputs: Floats, logs: Floats, rng: np.random.Generator, start: NetworkSurface | None = None
) -> NetworkSurface:
    """Fit trend and networks.

    Args:
        inputs: Knobs and batch size, shape (n, k), positive.
        logs: ln(seconds, watts), shape (2, n).
        rng: Generator of initial weights, order and dropout.
        start: Surface whose networks are trained further; None starts from random weights.
    """
    x = np.log(inputs)
    mean, sd = x.mean(axis=0), x.std(axis=0)
    sd[sd < 1e-9] = 1.0
    x = (x - mean) / sd
    terms = _trend_terms(x)
    ridge = RIDGE * len(x) * np.eye(terms.shape[1])
    ridge[0, 0] = 0.0
    slopes = np.linalg.solve(terms.T @ terms + ridge, terms.T @ logs.T).astype(np.float64)
    rest = logs - (terms @ slopes).T
    scale = np.maximum(rest.std(axis=1, keepdims=True), 1e-6)
    networks = (
        _init_networks(x.shape[1], rng)
        if start is None
        else view_pair(start.networks.flat.copy(), _layer_sizes(x.shape[1]))
    )
    epochs = EPOCHS if start is None else MORE_EPOCHS
    _train(networks, x=x.astype(np.float32), y=(rest / scale).astype(np.float32), epochs=epochs, rng=rng)
    return NetworkSurface(mean, sd=sd, slopes=slopes, scale=scale, networks=networks)


def _trend_terms(x: Floats) -> Floats:
    """Return the terms of the trend, (n, terms): 1, every x, and every product of two."""
    first, second = np.triu_indices(x.shape[1])
    return np.concatenate([np.ones((len(x), 1)), x, x[:, first] * x[:, second]], axis=1)


def _train(networks: NetworkPair, x: Float32Array, y: Float32Array, epochs: int, rng: np.random.Generator) -> None:
    rows = np.repeat(np.arange(len(x)), REPEATS)
    adam, slopes = Adam(len(networks.flat)), view_pair(np.empty_like(networks.flat), _layer_sizes(x.shape[1]))
    for _ in range(epochs):
        order = rng.permutation(rows)
        for first in range(0, len(order), BATCH):
            some = order[first : first + BATCH]
            wanted = y[:, some]

            def slope(said: Float32Array, wanted: Float32Array = wanted) -> Float32Array:
                return (said - wanted) * np.float32(2.0 / wanted.shape[1])

            compute_gradient(networks, x=x[some], slope=slope, rng=rng, into=slopes)
            adam.step(networks.flat, slopes.flat)


def _layer_sizes(inputs: int) -> tuple[tuple[int, int], ...]:
    return (inputs, LAYERS[0][1]), *LAYERS[1:]


def _init_networks(inputs: int, rng: np.random.Generator) -> NetworkPair:
    size = sum(2 * (ins + 1) * outs for ins, outs in _layer_sizes(inputs))
    networks = view_pair(np.empty(size, np.float32), _layer_sizes(inputs))
    for (ins, _), weight, bias in zip(_layer_sizes(inputs), networks.weights, networks.biases, strict=True):
        weight[:] = rng.uniform(-(ins**-0.5), ins**-0.5, weight.shape)
        bias[:] = rng.uniform(-(ins**-0.5), ins**-0.5, bias.shape)
    return networks
