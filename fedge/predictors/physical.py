"""Predicts from the physical model: several workloads' coefficients bent to what was measured, weighed by their fit.

Symbols: k = 0, 1 ... a prior, the most credible first, L_k its evidence (probability of the measurements under it),
w_k = L_k d^k / sum L_j d^j with d = exp(-CREDIBILITY_LOSS), m_k and s_k mean and spread of a log prediction under it.
Mixture: m = sum w_k m_k, s^2 = sum w_k (s_k^2 + (m_k - m)^2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from fedge.errors import BadInput
from fedge.physics.beliefs import CREDIBILITY_LOSS, at_least_idle_w
from fedge.physics.fit import Posterior, fit_pooled, log_evidence, pooled, predict_each, prior_about
from fedge.physics.knowledge import Knowledge
from fedge.types import Floats, Measurement, Modes, Predictions

NEGLIGIBLE = 1e-3
"""A prior that explains the measurements this much worse than the best is left out."""


class PhysicalPredictor:
    """A ``fedge.interfaces.Predictor``: a mixture of ``fedge.physics.fit`` over several priors.

    Needs priors. One whose idle power lies below the board's, because its table metered some rails only, is raised to
    it. Learnt: ``posteriors_``, ``weights_``.
    """

    def __init__(self, knowledge: Knowledge) -> None:
        self.knowledge = knowledge

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Learn from all measurements of the board; none leaves the priors. Raises ``BadInput`` without a prior."""
        if not self.knowledge.priors:
            raise BadInput("the predictor's prior", "nothing", "at least one calibrated workload")
        maxn, idle_w = self.knowledge.maxn, self.knowledge.idle_w or 0.0
        started = [at_least_idle_w(prior, idle_w) for prior in self.knowledge.priors]
        seen = pooled(measurements, maxn)
        posteriors = [fit_pooled(prior_about(prior), maxn, seen) for prior in started]
        evidence = np.array([log_evidence(posterior) for posterior in posteriors])
        evidence -= CREDIBILITY_LOSS * np.arange(len(posteriors))
        weights = np.exp(evidence - evidence.max())
        kept = np.flatnonzero(weights >= NEGLIGIBLE)
        self.posteriors_: list[Posterior] = [posteriors[i] for i in kept]
        self.weights_: Floats = weights[kept] / weights[kept].sum()
        return self

    def predict(self, modes: Modes) -> Predictions:
        """Step time and power of every mode; needs ``fit`` first."""
        each = predict_each(self.posteriors_, modes)
        step_s, step_sd = self._mixed([p.step_s for p in each], [p.step_s_sd_log for p in each])
        power_w, power_sd = self._mixed([p.power_w for p in each], [p.power_w_sd_log for p in each])
        return Predictions(modes, step_s, power_w, step_sd, power_sd)

    def _mixed(self, values: Sequence[Floats], spreads: Sequence[Floats]) -> tuple[Floats, Floats]:
        logs = np.log(np.stack(values))
        mean = self.weights_ @ logs
        variance = self.weights_ @ (np.square(np.stack(spreads)) + np.square(logs - mean))
        return np.exp(mean), np.sqrt(variance)
