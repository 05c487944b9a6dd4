"""A predictor: it learns from measured modes and predicts time and power of every mode.

An experiment uses it with ``predictor: own_predictor:OwnPredictor`` and ``plugins: [own_predictor.py]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.types import Measurement, Modes, Predictions

FIRST_STEP_S, FIRST_POWER_W, FIRST_SD_LOG = 0.5, 15.0, 1.0
"""Time and power of a step at MAXN before the first measurement, and their spread: guesses."""
SD_PER_DISTANCE, LEAST_SD_LOG = 0.3, 0.02
"""Spread by distance from the measured modes, in natural logarithms of the knobs."""


class OwnPredictor:
    """Averages the measured modes, weighted by the distance of their knobs.

    Attributes:
        knowledge: What is known of the board and the workload beforehand.
        knobs_: Logarithms of the measured modes' knobs, shape (n, 4).
        values_: Logarithms of their seconds per step and watts, shape (n, 2).
    """

    def __init__(self, knowledge: PriorKnowledge) -> None:
        self.knowledge = knowledge

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Learn from all measurements of the board; earlier ones are replaced."""
        self.knobs_ = np.log([one.mode.knobs for one in measurements]) if measurements else np.empty((0, 4))
        self.values_ = np.log([(one.step_s, one.power_w) for one in measurements]) if measurements else np.empty((0, 2))
        return self

    def predict(self, modes: Modes) -> Predictions:
        """Return seconds per step and watts of ``modes`` with their spreads, each of shape (n,)."""
        knobs = np.log(modes.knobs)
        if not len(self.knobs_):
            return self._guess(modes, knobs)
        distance = np.linalg.norm(knobs[:, None, :] - self.knobs_[None, :, :], axis=2)
        weight = 1.0 / (distance**2 + 1e-6)
        mean = weight @ self.values_ / weight.sum(axis=1, keepdims=True)
        spread = LEAST_SD_LOG + SD_PER_DISTANCE * distance.min(axis=1)
        step_s, power_w = np.exp(mean).T
        return Predictions(modes, step_s, power_w, step_s_sd_log=spread, power_w_sd_log=spread)

    def _guess(self, modes: Modes, knobs: np.ndarray) -> Predictions:
        """Predict without a measurement, by the GPU clock alone."""
        share = np.exp(knobs[:, 2]) / self.knowledge.maxn.gpu_mhz
        spread = np.full(len(modes), FIRST_SD_LOG)
        step_s, power_w = FIRST_STEP_S / share, FIRST_POWER_W * (0.4 + 0.6 * share)
        return Predictions(modes, step_s, power_w, step_s_sd_log=spread, power_w_sd_log=spread)
