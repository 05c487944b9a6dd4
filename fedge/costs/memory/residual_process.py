"""Gaussian processes for the residuals of step models, with Matern-3/2 and Matern-5/2 correlations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from fedge.physics.matern import matern3, matern5
from fedge.types import Floats

ROOT3, ROOT5 = np.sqrt(3.0), np.sqrt(5.0)
SMOOTH_OUTLIER_SDS = 2.0
"""Noise standard deviations beyond which a residual is down-weighted."""
SMOOTH_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class ProcessScales:
    """Standard deviations of log memory or log time, and correlation lengths.

    Levels are shares and batch sizes are logarithms.

    Attributes:
        noise: Of a single step.
        offset: Of the whole network.
        batch: Of a curve over the batch size that all levels share.
        level: Of a curve over the level, and of one over level and batch size.
        own: Of a level's own offset.
        level_length: Correlation length of curves over the level.
        batch_length: Correlation length of the shared curve over the batch size.
        both_length: Correlation length over the batch size of the joint curve.
        own_length: Correlation length over the batch size of a level's own offset.
    """

    noise: float
    offset: float
    batch: float
    level: float
    own: float
    level_length: float
    batch_length: float
    both_length: float = 0.7
    own_length: float = 3.0


@dataclass(frozen=True, slots=True, eq=False)
class SmoothProcess:
    """A process fitted to n steps of one network.

    Attributes:
        points: Level and log batch size, shape (n, 2).
        weights: Weights of the steps, shape (n,).
    """

    scales: ProcessScales
    points: Floats
    weights: Floats

    def predict(self, at: Floats) -> Floats:
        """Return the log residuals at levels and log batch sizes (m, 2), shape (m,)."""
        residual: Floats = _shared_covariance(self.scales, at, self.points) @ self.weights
        return residual


def list_scale_candidates(noise: float, offset: float, batch: float, batch_length: float) -> Iterator[ProcessScales]:
    """Yield the scales, in log units, among which the likelihood selects. The grid is a default; a finer one takes
    longer.
    """
    for own in (0.003, 0.03, 0.06, 0.1, 0.15):
        for length in (0.1, 0.2, 0.4):
            for level in (0.04, 0.08):
                yield ProcessScales(
                    noise,
                    offset=offset,
                    batch=batch,
                    level=level,
                    own=own,
                    level_length=length,
                    batch_length=batch_length,
                )


def fit_smooth_process(at: Floats, residual: Floats, scales: Iterable[ProcessScales]) -> SmoothProcess:
    """Fit the process with the most likely scales.

    Args:
        at: Level as a share and log batch size, shape (n, 2).
        residual: Log measured minus log modelled, shape (n,).
        scales: The candidates, at least one.
    """
    tried = [_fit_scales(one, at, residual) for one in scales]
    return max(tried, key=lambda pair: pair[0])[1]


def _fit_scales(scales: ProcessScales, at: Floats, residual: Floats) -> tuple[float, SmoothProcess]:
    same_level = at[:, None, 0] == at[None, :, 0]
    near = matern3(ROOT3 * (_distances(at[:, 1], at[:, 1]) / scales.own_length))
    covariance = _shared_covariance(scales, at, at) + np.where(same_level, scales.own**2 * near, 0.0)
    noise = np.full(len(at), scales.noise**2)
    weights = _solve_weights(covariance, noise, residual)[1]
    for _ in range(SMOOTH_ROUNDS):
        off = np.abs(noise * weights) / scales.noise
        noise = scales.noise**2 * np.maximum(1.0, off / SMOOTH_OUTLIER_SDS)
        likelihood, weights = _solve_weights(covariance, noise, residual)
    return likelihood, SmoothProcess(scales, at, weights)


def _solve_weights(covariance: Floats, noise: Floats, residual: Floats) -> tuple[float, Floats]:
    """Return the log likelihood without its constant, and the weights."""
    root = np.linalg.cholesky(covariance + np.diag(noise))
    weights = np.linalg.solve(root.T, np.linalg.solve(root, residual))
    return float(-0.5 * residual @ weights - np.log(np.diag(root)).sum()), weights


def _shared_covariance(scales: ProcessScales, one: Floats, other: Floats) -> Floats:
    level = matern5(ROOT5 * (_distances(one[:, 0], other[:, 0]) / scales.level_length))
    batch = _distances(one[:, 1], other[:, 1])
    both = level * matern3(ROOT3 * (batch / scales.both_length))
    shared: Floats = (
        scales.offset**2
        + scales.batch**2 * matern3(ROOT3 * (batch / scales.batch_length))
        + scales.level**2 * (level + both)
    )
    return shared


def _distances(one: Floats, other: Floats) -> Floats:
    return np.abs(one[:, None] - other[None, :])


NOISE, BATCH, CURVE = 0.1, 0.1, 0.05
"""Standard deviations of log time: of a single step, of a curve over the batch size, of one over all three inputs."""
TRANSFER_LENGTHS = np.array([1.5, 1.0, 1.0])
TRANSFER_BATCH_LENGTH = 0.5
TRANSFER_OUTLIER_SDS = 2.0
TRANSFER_ROUNDS = 3


@dataclass(frozen=True, slots=True, eq=False)
class TransferProcess:
    """A process fitted to n steps of several networks.

    Attributes:
        points: Inputs of the steps (``build_transfer_points``), shape (n, 3).
        weights: Weights of the steps, shape (n,).
    """

    points: Floats
    weights: Floats

    def predict(self, at: Floats) -> Floats:
        """Return the log residuals at inputs (m, 3), shape (m,)."""
        residual: Floats = _transfer_covariance(at, self.points) @ self.weights
        return residual


def build_transfer_points(terms: Floats, flop: Floats) -> Floats:
    """Return log batch size, log traffic per image and log FLOP per element moved, shape (n, 3).

    Args:
        terms: Time terms of the steps (``step_terms.compute_time_terms``), shape (n, 6).
        flop: FLOP of the steps, shape (n,).
    """
    batch, traffic = terms[:, 1], terms[:, 4]
    return np.stack([np.log(batch), np.log(traffic / batch), np.log(flop / traffic)], axis=1)


def fit_transfer_process(at: Floats, residual: Floats) -> TransferProcess:
    """Fit the process to residuals; outliers are down-weighted.

    Args:
        at: Inputs (``build_transfer_points``), shape (n, 3).
        residual: Log measured minus log modelled, shape (n,).
    """
    covariance = _transfer_covariance(at, at)
    noise: Floats = np.full(len(at), NOISE**2)
    weights: Floats = np.zeros(len(at))
    for _ in range(TRANSFER_ROUNDS):
        weights = np.asarray(np.linalg.solve(covariance + np.diag(noise), residual), dtype=np.float64)
        noise = NOISE**2 * np.maximum(1.0, np.abs(noise * weights) / (TRANSFER_OUTLIER_SDS * NOISE))
    return TransferProcess(at, weights)


def _transfer_covariance(one: Floats, other: Floats) -> Floats:
    distance = np.sqrt((((one[:, None, :] - other[None, :, :]) / TRANSFER_LENGTHS) ** 2).sum(axis=2))
    batch = np.abs(one[:, None, 0] - other[None, :, 0]) / TRANSFER_BATCH_LENGTH
    covariance: Floats = CURVE**2 * matern5(ROOT5 * distance) + BATCH**2 * matern3(ROOT3 * batch)
    return covariance
