"""The default predictor: every prior and reference bent to what was measured, and weighed by how well it explains it.

Symbols: k a candidate (``fedge.physics.beliefs``), L_k its evidence, c_k its credibility, w_k = L_k c_k / sum L_j c_j,
m_k and s_k mean and spread of its log prediction.
Blend: m = sum w_k m_k, spread^2 = sum w_k (s_k^2 + (m_k - m)^2); time and power have weights of their own. After many
measurements s_k is that of the most probable candidate: spreads take most of the time, and differ little by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from fedge.errors import BadInput
from fedge.physics.beliefs import Candidate, power_candidates, sources, time_candidates
from fedge.physics.fit import MISFIT_POWER_SD, MISFIT_TIME_SD, NOISE_POWER_SD, NOISE_TIME_SD, likeness_to, pooled
from fedge.physics.knowledge import Knowledge
from fedge.physics.model import TIME_NAMES, shares
from fedge.physics.process import Curve, Rows, Side, Singles, expected, settle, spread
from fedge.types import Floats, Measurement, Modes, Predictions

FEW = 20
"""Up to so many rows every candidate's own spread counts; chosen by us."""
NEGLIGIBLE = 0.05
"""A candidate this much less probable than the best is left out."""


@dataclass(frozen=True, slots=True, eq=False)
class Blend:
    """The candidates of one quantity that are left, the most probable first, with their weights."""

    curves: tuple[Curve, ...]
    sides: tuple[Side, ...]
    weights: Floats

    def predict(self, x: Floats, alike: Singles) -> tuple[Floats, Floats]:
        """Mean and spread of the log at shares ``x`` (n, 4), of likeness ``alike`` (n, m) to the rows."""
        at = [curve(side.best, x) for curve, side in zip(self.curves, self.sides, strict=True)]
        each = np.stack([expected(side, *here, alike) for side, here in zip(self.sides, at, strict=True)])
        mean: Floats = self.weights @ each
        spreading = len(self.sides) if len(self.sides[0].gain) <= FEW else 1
        known = np.stack([spread(self.sides[k], at[k][1], alike) for k in range(spreading)])
        shares = self.weights[:spreading] / self.weights[:spreading].sum()
        sd: Floats = np.sqrt(shares @ np.square(known) + self.weights @ np.square(each - mean))
        return mean, sd


class BlendedPredictor:
    """A ``fedge.interfaces.Predictor``; needs a prior or a reference, better both. Learnt: ``time_``, ``power_``."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.knowledge = knowledge

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Learn from all measurements, also other boards' of the same kind; none leaves what was known beforehand."""
        found = sources(self.knowledge)
        seen = pooled(measurements, self.knowledge.maxn)
        self.time_ = _blended(time_candidates(found), seen.time, seen.alike, MISFIT_TIME_SD, NOISE_TIME_SD)
        busy = self.time_.sides[0].best[: len(TIME_NAMES)]
        powers = power_candidates(found, busy)
        self.power_ = _blended(powers, seen.power, seen.alike, MISFIT_POWER_SD, NOISE_POWER_SD)
        return self

    def predict(self, modes: Modes) -> Predictions:
        """Step time and power of every mode; needs ``fit`` first."""
        x = shares(self.knowledge.maxn, modes)
        alike = likeness_to(self.time_.sides[0].rows, x)
        log_s, time_sd = self.time_.predict(x, alike)
        log_w, power_sd = self.power_.predict(x, alike)
        return Predictions(modes, np.exp(log_s), np.exp(log_w), time_sd, power_sd)


def _blended(candidates: Iterable[Candidate], rows: Rows, alike: Singles, misfit_sd: float, noise_sd: float) -> Blend:
    tried = [(c, settle(c.curve, rows, c.prior, c.misfit * misfit_sd, noise_sd, alike)) for c in candidates]
    logs = np.array([candidate.log_credibility + side.log_evidence for candidate, side in tried])
    logs[~np.isfinite(logs)] = -np.inf
    if not np.isfinite(logs).any():
        raise BadInput("the predictor's prior", "coefficients that give no finite prediction", "finite ones")
    weights = np.exp(logs - logs.max())
    kept = [i for i in np.argsort(-weights, kind="stable") if weights[i] >= NEGLIGIBLE]
    return Blend(
        tuple(tried[i][0].curve for i in kept),
        tuple(tried[i][1] for i in kept),
        weights[kept] / weights[kept].sum(),
    )
