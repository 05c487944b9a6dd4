"""The default predictor: every prior and reference bent to what was measured, and weighed by how well it explains it.

Symbols: k a candidate (``fedge.physics.prior_candidates``), L_k its evidence, c_k its credibility, w_k = L_k c_k / sum
L_j c_j, m_k and s_k mean and spread of its log prediction.
Blend: m = sum w_k m_k, spread^2 = sum w_k (s_k^2 + (m_k - m)^2); time and power have weights of their own. After many
measurements s_k is that of the most probable candidate: spreads take most of the time, and differ little by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from fedge.errors import BadInput
from fedge.physics.misfit_process import (
    Float32Array,
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
"""Up to so many rows every candidate's own spread counts; chosen by us."""
MIN_RELATIVE_WEIGHT = 0.05
"""A candidate this much less probable than the best is left out."""


@dataclass(frozen=True, slots=True, eq=False)
class CandidateBlend:
    """The candidates of one quantity that are left, the most probable first, with their weights."""

    curves: tuple[KnobCurve, ...]
    posteriors: tuple[QuantityPosterior, ...]
    weights: Floats

    def predict(self, x: Floats, alike: Float32Array) -> tuple[Floats, Floats]:
        """Mean and spread of the log at shares ``x`` (n, 4), of likeness ``alike`` (n, m) to the rows."""
        at = [curve(side.best, x) for curve, side in zip(self.curves, self.posteriors, strict=True)]
        each = np.stack([predict_mean_log(side, *here, alike) for side, here in zip(self.posteriors, at, strict=True)])
        mean: Floats = self.weights @ each
        spreading = len(self.posteriors) if len(self.posteriors[0].gain) <= MAX_ROWS_FOR_ALL_SPREADS else 1
        known = np.stack([predict_sd_log(self.posteriors[k], at[k][1], alike) for k in range(spreading)])
        shares = self.weights[:spreading] / self.weights[:spreading].sum()
        sd: Floats = np.sqrt(shares @ np.square(known) + self.weights @ np.square(each - mean))
        return mean, sd


class BlendedPredictor:
    """A ``fedge.protocols.Predictor``; needs a prior or a reference, better both. Learnt: ``time_``, ``power_``."""

    def __init__(self, knowledge: PriorKnowledge) -> None:
        self.knowledge = knowledge

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Learn from all measurements, also other boards' of the same kind; none leaves what was known beforehand."""
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
        """Step time and power of every mode; needs ``fit`` first."""
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
