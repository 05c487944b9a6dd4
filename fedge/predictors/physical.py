"""Predicts from the physical model: starts at another workload's coefficients and bends them to what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from fedge.physics.fit import Posterior, fit_map, predict, prior_about
from fedge.physics.model import Coefficients
from fedge.types import Measurement, Modes, PowerMode, Predictions


class PhysicalPredictor:
    """A ``fedge.interfaces.Predictor`` around ``fedge.physics.fit``.

    ``prior_coefficients`` come from a workload other than the trained one; ``maxn`` is the board with every knob at its
    top. Learnt: ``posterior_``.
    """

    def __init__(self, prior_coefficients: Coefficients, maxn: PowerMode) -> None:
        self.prior_coefficients = prior_coefficients
        self.maxn = maxn

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Learn from all measurements of the board; none leaves the prior."""
        self.posterior_: Posterior = fit_map(prior_about(self.prior_coefficients), self.maxn, measurements)
        return self

    def predict(self, modes: Modes) -> Predictions:
        """Step time and power of every mode; needs ``fit`` first."""
        return predict(self.posterior_, modes)
