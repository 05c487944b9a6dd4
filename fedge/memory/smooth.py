"""What the terms leave of a network's logarithms: smooth in pruning level and batch size, by a Gaussian process.

A level may have an offset of its own, since a few channels more or less make the library choose another algorithm:
that share of a measured level says nothing of its neighbours. How large it is, each network's steps say by themselves,
through the marginal likelihood over a small grid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from fedge.memory.matern import matern3, matern5
from fedge.types import Floats

OUTLIER_SDS = 2.0
"""A residual of more noise sds counts less."""
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Scales:
    """Standard deviations of log memory or log time, and lengths; levels as shares, batch sizes as logarithms."""

    noise: float
    offset: float
    """Of the whole network."""
    batch: float
    """Of a curve over the batch size that all levels share."""
    level: float
    """Of a curve over the level, and of one over level and batch size."""
    own: float
    """Of a level's own offset."""
    level_length: float
    batch_length: float
    both_length: float = 0.7
    own_length: float = 3.0


@dataclass(frozen=True, slots=True, eq=False)
class Smooth:
    """The process at the steps that it learnt from: ``at`` (n, 2) level and log batch size, ``weights`` (n,)."""

    scales: Scales
    at: Floats
    weights: Floats

    def predict(self, at: Floats) -> Floats:
        """Log residual at level and log batch size (m, 2)."""
        residual: Floats = _shared(self.scales, at, self.at) @ self.weights
        return residual


def grid(noise: float, offset: float, batch: float, batch_length: float) -> Iterator[Scales]:
    """The scales that are weighed against each other; chosen by us."""
    for own in (0.003, 0.03, 0.06, 0.1, 0.15):
        for length in (0.1, 0.2, 0.4):
            for level in (0.04, 0.08):
                yield Scales(noise, offset, batch, level, own, length, batch_length)


def smooth_fit(at: Floats, residual: Floats, scales: Iterable[Scales]) -> Smooth:
    """The process of the likeliest scales; ``at`` (n, 2), ``residual`` (n,) log measured minus log modelled."""
    tried = [_fitted(one, at, residual) for one in scales]
    return max(tried, key=lambda pair: pair[0])[1]


def _fitted(scales: Scales, at: Floats, residual: Floats) -> tuple[float, Smooth]:
    same_level = at[:, None, 0] == at[None, :, 0]
    near = matern3(_apart(at[:, 1], at[:, 1]) / scales.own_length)
    covariance = _shared(scales, at, at) + np.where(same_level, scales.own**2 * near, 0.0)
    noise = np.full(len(at), scales.noise**2)
    weights = _solved(covariance, noise, residual)[1]
    for _ in range(ROUNDS):
        off = np.abs(noise * weights) / scales.noise
        noise = scales.noise**2 * np.maximum(1.0, off / OUTLIER_SDS)
        likelihood, weights = _solved(covariance, noise, residual)
    return likelihood, Smooth(scales, at, weights)


def _solved(covariance: Floats, noise: Floats, residual: Floats) -> tuple[float, Floats]:
    """Log likelihood without its constant, and the weights."""
    root = np.linalg.cholesky(covariance + np.diag(noise))
    weights = np.linalg.solve(root.T, np.linalg.solve(root, residual))
    return float(-0.5 * residual @ weights - np.log(np.diag(root)).sum()), weights


def _shared(scales: Scales, one: Floats, other: Floats) -> Floats:
    level = matern5(_apart(one[:, 0], other[:, 0]) / scales.level_length)
    batch = _apart(one[:, 1], other[:, 1])
    both = level * matern3(batch / scales.both_length)
    shared: Floats = (
        scales.offset**2 + scales.batch**2 * matern3(batch / scales.batch_length) + scales.level**2 * (level + both)
    )
    return shared


def _apart(one: Floats, other: Floats) -> Floats:
    return np.abs(one[:, None] - other[None, :])
