"""What is carried to a network that was not measured, in time: a curve over batch size, traffic and intensity.

A Gaussian process on what the terms leave of the other networks' steps, log measured minus log modelled time. It
returns to zero away from what was measured, so a network unlike all others keeps what the terms say. Its scales were
chosen by us.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedge.memory.matern import matern3, matern5
from fedge.types import Floats

NOISE, BATCH, CURVE = 0.1, 0.1, 0.05
"""Standard deviations of log time: a step's own, of a curve over the batch size, of one over all three."""
LENGTHS = np.array([1.5, 1.0, 1.0])
BATCH_LENGTH = 0.5
OUTLIER_SDS = 2.0
ROUNDS = 3


@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """The process at the steps ``at`` (n, 3) that it learnt from, with their weights (n,)."""

    at: Floats
    weights: Floats

    def predict(self, at: Floats) -> Floats:
        """Log residual at (m, 3)."""
        residual: Floats = _covariance(at, self.at) @ self.weights
        return residual


def places(terms: Floats, flop: Floats) -> Floats:
    """Log batch size, log traffic per image and log FLOP per element moved: (n, 3) from ``terms.time_terms`` (n, 6)."""
    batch, traffic = terms[:, 1], terms[:, 4]
    return np.stack([np.log(batch), np.log(traffic / batch), np.log(flop / traffic)], axis=1)


def transfer_fit(at: Floats, residual: Floats) -> Transfer:
    """The process of residuals (n,) at (n, 3); a step that is far off counts less."""
    covariance = _covariance(at, at)
    noise: Floats = np.full(len(at), NOISE**2)
    weights: Floats = np.zeros(len(at))
    for _ in range(ROUNDS):
        weights = np.asarray(np.linalg.solve(covariance + np.diag(noise), residual), dtype=np.float64)
        noise = NOISE**2 * np.maximum(1.0, np.abs(noise * weights) / (OUTLIER_SDS * NOISE))
    return Transfer(at, weights)


def _covariance(one: Floats, other: Floats) -> Floats:
    distance = np.sqrt((((one[:, None, :] - other[None, :, :]) / LENGTHS) ** 2).sum(axis=2))
    batch = np.abs(one[:, None, 0] - other[None, :, 0]) / BATCH_LENGTH
    covariance: Floats = CURVE**2 * matern5(distance) + BATCH**2 * matern3(batch)
    return covariance
