"""What is believed of one job's time or power over all modes and batch sizes: a joint Gaussian of the logarithms.

Symbols: k batch sizes (1 for training), n modes; a point is a batch size and a mode, numbered place * n + row. th_i are
the physical model's log-parameters at batch size i (``fedge.physics.model``), v their curve, J its slopes, R misfit.
Prior: cov(th_i, th_j) = S exp(-|ln b_i / b_j| / PARAMETERS_REACH), cov(R) = likeness of the modes x likeness of the
batch sizes: what is measured at one batch size tells of the others. Every prior known beforehand, in several widths, is
a candidate; what they say after some measurements is mixed by their evidence into one Gaussian.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.errors import BadInput
from fedge.physics import slopes
from fedge.physics.beliefs import CREDIBILITY_LOSS, WIDTH_LOSS, WIDTHS
from fedge.physics.fit import (
    MISFIT_POWER_SD,
    MISFIT_TIME_SD,
    NOISE_POWER_SD,
    NOISE_TIME_SD,
    gaussian_power,
    gaussian_time,
    power_curve,
    prior_about,
)
from fedge.physics.knowledge import Knowledge
from fedge.physics.model import TIME_NAMES, shares
from fedge.physics.process import Curve, Rows, Side, Singles, expected, likeness, settle
from fedge.physics.robust import Gaussian
from fedge.types import Floats, Modes

PARAMETERS_REACH = 20.0
"""Distance in ln b over which parameters stay alike: from 1 to 64 they still correlate by 0.8. Chosen by us."""
MISFIT_REACH = 3.0
"""Distance in ln b over which the misfit stays alike; chosen by us."""
ROUGHER = 1.5
"""How much rougher and noisier inference is than training: short batches scatter more. Chosen by us on two tables."""
SOURCES = 3
"""How many of the most credible priors are candidates; chosen by us."""
KEPT = 3
"""How many of the most probable candidates are mixed; chosen by us."""
NEGLIGIBLE = 0.05
"""A candidate this much less probable than the best is left out."""

Points = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A job over ``k`` batch sizes and ``n`` modes: what is known of it, its points, and how alike they are.

    ``x`` holds each point's shares of the top mode and its batch size's place (k n, 5), ``alike`` the likeness of the
    points' misfits (k n, k n), ``apart`` the correlation of the batch sizes' parameters (k, k).
    """

    known: tuple[Knowledge, ...]
    x: Floats
    alike: Singles
    apart: Floats
    rougher: float

    @property
    def sources(self) -> int:
        return min(SOURCES, *(len(knowledge.priors) for knowledge in self.known))


@dataclass(frozen=True, slots=True, eq=False)
class Belief:
    """Mean (k n,) and covariance (k n, k n) of a quantity's logarithm, and the noise of a further measurement."""

    mean: Floats
    covariance: Singles
    noise_sd: float


def job_of(known: Sequence[Knowledge], batch_sizes: Sequence[int], modes: Modes, *, infers: bool) -> Job:
    """The job of ``known``, one per batch size; raises ``BadInput`` where nothing is known beforehand."""
    if not all(knowledge.priors for knowledge in known):
        raise BadInput("the strategy's priors", "none", "at least one calibrated workload beside the job's own")
    mode_shares = shares(known[0].maxn, modes)
    size = np.log(np.asarray(batch_sizes, dtype=np.float64))
    apart = np.abs(size[:, None] - size)
    x = np.vstack([np.column_stack([mode_shares, np.full(len(modes), place)]) for place in range(len(size))])
    alike = np.kron(np.exp(-apart / MISFIT_REACH), likeness(mode_shares, mode_shares)).astype(np.float32)
    return Job(tuple(known), x, alike, np.exp(-apart / PARAMETERS_REACH), ROUGHER if infers else 1.0)


def believed(job: Job, points: Points, log_s: Floats, log_w: Floats) -> tuple[Belief, Belief]:
    """Seconds and watts after measurements at ``points``, one each, of the logarithms ``log_s`` and ``log_w``."""
    misfit_s, noise_s = job.rougher * MISFIT_TIME_SD, job.rougher * NOISE_TIME_SD
    seconds, best = _mixed(job, _time_candidates(job), points, log_s, (misfit_s, noise_s))
    misfit_w, noise_w = job.rougher * MISFIT_POWER_SD, job.rougher * NOISE_POWER_SD
    busy = best.reshape(len(job.known), len(TIME_NAMES))
    watts, _ = _mixed(job, _power_candidates(job, busy), points, log_w, (misfit_w, noise_w))
    return seconds, watts


def beforehand(job: Job) -> tuple[Belief, Belief]:
    """Seconds and watts by the most credible prior alone, before anything is measured."""
    return _before(job, next(_time_candidates(job)), MISFIT_TIME_SD, NOISE_TIME_SD), _before(
        job, next(_power_candidates(job, None)), MISFIT_POWER_SD, NOISE_POWER_SD
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    curve: Curve
    mean: Floats
    covariance: Floats
    log_credibility: float


def _time_candidates(job: Job) -> Iterator[_Candidate]:
    for rank in range(job.sources):
        priors = [gaussian_time(prior_about(knowledge.priors[rank])) for knowledge in job.known]
        yield from _widths(job, rank, [slopes.log_time] * len(priors), priors)


def _power_candidates(job: Job, busy: Floats | None) -> Iterator[_Candidate]:
    """``busy`` are the time parameters (k, 11) that say how busy each part is; None: those of each prior itself."""
    for rank in range(job.sources):
        priors = [gaussian_power(prior_about(knowledge.priors[rank])) for knowledge in job.known]
        times = [knowledge.priors[rank].time for knowledge in job.known] if busy is None else list(busy)
        yield from _widths(job, rank, [power_curve(time) for time in times], priors)


def _widths(job: Job, rank: int, curves: Sequence[Curve], priors: Sequence[Gaussian]) -> Iterator[_Candidate]:
    mean = np.concatenate([prior.mean for prior in priors])
    covariance = np.kron(job.apart, np.linalg.inv(priors[0].precision))
    for width in WIDTHS:
        credibility = -CREDIBILITY_LOSS * rank - WIDTH_LOSS * float(np.log(width))
        yield _Candidate(_by_place(curves), mean, covariance * width**2, credibility)


def _by_place(curves: Sequence[Curve]) -> Curve:
    """One curve over all batch sizes: a point's value depends on the parameters of its own batch size only."""

    def curve(parameters: Floats, x: Floats) -> tuple[Floats, Floats]:
        own = parameters.reshape(len(curves), -1)
        values, by = np.empty(len(x)), np.zeros((own.size, len(x)))
        for place, one in enumerate(curves):
            here = np.flatnonzero(x[:, 4] == place)
            if len(here):
                values[here], by[place * own.shape[1] : (place + 1) * own.shape[1], here] = one(own[place], x[here, :4])
        return values, by

    return curve


def _rows(job: Job, points: Points, logs: Floats, noise_sd: float) -> Rows:
    count = len(points)
    none = np.zeros(count)
    return Rows(job.x[points], logs, np.full(count, noise_sd), np.zeros((count, count)), none, 0.0, np.ones(count))


def _mixed(
    job: Job, candidates: Iterator[_Candidate], points: Points, logs: Floats, sds: tuple[float, float]
) -> tuple[Belief, Floats]:
    """The mixture of what the candidates say, and the parameters of the most probable one.

    ``sds`` are the misfit's and the noise's standard deviation.
    """
    misfit_sd, noise_sd = sds
    rows = _rows(job, points, logs, noise_sd)
    alike = job.alike[np.ix_(points, points)]
    tried = []
    for one in candidates:
        prior = Gaussian(one.mean, np.asarray(np.linalg.inv(one.covariance), dtype=np.float64))
        side = settle(one.curve, rows, prior, misfit_sd, noise_sd, alike)
        tried.append((one.log_credibility + side.log_evidence, one.curve, side))
    finite = sorted((t for t in tried if np.isfinite(t[0])), key=lambda t: -t[0])[:KEPT]
    if not finite:
        raise BadInput("the strategy's priors", "coefficients that give no finite prediction", "finite ones")
    weights = np.exp(np.array([t[0] - finite[0][0] for t in finite]))
    kept = [i for i, weight in enumerate(weights) if weight >= NEGLIGIBLE]
    weights = weights[kept] / weights[kept].sum()
    each = [_joint(job, finite[i][1], finite[i][2], points) for i in kept]
    mean = sum((w * m for w, (m, _) in zip(weights, each, strict=True)), np.zeros(len(job.x)))
    covariance = sum(
        (w * (c + np.outer(m - mean, m - mean)) for w, (m, c) in zip(weights, each, strict=True)),
        np.zeros((len(job.x), len(job.x))),
    )
    return Belief(mean, covariance.astype(np.float32), noise_sd), finite[0][2].best


def _joint(job: Job, curve: Curve, side: Side, points: Points) -> tuple[Floats, Floats]:
    """Mean and covariance of all points under one candidate after its measurements."""
    values, by = curve(side.best, job.x)
    mean = expected(side, values, by, job.alike[:, points])
    moved = by.T @ side.prior_cov
    known = (moved @ side.slopes + side.misfit_sd**2 * job.alike[:, points]) @ side.whitener.T
    covariance: Floats = side.scale**2 * (moved @ by + side.misfit_sd**2 * job.alike - known @ known.T)
    return mean, covariance


def _before(job: Job, candidate: _Candidate, misfit_sd: float, noise_sd: float) -> Belief:
    values, by = candidate.curve(candidate.mean, job.x)
    covariance: Floats = by.T @ candidate.covariance @ by + (job.rougher * misfit_sd) ** 2 * job.alike
    return Belief(values, covariance.astype(np.float32), job.rougher * noise_sd)
