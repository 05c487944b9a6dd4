"""Joint Gaussian posterior of a job's log time or log power over all modes and batch sizes.

Symbols: k batch sizes (1 for training), n modes; a point is a batch size and a mode, numbered place * n + row. th_i are
the physical model's log-parameters at batch size i (``fedge.physics.time_power_model``), v their curve, J its slopes,
R misfit.
Prior: cov(th_i, th_j) = S exp(-|ln b_i / b_j| / PARAMETERS_REACH), cov(R) = similarity of the modes x similarity of the
batch sizes: a measurement at one batch size informs the others. Every prior known beforehand, in several widths, is a
candidate; the candidates' posteriors are mixed by their evidence into one Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.errors import BadInput
from fedge.physics import log_derivatives
from fedge.physics.log_derivatives import LinearizedCurve
from fedge.physics.matern import Float32Array
from fedge.physics.misfit_process import (
    KnobCurve,
    QuantityPosterior,
    QuantityRows,
    fit_quantity,
    misfit_correlation,
    predict_mean_log,
)
from fedge.physics.model_fit import (
    MISFIT_POWER_SD,
    MISFIT_TIME_SD,
    NOISE_POWER_SD,
    NOISE_TIME_SD,
    build_fed_power_prior,
    build_power_prior,
    build_prior,
    build_time_prior,
    make_fed_power_curve,
    make_power_curve,
)
from fedge.physics.prior_candidates import CREDIBILITY_LOSS, PRIOR_WIDTHS, WIDTH_LOSS
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.physics.robust_fit import STUDENT_DEGREES, GaussianPrior
from fedge.physics.time_power_model import TIME_NAMES, KnobTable, knob_shares
from fedge.types import Floats, Modes

PARAMETERS_REACH = 20.0
# Correlation length of the parameters in ln b: from 1 to 64 they still correlate by 0.8. Default; a larger value shares
# more between batch sizes.
MISFIT_REACH = 3.0
# Correlation length of the misfit in ln b. Default; a larger value shares more between batch sizes.
INFERENCE_ROUGHNESS = 1.5
# Factor on the misfit and noise of inference, since short batches scatter more; chosen on two measured tables.
MAX_PRIORS = 3
# Number of most credible priors used as candidates. Default; more are slower.
MIXED_CANDIDATES = 3
# Number of most probable candidates in the mixture. Default; more are slower.
NEGLIGIBLE = 0.05
# Candidates less probable than this relative to the best are dropped.

Points = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class JobModel:
    """A job over k batch sizes and n modes.

    Attributes:
        knowledge: Prior knowledge per batch size.
        x: Shares of the top mode and index of the batch size of every point, shape (k n, 5).
        misfit_likeness: Correlation of the points' misfits, shape (k n, k n).
        parameter_correlation: Correlation of the batch sizes' parameters, shape (k, k).
        roughness: Factor on misfit and noise.
        infers: Whether the job is inference.
    """

    knowledge: tuple[PriorKnowledge, ...]
    x: Floats
    misfit_likeness: Float32Array
    parameter_correlation: Floats
    roughness: float
    infers: bool

    @property
    def prior_count(self) -> int:
        return min(MAX_PRIORS, *(len(knowledge.priors) for knowledge in self.knowledge))


@dataclass(frozen=True, slots=True, eq=False)
class JobBelief:
    """The posterior of a quantity's logarithm.

    Attributes:
        mean: Mean, shape (k n,).
        covariance: Covariance, shape (k n, k n).
        noise_sd: Standard deviation of the noise of a further measurement.
    """

    mean: Floats
    covariance: Float32Array
    noise_sd: float


def build_job_model(
    known: Sequence[PriorKnowledge], batch_sizes: Sequence[int], modes: Modes, *, infers: bool
) -> JobModel:
    """Build the model of a job.

    Raises:
        BadInput: If there is no prior for a batch size.
    """
    if not all(knowledge.priors for knowledge in known):
        raise BadInput("the strategy's priors", "none", "at least one calibrated workload beside the job's own")
    mode_shares = knob_shares(known[0].maxn, modes)
    size = np.log(np.asarray(batch_sizes, dtype=np.float64))
    apart = np.abs(size[:, None] - size)
    x = np.vstack([np.column_stack([mode_shares, np.full(len(modes), place)]) for place in range(len(size))])
    alike = np.kron(np.exp(-apart / MISFIT_REACH), misfit_correlation(mode_shares, mode_shares)).astype(np.float32)
    return JobModel(
        tuple(known),
        x=x,
        misfit_likeness=alike,
        parameter_correlation=np.exp(-apart / PARAMETERS_REACH),
        roughness=INFERENCE_ROUGHNESS if infers else 1.0,
        infers=infers,
    )


def compute_posteriors(job: JobModel, points: Points, log_s: Floats, log_w: Floats) -> tuple[JobBelief, JobBelief]:
    """Compute the posteriors of time and power.

    Points are measured at most once; ``log_s`` and ``log_w`` are logarithms of seconds and watts, shape (m,).
    """
    misfit_s, noise_s = job.roughness * MISFIT_TIME_SD, job.roughness * NOISE_TIME_SD
    seconds, best = _mix_candidates(
        job, candidates=_time_candidates(job), points=points, logs=log_s, sds=(misfit_s, noise_s)
    )
    misfit_w, noise_w = job.roughness * MISFIT_POWER_SD, job.roughness * NOISE_POWER_SD
    busy = best.reshape(len(job.knowledge), len(TIME_NAMES))
    watts, _ = _mix_candidates(
        job, candidates=_power_candidates(job, busy), points=points, logs=log_w, sds=(misfit_w, noise_w)
    )
    return seconds, watts


def compute_priors(job: JobModel) -> tuple[JobBelief, JobBelief]:
    """Return time and power under the most credible prior, before any measurement."""
    return _prior_belief(job, next(_time_candidates(job)), MISFIT_TIME_SD, NOISE_TIME_SD), _prior_belief(
        job, next(_power_candidates(job, None)), MISFIT_POWER_SD, NOISE_POWER_SD
    )


@dataclass(frozen=True, slots=True, eq=False)
class _PriorCandidate:
    curve: KnobCurve
    mean: Floats
    covariance: Floats
    log_credibility: float


def _time_candidates(job: JobModel) -> Iterator[_PriorCandidate]:
    for rank in range(job.prior_count):
        priors = [build_time_prior(build_prior(knowledge.priors[rank])) for knowledge in job.knowledge]
        yield from _iter_widths(job, rank, [log_derivatives.linearize_log_time] * len(priors), priors)


def _power_candidates(job: JobModel, busy: Floats | None) -> Iterator[_PriorCandidate]:
    """Yield the power candidates, for inference also those whose next batch may be late.

    ``busy`` are time parameters (k, 11) for the utilisation, None for the prior's.
    """
    for rank in range(job.prior_count):
        known = [build_prior(knowledge.priors[rank]) for knowledge in job.knowledge]
        times = [knowledge.priors[rank].time for knowledge in job.knowledge] if busy is None else list(busy)
        curves = [make_power_curve(time) for time in times]
        yield from _iter_widths(job, rank, curves, [build_power_prior(prior) for prior in known])
        if job.infers:
            curves = [make_fed_power_curve(time) for time in times]
            yield from _iter_widths(job, rank, curves, [build_fed_power_prior(prior) for prior in known])


def _iter_widths(
    job: JobModel, rank: int, curves: Sequence[KnobCurve], priors: Sequence[GaussianPrior]
) -> Iterator[_PriorCandidate]:
    mean = np.concatenate([prior.mean for prior in priors])
    covariance = np.kron(job.parameter_correlation, np.linalg.inv(priors[0].precision))
    for width in PRIOR_WIDTHS:
        credibility = -CREDIBILITY_LOSS * rank - WIDTH_LOSS * float(np.log(width))
        yield _PriorCandidate(_join_curves(curves), mean, covariance * width**2, credibility)


def _join_curves(curves: Sequence[KnobCurve]) -> KnobCurve:
    """Join the batch sizes' curves: a point's value depends only on the parameters of its own batch size."""

    def curve(parameters: Floats, x: Floats | KnobTable) -> LinearizedCurve:
        assert isinstance(x, np.ndarray)
        own, points = parameters.reshape(len(curves), -1), x.reshape(-1, x.shape[-1])
        values, by = np.zeros(len(points)), np.zeros((own.size, len(points)))
        for place, one in enumerate(curves):
            here = np.flatnonzero(points[:, 4] == place)
            if len(here):
                linear = one(own[place], points[here, :4])
                values[here] = linear.values
                by[place * own.shape[1] : (place + 1) * own.shape[1], here] = linear.stack_slopes()
        batch = x.shape[:-2]
        return LinearizedCurve(values.reshape(*batch, -1), own.size, lambda: iter(by.reshape(own.size, *batch, -1)))

    return curve


def _mix_candidates(
    job: JobModel, candidates: Iterator[_PriorCandidate], points: Points, logs: Floats, sds: tuple[float, float]
) -> tuple[JobBelief, Floats]:
    """Return the mixture of the candidates' posteriors and the parameters of the most probable one.

    ``sds`` are the standard deviations of misfit and noise.
    """
    misfit_sd, noise_sd = sds
    count = len(points)
    rows = QuantityRows(
        job.x[points],
        log=logs,
        noise_sd=np.full(count, noise_sd),
        offset=np.zeros((count, count)),
        offset_here=np.zeros(count),
        offset_sd=0.0,
        here=np.ones(count),
    )
    alike = job.misfit_likeness[np.ix_(points, points)]
    tried = []
    for one in candidates:
        prior = GaussianPrior(one.mean, np.asarray(np.linalg.inv(one.covariance), dtype=np.float64))
        side = fit_quantity(one.curve, rows=rows, prior=prior, misfit_sd=misfit_sd, noise_sd=noise_sd, alike=alike)
        tried.append((one.log_credibility + side.log_evidence, one.curve, side))
    finite = sorted((t for t in tried if np.isfinite(t[0])), key=lambda t: -t[0])[:MIXED_CANDIDATES]
    if not finite:
        raise BadInput("the strategy's priors", "coefficients that give no finite prediction", "finite ones")
    weights = np.exp(np.array([t[0] - finite[0][0] for t in finite]))
    kept = [i for i, weight in enumerate(weights) if weight >= NEGLIGIBLE]
    weights = weights[kept] / weights[kept].sum()
    each = [_joint_moments(job, finite[i][1], finite[i][2], points) for i in kept]
    mean = sum((w * m for w, (m, _) in zip(weights, each, strict=True)), np.zeros(len(job.x)))
    covariance = sum(
        (w * (c + np.outer(m - mean, m - mean)) for w, (m, c) in zip(weights, each, strict=True)),
        np.zeros((len(job.x), len(job.x))),
    )
    return JobBelief(mean, covariance.astype(np.float32), noise_sd), finite[0][2].best


def _joint_moments(job: JobModel, curve: KnobCurve, side: QuantityPosterior, points: Points) -> tuple[Floats, Floats]:
    """Return mean and covariance of all points under one candidate."""
    linear = curve(side.best, job.x)
    by = linear.stack_slopes()
    mean = predict_mean_log(side, linear, job.misfit_likeness[:, points])
    moved = by.T @ side.prior_cov
    known = (moved @ side.slopes + side.misfit_sd**2 * job.misfit_likeness[:, points]) @ side.whitener.T
    covariance: Floats = side.scale**2 * (moved @ by + side.misfit_sd**2 * job.misfit_likeness - known @ known.T)
    return mean, covariance


def _prior_belief(job: JobModel, candidate: _PriorCandidate, misfit_sd: float, noise_sd: float) -> JobBelief:
    linear = candidate.curve(candidate.mean, job.x)
    by = linear.stack_slopes()
    covariance: Floats = by.T @ candidate.covariance @ by + (job.roughness * misfit_sd) ** 2 * job.misfit_likeness
    return JobBelief(linear.values, covariance.astype(np.float32), job.roughness * noise_sd)


MIN_VARIANCE = 1e-8


class SequentialBelief:
    """A posterior that is updated by single measurements.

    Attributes:
        mean: Mean of the logarithm, shape (points,).
        var: Variance of the logarithm without noise, shape (points,).
    """

    def __init__(self, belief: JobBelief) -> None:
        self._belief = belief
        self._known: list[Floats] = []
        self.mean = belief.mean
        self.var: Floats = np.maximum(np.diag(belief.covariance).astype(np.float64), MIN_VARIANCE)

    def tell(self, point: int, log: float) -> None:
        """Update with a measurement of ``point`` whose logarithm is ``log``; outliers are down-weighted."""
        column: Floats = self._belief.covariance[:, point].astype(np.float64)
        for vector in self._known:
            column -= vector[point] * vector
        before = max(float(column[point]), MIN_VARIANCE)
        total = before + self._belief.noise_sd**2
        off = log - float(self.mean[point])
        weight = min(1.0, (STUDENT_DEGREES + 1.0) / (STUDENT_DEGREES + off * off / total))
        spread = math.sqrt(total / weight)
        vector = column / spread
        self._known.append(vector)
        self.mean = self.mean + vector * (off / spread)
        self.var = np.maximum(self.var - vector * vector, MIN_VARIANCE)

    @property
    def sd(self) -> Floats:
        """Return the standard deviation of a further measurement of every point, including noise."""
        sd: Floats = np.sqrt(self.var + self._belief.noise_sd**2)
        return sd
