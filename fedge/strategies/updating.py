"""A belief that learns one further measurement at a time, and does not believe a wild one.

Symbols: m, C mean and covariance before, i the measured point, y its logarithm, s^2 the noise. With v = C_ii, z the
standardised surprise (y - m_i) / sqrt(v + s^2) and w = min(1, (NU + 1) / (NU + z^2)) the weight of Student-t noise, the
measurement counts with noise (v + s^2) / w - v. Kept are only the vectors l of C_after = C - sum l l'.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedge.physics.robust import DEGREES
from fedge.strategies.beliefs import Belief
from fedge.types import Floats

LEAST_VAR = 1e-8


class Updated:
    """``mean`` and ``var`` (points,) of a belief after what it was told."""

    def __init__(self, belief: Belief, told: Sequence[tuple[int, float]] = ()) -> None:
        self._belief = belief
        self._known: list[Floats] = []
        self.mean = belief.mean
        self.var: Floats = np.maximum(np.diag(belief.covariance).astype(np.float64), LEAST_VAR)
        for point, log in told:
            self.tell(point, log)

    def tell(self, point: int, log: float) -> None:
        """Learn that a measurement of ``point`` read ``log``."""
        column: Floats = self._belief.covariance[:, point].astype(np.float64)
        for vector in self._known:
            column -= vector[point] * vector
        before = max(float(column[point]), LEAST_VAR)
        total = before + self._belief.noise_sd**2
        off = log - float(self.mean[point])
        weight = min(1.0, (DEGREES + 1.0) / (DEGREES + off * off / total))
        spread = math.sqrt(total / weight)
        vector = column / spread
        self._known.append(vector)
        self.mean = self.mean + vector * (off / spread)
        self.var = np.maximum(self.var - vector * vector, LEAST_VAR)

    @property
    def sd(self) -> Floats:
        """Standard deviation of what a next measurement of every point will read."""
        sd: Floats = np.sqrt(self.var + self._belief.noise_sd**2)
        return sd
