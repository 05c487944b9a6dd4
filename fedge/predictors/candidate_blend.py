"""Fits of the default predictor: every candidate is fitted to the measurements and weighted by its evidence.

Symbols: k a candidate (``fedge.physics.prior_candidates``), L_k its evidence, c_k its credibility, w_k = L_k c_k / sum
L_j c_j, m_k and s_k mean and spread of its log prediction.
Blend: m = sum w_k m_k, spread^2 = sum w_k (s_k^2 + (m_k - m)^2); time and power have separate weights. After many
measurements s_k is that of the most probable candidate alone: spreads dominate the run time, and by then they hardly
differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedge.errors import BadInput
from fedge.physics.log_derivatives import LinearizedCurve
from fedge.physics.matern import Float32Array
from fedge.physics.misfit_process import (
    CurveBinding,
    KnobCurve,
    QuantityPosterior,
    QuantityProblem,
    QuantityRows,
    fit_quantities,
    predict_mean_log,
    predict_sd_log,
)
from fedge.physics.model_fit import (
    MISFIT_POWER_SD,
    MISFIT_TIME_SD,
    NOISE_POWER_SD,
    NOISE_TIME_SD,
    PooledMeasurements,
    correlate_with_rows,
    pool_measurements,
)
from fedge.physics.prior_candidates import (
    PriorGroup,
    ReferenceFit,
    bind_power_curves,
    bind_time_curves,
    group_candidates,
    list_power_candidates,
    list_prior_sources,
    list_time_candidates,
    make_power_curve_with,
    make_time_curve,
)
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.physics.time_power_model import TIME_NAMES, Coefficients, KnobTable
from fedge.types import Floats, PowerMode, ProfileTable

MAX_ROWS_FOR_ALL_SPREADS = 20
"""Number of rows up to which every candidate's own spread is computed. Default; a larger value is more exact and
slower."""
MIN_RELATIVE_WEIGHT = 0.05
"""Candidates with less than this weight relative to the best are dropped."""
NO_MEASUREMENTS = pool_measurements((), PowerMode(1, 1.0, 1.0, 1.0))


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

    def evaluate_curve(self, x: KnobTable) -> LinearizedCurve:
        """Return the candidates' curves in n modes; without rows, priors that differ in width have the same one."""
        if len(self.posterior.rows.log):
            return self.curve(self.posterior.best, x)
        distinct, place = np.unique(self.posterior.best, axis=0, return_inverse=True)
        return self.curve(distinct, x).select(place.reshape(-1))


@dataclass(frozen=True, slots=True, eq=False)
class CandidateMeans:
    """Curves and means of the remaining candidates of one quantity for n modes, log units.

    Attributes:
        curves: The curves, one per group of candidates.
        each: The mean of each candidate, shape (candidates, n).
        mean: The blended mean, shape (n,).
    """

    curves: Sequence[LinearizedCurve]
    each: Floats
    mean: Floats


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

    def average_parameters(self) -> Floats:
        """Return the mean of the candidates' parameters, without the weight of a reference's residuals."""
        each = [group.weights @ group.posterior.best[:, : len(TIME_NAMES)] for group in self.groups]
        mean: Floats = np.sum(each, axis=0)
        return mean

    @property
    def rows(self) -> QuantityRows:
        """Return the rows that were fitted."""
        return self.groups[0].posterior.rows

    def predict_means(self, x: KnobTable, alike: Float32Array) -> CandidateMeans:
        """Return the candidates' curves and means.

        Args:
            x: The n modes.
            alike: Correlation of the misfits of modes and rows, shape (n, m).
        """
        at = [group.evaluate_curve(x) for group in self.groups]
        each = [predict_mean_log(group.posterior, here, alike) for group, here in zip(self.groups, at, strict=True)]
        means, weights = np.concatenate(each), np.concatenate([group.weights for group in self.groups])
        return CandidateMeans(at, means, weights @ means)

    def predict_sd(self, found: CandidateMeans, alike: Float32Array) -> Floats:
        """Return the spread of the log values, shape (n,).

        Args:
            found: Curves and means of the n modes.
            alike: As in ``predict_means``.
        """
        weights = np.concatenate([group.weights for group in self.groups])
        if len(self.rows.log) <= MAX_ROWS_FOR_ALL_SPREADS:
            pairs = zip(self.groups, found.curves, strict=True)
            own = weights @ np.square(np.concatenate([predict_sd_log(one.posterior, at, alike) for one, at in pairs]))
        else:
            best, at = np.array([0]), found.curves[0]
            own = np.square(predict_sd_log(self.groups[0].posterior.select(best), at.select(best), alike)[0])
        sd: Floats = np.sqrt(own + weights @ np.square(found.each - found.mean))
        return sd


@dataclass(frozen=True, slots=True, eq=False)
class PriorGroups:
    """The candidates of a board for log time and log power; ``rated`` if their priors' expected errors are known."""

    time: tuple[PriorGroup, ...]
    power: tuple[PriorGroup, ...]
    rated: bool


def group_priors(knowledge: PriorKnowledge) -> PriorGroups:
    """Return the candidates for log time and log power.

    Raises:
        BadInput: There is no prior or reference.
    """
    powers = group_candidates(list_power_candidates(list_prior_sources(knowledge)))
    times = _group_time_priors(knowledge.maxn, knowledge.priors, knowledge.references, knowledge.errors)
    return PriorGroups(times, powers, bool(knowledge.errors))


@lru_cache(maxsize=64)
def _group_time_priors(
    maxn: PowerMode,
    priors: tuple[Coefficients, ...],
    references: tuple[ProfileTable, ...],
    errors: tuple[tuple[float, float], ...],
) -> tuple[PriorGroup, ...]:
    """Return the candidates for log time, which all boards of a kind share: they do not depend on idle power."""
    knowledge = PriorKnowledge(maxn, priors, references, errors=errors)
    return group_candidates(list_time_candidates(list_prior_sources(knowledge)))


class QuantityPrediction(Protocol):
    """Prediction of one quantity for n modes, log units.

    Attributes:
        mean: The mean, shape (n,).
    """

    @property
    def mean(self) -> Floats: ...

    def predict_sd(self, rows: NDArray[np.intp] | None) -> Floats:
        """Return the spread in some rows, or in all of them."""
        ...


class BoardFit(Protocol):
    """The fit of a board to its measurements and those of others."""

    def predict(self, x: KnobTable) -> tuple[QuantityPrediction, QuantityPrediction]:
        """Predict log time and log power of n modes."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class BlendPrediction:
    """Prediction of a ``CandidateBlend``; see ``QuantityPrediction``."""

    blend: CandidateBlend
    x: KnobTable
    alike: Float32Array
    found: CandidateMeans

    @property
    def mean(self) -> Floats:
        return self.found.mean

    def predict_sd(self, rows: NDArray[np.intp] | None) -> Floats:
        if rows is None:
            return self.blend.predict_sd(self.found, self.alike)
        few, near = self.x.select(rows), self.alike[rows]
        return self.blend.predict_sd(self.blend.predict_means(few, near), near)


@dataclass(frozen=True, slots=True, eq=False)
class _PriorPrediction:
    """Prediction without measurements; see ``QuantityPrediction``."""

    mean: Floats
    sd: Floats

    def predict_sd(self, rows: NDArray[np.intp] | None) -> Floats:
        return self.sd if rows is None else self.sd[rows]


@lru_cache(maxsize=16)
def _predict_prior(blend: CandidateBlend, x: KnobTable) -> _PriorPrediction:
    alike = correlate_with_rows(blend.rows, x)
    found = blend.predict_means(x, alike)
    return _PriorPrediction(found.mean, blend.predict_sd(found, alike))


@dataclass(frozen=True, slots=True, eq=False)
class PooledFit:
    """A ``BoardFit`` to all measurements at once.

    Attributes:
        time: Blend of log time.
        power: Blend of log power.
    """

    time: CandidateBlend
    power: CandidateBlend

    def predict(self, x: KnobTable) -> tuple[QuantityPrediction, QuantityPrediction]:
        alike = correlate_with_rows(self.time.rows, x)
        power = BlendPrediction(self.power, x, alike, self.power.predict_means(x, alike))
        if not len(self.time.rows.log):
            return _predict_prior(self.time, x), power
        return BlendPrediction(self.time, x, alike, self.time.predict_means(x, alike)), power


def fit_pooled_boards(priors: Sequence[PriorGroups], seen: Sequence[PooledMeasurements]) -> list[PooledFit]:
    """Fit several boards at once: the same results as one after the other, in less time.

    Args:
        priors: The candidates of each board.
        seen: The measurements of each board.
    """
    if not priors:
        return []
    measured = [place for place, own in enumerate(seen) if len(own.time.log)]
    fitted = _blend_times([priors[place].time for place in measured], [seen[place] for place in measured])
    by_place = dict(zip(measured, fitted, strict=True))
    times = [by_place.get(place) or _blend_prior_times(groups.time) for place, groups in enumerate(priors)]
    # How busy each part is follows from the time parameters. Expected errors make an estimate from the layers the most
    # probable candidate for time where its power is a poor one: then the mean is used, which does not change by a leap.
    busy = np.stack(
        [
            blend.average_parameters() if groups.rated else blend.best[: len(TIME_NAMES)]
            for groups, blend in zip(priors, times, strict=True)
        ]
    )
    powers = _blend_boards(
        [groups.power for groups in priors],
        rows=[own.power for own in seen],
        alike=[own.correlation for own in seen],
        bind=lambda reference, boards: bind_power_curves(reference, busy[boards]),
        curve=lambda reference, board: make_power_curve_with(reference, busy[board]),
        misfit_sd=MISFIT_POWER_SD,
        noise_sd=NOISE_POWER_SD,
    )
    return [PooledFit(time, power) for time, power in zip(times, powers, strict=True)]


def _blend_times(priors: Sequence[tuple[PriorGroup, ...]], seen: Sequence[PooledMeasurements]) -> list[CandidateBlend]:
    return _blend_boards(
        priors,
        rows=[own.time for own in seen],
        alike=[own.correlation for own in seen],
        bind=lambda reference, _: bind_time_curves(reference),
        curve=lambda reference, _: make_time_curve(reference),
        misfit_sd=MISFIT_TIME_SD,
        noise_sd=NOISE_TIME_SD,
    )


@lru_cache(maxsize=64)
def _blend_prior_times(groups: tuple[PriorGroup, ...]) -> CandidateBlend:
    """Return the candidates for log time before any measurement, one object for all boards of a kind."""
    return _blend_times([groups], [NO_MEASUREMENTS])[0]


def _blend_boards(
    priors: Sequence[tuple[PriorGroup, ...]],
    *,
    rows: Sequence[QuantityRows],
    alike: Sequence[Float32Array],
    bind: Callable[[ReferenceFit | None, list[int]], CurveBinding],
    curve: Callable[[ReferenceFit | None, int], KnobCurve],
    misfit_sd: float,
    noise_sd: float,
) -> list[CandidateBlend]:
    """Fit all boards' candidates of one quantity; those of one form and about as many rows advance together.

    Args:
        priors: Candidates by board.
        rows: Measurements by board.
        alike: Correlation of the rows' misfits, by board.
        bind: Returns the curves of candidates with a reference, of the boards with the given indices.
        curve: Returns the curve of candidates with a reference, of the board with the given index.
        misfit_sd: Usual standard deviation of the misfit, log units.
        noise_sd: Noise of the next measurement, log units.
    """
    batches: dict[tuple[ReferenceFit | None, int, int], list[tuple[int, int, QuantityProblem]]] = {}
    for board, groups in enumerate(priors):
        for place, group in enumerate(groups):
            problem = QuantityProblem(
                rows[board],
                alike=alike[board],
                prior=group.prior,
                prior_cov=group.prior_cov,
                misfit_sd=misfit_sd * group.misfit,
            )
            form = (group.reference, len(group.misfit), problem.padded_rows)
            batches.setdefault(form, []).append((board, place, problem))
    fitted: dict[tuple[int, int], QuantityPosterior] = {}
    for (reference, _, _), batch in batches.items():
        binding = bind(reference, [board for board, _, _ in batch])
        posteriors = fit_quantities(binding, [problem for _, _, problem in batch], noise_sd)
        for (board, place, _), posterior in zip(batch, posteriors, strict=True):
            fitted[board, place] = posterior
    return [
        _weigh_candidates(
            groups,
            [fitted[board, place] for place in range(len(groups))],
            [curve(group.reference, board) for group in groups],
        )
        for board, groups in enumerate(priors)
    ]


def _weigh_candidates(
    groups: Sequence[PriorGroup], posteriors: Sequence[QuantityPosterior], curves: Sequence[KnobCurve]
) -> CandidateBlend:
    logs = [posterior.log_evidence + group.log_credibility for group, posterior in zip(groups, posteriors, strict=True)]
    weights = weigh_logs(logs)
    total = sum(one[one >= MIN_RELATIVE_WEIGHT].sum() for one in weights)
    kept = list[CandidateGroup]()
    for curve, posterior, own in zip(curves, posteriors, weights, strict=True):
        order = np.argsort(-own, kind="stable")
        members = order[own[order] >= MIN_RELATIVE_WEIGHT]
        if len(members):
            kept.append(CandidateGroup(curve, posterior.select(members), own[members] / total))
    return CandidateBlend(tuple(sorted(kept, key=lambda group: -group.weights[0])))


def weigh_logs(logs: Sequence[Floats]) -> list[Floats]:
    """Return the weights of candidates relative to the best one; 0 for those without a finite log weight.

    Args:
        logs: Log weights by group.

    Raises:
        BadInput: None is finite.
    """
    finite = np.concatenate(logs)
    finite = finite[np.isfinite(finite)]
    if not len(finite):
        raise BadInput("the predictor's prior", "coefficients that give no finite prediction", "finite ones")
    return [np.where(np.isfinite(one), np.exp(one - finite.max()), 0.0) for one in logs]
