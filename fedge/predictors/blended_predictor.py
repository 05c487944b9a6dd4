"""Default predictor: every prior and reference is fitted to the measurements and weighted by its evidence.

Symbols: k a candidate (``fedge.physics.prior_candidates``), L_k its evidence, c_k its credibility, w_k = L_k c_k / sum
L_j c_j, m_k and s_k mean and spread of its log prediction.
Blend: m = sum w_k m_k, spread^2 = sum w_k (s_k^2 + (m_k - m)^2); time and power have separate weights. After many
measurements s_k is that of the most probable candidate alone: spreads dominate the run time, and by then they hardly
differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from fedge.errors import BadInput
from fedge.physics.matern import Float32Array
from fedge.physics.misfit_process import (
    KnobCurve,
    QuantityPosterior,
    QuantityRows,
    fit_quantity,
    predict_mean_log,
    predict_sd_log,
)
from fedge.physics.model_fit import (
    MISFIT_POWER_SD,
    MISFIT_TIME_SD,
    NOISE_POWER_SD,
    NOISE_TIME_SD,
    correlate_with_rows,
    pool_measurements,
)
from fedge.physics.prior_candidates import (
    PriorCandidate,
    iterate_power_candidates,
    iterate_time_candidates,
    list_prior_sources,
)
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.physics.time_power_model import TIME_NAMES, knob_shares
from fedge.types import Floats, Measurement, Modes, Predictions

MAX_ROWS_FOR_ALL_SPREADS = 20
"""Number of rows up to which every candidate's own spread is computed. Default; a larger value is more exact and
slower."""
MIN_RELATIVE_WEIGHT = 0.05
"""Candidates with less than this weight relative to the best are dropped."""


@dataclass(frozen=True, slots=True, eq=False)
class CandidateBlend:
    """The remaining candidates of one quantity, the most probable first.

    Attributes:
        curves: Curve of each candidate.
        posteriors: Posterior of each candidate.
        weights: Posterior probabilities of the candidates, summing to 1.
    """

    curves: tuple[KnobCurve, ...]
    posteriors: tuple[QuantityPosterior, ...]
    weights: Floats

    def predict(self, x: Floats, alike: Float32Array) -> tuple[Floats, Floats]:
        """Return mean and spread of the log values.

        Args:
            x: Knobs as shares of the top mode, shape (n, 4).
            alike: Correlation of the misfits of modes and rows, shape (n, m).

        Returns:
            Two arrays of shape (n,), log units.
        """
        at = [curve(side.best, x) for curve, side in zip(self.curves, self.posteriors, strict=True)]
        each = np.stack([predict_mean_log(side, *here, alike) for side, here in zip(self.posteriors, at, strict=True)])
        mean: Floats = self.weights @ each
        spreading = len(self.posteriors) if len(self.posteriors[0].gain) <= MAX_ROWS_FOR_ALL_SPREADS else 1
        known = np.stack([predict_sd_log(self.posteriors[k], at[k][1], alike) for k in range(spreading)])
        shares = self.weights[:spreading] / self.weights[:spreading].sum()
        sd: Floats = np.sqrt(shares @ np.square(known) + self.weights @ np.square(each - mean))
        return mean, sd


class BlendedPredictor:
    """A ``fedge.protocols.Predictor`` that blends all priors and references; it needs at least one of either.

    Attributes:
        knowledge: Prior knowledge of board and workload.
        time_: Fitted blend of log time.
        power_: Fitted blend of log power.
    """

    def __init__(self, knowledge: PriorKnowledge) -> None:
        self.knowledge = knowledge

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Fit to all measurements, also of other boards of the same kind; with none, the priors remain.

        Raises:
            BadInput: There is no prior or reference, they predict nothing finite, or a measurement is not a finite
                number above 0.
        """
        found = list_prior_sources(self.knowledge)
        seen = pool_measurements(measurements, self.knowledge.maxn)
        self.time_ = _blend_candidates(
            iterate_time_candidates(found),
            rows=seen.time,
            alike=seen.correlation,
            misfit_sd=MISFIT_TIME_SD,
            noise_sd=NOISE_TIME_SD,
        )
        busy = self.time_.posteriors[0].best[: len(TIME_NAMES)]
        powers = iterate_power_candidates(found, busy)
        self.power_ = _blend_candidates(
            powers, rows=seen.power, alike=seen.correlation, misfit_sd=MISFIT_POWER_SD, noise_sd=NOISE_POWER_SD
        )
        return self

    def predict(self, modes: Modes) -> Predictions:
        """Predict step time and power of every mode; requires ``fit``."""
        x = knob_shares(self.knowledge.maxn, modes)
        alike = correlate_with_rows(self.time_.posteriors[0].rows, x)
        log_s, time_sd = self.time_.predict(x, alike)
        log_w, power_sd = self.power_.predict(x, alike)
        return Predictions(
            modes, step_s=np.exp(log_s), power_w=np.exp(log_w), step_s_sd_log=time_sd, power_w_sd_log=power_sd
        )


def _blend_candidates(
    candidates: Iterable[PriorCandidate], rows: QuantityRows, alike: Float32Array, misfit_sd: float, noise_sd: float
) -> CandidateBlend:
    tried = [
        (
            c,
            fit_quantity(
                c.curve, rows=rows, prior=c.prior, misfit_sd=c.misfit * misfit_sd, noise_sd=noise_sd, alike=alike
            ),
        )
        for c in candidates
    ]
    logs = np.array([candidate.log_credibility + side.log_evidence for candidate, side in tried])
    logs[~np.isfinite(logs)] = -np.inf
    if not np.isfinite(logs).any():
        raise BadInput("the predictor's prior", "coefficients that give no finite prediction", "finite ones")
    weights = np.exp(logs - logs.max())
    kept = [i for i in np.argsort(-weights, kind="stable") if weights[i] >= MIN_RELATIVE_WEIGHT]
    return CandidateBlend(
        tuple(tried[i][0].curve for i in kept),
        tuple(tried[i][1] for i in kept),
        weights[kept] / weights[kept].sum(),
    )
