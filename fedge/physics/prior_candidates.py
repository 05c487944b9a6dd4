"""What is believed of a workload's time and power before measuring: every prior and reference as a candidate curve.

Symbols: k a prior or reference, v_k its curve, r_k the residuals of a reference about its own fit, rho their weight.
A candidate with a reference is v_k(th, x) + rho r_k(x): boards of a kind deviate from the smooth curve alike, whatever
they work on. rho ~ N(0.8, 0.3^2), chosen by us on the calibrated tables of one board.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from fedge.errors import BadInput
from fedge.physics import log_derivatives
from fedge.physics.misfit_process import KnobCurve
from fedge.physics.model_fit import (
    Prior,
    build_power_prior,
    build_prior,
    build_time_prior,
    idle_w_at_maxn,
    make_power_curve,
    with_idle_w,
)
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.physics.reference_fit import ReferenceFit, fit_reference
from fedge.physics.robust_fit import GaussianPrior
from fedge.physics.time_power_model import Coefficients
from fedge.types import Floats

TIME, POWER = 0, 1
"""Rows of a reference's residuals."""
WEIGHT, WEIGHT_SD = 0.8, 0.3
"""Prior of a reference's weight (rho)."""
RESIDUAL_MISFIT_SHARE = 0.7
"""What a reference's residuals leave of the misfit's standard deviation; chosen by us."""
CREDIBILITY_LOSS = 0.7
"""How much less credible each prior is than the one before it, log units. Chosen by us: with another table of the same
board first, it takes a third off the power error of the first measurements, and costs boards without one little."""
REFERENCE_GAIN = 0.7
"""How much more credible a candidate is with a reference's residuals than without, log units; chosen by us."""
PRIOR_WIDTHS = (1.0, 2.0, 4.0)
"""Every prior is held as it is, twice and four times as wide: workloads and boards that were never seen may lie further
off; chosen by us."""
WIDTH_LOSS = 0.3
"""Loss of credibility per unit of log width; chosen by us."""
MAX_PRIORS_WITH_RESIDUALS = 2
"""How many of the first priors are also tried with each reference's residuals; chosen by us."""


@dataclass(frozen=True, slots=True, eq=False)
class PriorCandidate:
    """One belief about one quantity: a curve, its Gaussian prior and its credibility (log, relative to the first).

    ``misfit`` is the share of the usual misfit's standard deviation that the curve leaves.
    """

    curve: KnobCurve
    prior: GaussianPrior
    log_credibility: float
    misfit: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class PriorSource:
    """Coefficients that a candidate starts from, perhaps with a reference's residuals."""

    coefficients: Coefficients
    reference: ReferenceFit | None
    log_credibility: float


def list_prior_sources(knowledge: PriorKnowledge) -> tuple[PriorSource, ...]:
    """The most credible first; raises ``BadInput`` when there is neither a prior nor a reference."""
    if not knowledge.priors and not knowledge.references:
        raise BadInput("the predictor's prior", "nothing", "at least one calibrated workload or one reference table")
    idle_w = knowledge.idle_w or 0.0
    priors = [raise_to_idle_w(prior, idle_w) for prior in knowledge.priors]
    references = [fit_reference(table, knowledge.maxn) for table in knowledge.references]
    found = [PriorSource(prior, None, -CREDIBILITY_LOSS * rank) for rank, prior in enumerate(priors)]
    for rank, reference in enumerate(references):
        if not reference.is_same_kind:  # another kind of board: no more than one prior among others, and the last
            last = -CREDIBILITY_LOSS * (len(priors) + rank) + reference.log_credibility
            found.append(PriorSource(raise_to_idle_w(reference.coefficients, idle_w), None, last))
            continue
        gain = REFERENCE_GAIN + reference.log_credibility
        found.append(PriorSource(reference.coefficients, reference, gain - CREDIBILITY_LOSS * rank))
        found += [
            PriorSource(prior, reference, gain - CREDIBILITY_LOSS * (place + rank))
            for place, prior in enumerate(priors[:MAX_PRIORS_WITH_RESIDUALS])
        ]
    return tuple(sorted(found, key=lambda source: -source.log_credibility))


def raise_to_idle_w(coefficients: Coefficients, idle_w: float) -> Coefficients:
    """Raised to what the board draws at rest: a table that metered some rails only lies below."""
    return with_idle_w(coefficients, max(idle_w, idle_w_at_maxn(coefficients)))


def iterate_time_candidates(found: tuple[PriorSource, ...]) -> Iterator[PriorCandidate]:
    """Candidates for log time, every source in every width."""
    for source in found:
        yield from _iterate_candidates(source, TIME, log_derivatives.evaluate_log_time, build_time_prior)


def iterate_power_candidates(found: tuple[PriorSource, ...], time: Floats) -> Iterator[PriorCandidate]:
    """Candidates for log power, given the time parameters (11,) that say how busy each part is."""
    curve = make_power_curve(time)
    for source in found:
        yield from _iterate_candidates(source, POWER, curve, build_power_prior)


def _iterate_candidates(
    source: PriorSource, quantity: int, curve: KnobCurve, gaussian: Callable[[Prior], GaussianPrior]
) -> Iterator[PriorCandidate]:
    about = gaussian(build_prior(source.coefficients))
    for width in PRIOR_WIDTHS:
        prior = GaussianPrior(about.mean, about.precision / width**2)
        credibility = source.log_credibility - WIDTH_LOSS * float(np.log(width))
        if source.reference is None:
            yield PriorCandidate(curve, prior, credibility)
        else:
            yield PriorCandidate(
                _add_residuals(curve, source.reference, quantity),
                _append_residual_weight(prior),
                credibility,
                RESIDUAL_MISFIT_SHARE,
            )


def _add_residuals(curve: KnobCurve, reference: ReferenceFit, quantity: int) -> KnobCurve:
    """The curve plus its last parameter times the reference's residuals."""

    def joined(parameters: Floats, x: Floats) -> tuple[Floats, Floats]:
        values, by = curve(parameters[:-1], x)
        left = reference.residuals(x)[quantity]
        return values + parameters[-1] * left, np.vstack([by, left])

    return joined


def _append_residual_weight(prior: GaussianPrior) -> GaussianPrior:
    """The prior with the weight of the residuals as one more parameter."""
    k = len(prior.mean)
    precision = np.zeros((k + 1, k + 1))
    precision[:k, :k], precision[k, k] = prior.precision, 1.0 / WEIGHT_SD**2
    return GaussianPrior(np.append(prior.mean, WEIGHT), precision)
