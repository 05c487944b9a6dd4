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
from fedge.physics.robust_fit import GaussianPrior
from fedge.physics.time_power_model import TIME_NAMES, knob_shares
from fedge.types import Floats, Measurement, Modes, Predictions

MAX_ROWS_FOR_ALL_SPREADS = 20
"""Number of rows up to which every candidate's own spread is computed. Default; a larger value is more exact and
slower."""
MIN_RELATIVE_WEIGHT = 0.05
"""Candidates with less than this weight relative to the best are dropped."""


@dataclass(frozen=True, slots=True, eq=False)
class CandidateGroup:
    """The remaining candidates of one curve.

    Attributes:
        curve: Their curve.
        posterior: Their g posteriors, with a leading axis.
        weights: Their probabilities among all candidates, shape (g,).
    """

    curve: KnobCurve
    posterior: QuantityPosterior
    weights: Floats


@dataclass(frozen=True, slots=True, eq=False)
class CandidateBlend:
    """The remaining candidates of one quantity.

    Attributes:
        groups: The candidates by their curve; the most probable candidate is the first of the first group.
    """

    groups: tuple[CandidateGroup, ...]

    @property
    def best(self) -> Floats:
        """Return the parameters of the most probable candidate."""
        best: Floats = self.groups[0].posterior.best[0]
        return best

    @property
    def rows(self) -> QuantityRows:
        """Return the rows that were fitted."""
        return self.groups[0].posterior.rows

    def predict(self, x: Floats, alike: Float32Array) -> tuple[Floats, Floats]:
        """Return mean and spread of the log values.

        Args:
            x: Knobs as shares of the top mode, shape (n, 4).
            alike: Correlation of the misfits of modes and rows, shape (n, m).

        Returns:
            Two arrays of shape (n,), log units.
        """
        at = [group.curve(group.posterior.best, x) for group in self.groups]
        each = [predict_mean_log(group.posterior, *here, alike) for group, here in zip(self.groups, at, strict=True)]
        weights, means = np.concatenate([group.weights for group in self.groups]), np.concatenate(each)
        mean: Floats = weights @ means
        if len(self.rows.log) <= MAX_ROWS_FOR_ALL_SPREADS:
            known = [predict_sd_log(group.posterior, by, alike) for group, (_, by) in zip(self.groups, at, strict=True)]
            own = weights @ np.square(np.concatenate(known))
        else:
            first = self.groups[0].posterior.select(np.array([0]))
            own = np.square(predict_sd_log(first, at[0][1][:1], alike)[0])
        sd: Floats = np.sqrt(own + weights @ np.square(means - mean))
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
        busy = self.time_.best[: len(TIME_NAMES)]
        powers = iterate_power_candidates(found, busy)
        self.power_ = _blend_candidates(
            powers, rows=seen.power, alike=seen.correlation, misfit_sd=MISFIT_POWER_SD, noise_sd=NOISE_POWER_SD
        )
        return self

    def predict(self, modes: Modes) -> Predictions:
        """Predict step time and power of every mode; requires ``fit``."""
        x = knob_shares(self.knowledge.maxn, modes)
        alike = correlate_with_rows(self.time_.rows, x)
        log_s, time_sd = self.time_.predict(x, alike)
        log_w, power_sd = self.power_.predict(x, alike)
        return Predictions(
            modes, step_s=np.exp(log_s), power_w=np.exp(log_w), step_s_sd_log=time_sd, power_w_sd_log=power_sd
        )


def _blend_candidates(
    candidates: Iterable[PriorCandidate], rows: QuantityRows, alike: Float32Array, misfit_sd: float, noise_sd: float
) -> CandidateBlend:
    by_curve: dict[KnobCurve, list[PriorCandidate]] = {}
    for candidate in candidates:
        by_curve.setdefault(candidate.curve, []).append(candidate)
    posteriors = [
        fit_quantity(
            curve,
            rows=rows,
            prior=GaussianPrior(
                np.stack([member.prior.mean for member in members]),
                np.stack([member.prior.precision for member in members]),
            ),
            misfit_sd=misfit_sd * np.array([member.misfit for member in members]),
            noise_sd=noise_sd,
            alike=alike,
        )
        for curve, members in by_curve.items()
    ]
    logs = [
        posterior.log_evidence + np.array([member.log_credibility for member in members])
        for posterior, members in zip(posteriors, by_curve.values(), strict=True)
    ]
    finite = np.concatenate(logs)
    finite = finite[np.isfinite(finite)]
    if not len(finite):
        raise BadInput("the predictor's prior", "coefficients that give no finite prediction", "finite ones")
    weights = [np.where(np.isfinite(one), np.exp(one - finite.max()), 0.0) for one in logs]
    total = sum(one[one >= MIN_RELATIVE_WEIGHT].sum() for one in weights)
    groups = list[CandidateGroup]()
    for curve, posterior, own in zip(by_curve, posteriors, weights, strict=True):
        order = np.argsort(-own, kind="stable")
        kept = order[own[order] >= MIN_RELATIVE_WEIGHT]
        if len(kept):
            groups.append(CandidateGroup(curve, posterior.select(kept), own[kept] / total))
    return CandidateBlend(tuple(sorted(groups, key=lambda group: -group.weights[0])))
