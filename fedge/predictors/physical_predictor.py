"""Predictor by the physical model: a mixture of several workloads' coefficients, each fitted to the measurements.

Symbols: k = 0, 1 ... a prior, the most credible first, L_k its evidence (probability of the measurements under it), w_k
= L_k d^k / sum L_j d^j with d = exp(-CREDIBILITY_LOSS), m_k and s_k mean and spread of a log prediction under it.
Mixture: m = sum w_k m_k, s^2 = sum w_k (s_k^2 + (m_k - m)^2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from fedge.errors import BadInput
from fedge.physics.model_fit import Posterior, build_prior, fit_pooled, log_evidence, pool_measurements, predict_many
from fedge.physics.prior_candidates import CREDIBILITY_LOSS, raise_to_idle_w
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.types import Floats, Measurement, Modes, Predictions

MIN_RELATIVE_WEIGHT = 1e-3
"""Priors with less than this weight relative to the best are dropped."""


class PhysicalPredictor:
    """A ``fedge.protocols.Predictor``: a mixture of ``fedge.physics.model_fit`` over several priors; it needs one.

    A prior whose idle power is below the board's, because its table measured only part of the power rails, is raised to
    it.

    Attributes:
        knowledge: Prior knowledge of board and workload.
        posteriors_: Posteriors of the remaining priors.
        weights_: Their probabilities, summing to 1.
    """

    def __init__(self, knowledge: PriorKnowledge) -> None:
        self.knowledge = knowledge

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Fit to all measurements; with none, the priors remain.

        Raises:
            BadInput: There is no prior, or a measurement is not a finite number above 0.
        """
        if not self.knowledge.priors:
            raise BadInput("the predictor's prior", "nothing", "at least one calibrated workload")
        maxn, idle_w = self.knowledge.maxn, self.knowledge.idle_w or 0.0
        started = [raise_to_idle_w(prior, idle_w) for prior in self.knowledge.priors]
        seen = pool_measurements(measurements, maxn)
        posteriors = [fit_pooled(build_prior(prior), maxn, seen) for prior in started]
        evidence = np.array([log_evidence(posterior) for posterior in posteriors])
        evidence -= CREDIBILITY_LOSS * np.arange(len(posteriors))
        weights = np.exp(evidence - evidence.max())
        kept = np.flatnonzero(weights >= MIN_RELATIVE_WEIGHT)
        self.posteriors_: list[Posterior] = [posteriors[i] for i in kept]
        self.weights_: Floats = weights[kept] / weights[kept].sum()
        return self

    def predict(self, modes: Modes) -> Predictions:
        """Predict step time and power of every mode; requires ``fit``."""
        each = predict_many(self.posteriors_, modes)
        step_s, step_sd = self._mix_predictions([p.step_s for p in each], [p.step_s_sd_log for p in each])
        power_w, power_sd = self._mix_predictions([p.power_w for p in each], [p.power_w_sd_log for p in each])
        return Predictions(modes, step_s=step_s, power_w=power_w, step_s_sd_log=step_sd, power_w_sd_log=power_sd)

    def _mix_predictions(self, values: Sequence[Floats], spreads: Sequence[Floats]) -> tuple[Floats, Floats]:
        logs = np.log(np.stack(values))
        mean = self.weights_ @ logs
        variance = self.weights_ @ (np.square(np.stack(spreads)) + np.square(logs - mean))
        return np.exp(mean), np.sqrt(variance)
