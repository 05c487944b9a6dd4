"""Prior candidates for time and power: every prior and reference table as a curve with a Gaussian prior.

Symbols: k a prior or reference, v_k its curve, r_k the residuals of a reference about its own fit, rho their weight.
A candidate with a reference is v_k(th, x) + rho r_k(x): boards of a kind deviate from the smooth curve in a similar way
for every workload. rho ~ N(0.8, 0.3^2), from the calibrated tables of one board.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

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
"""Mean and standard deviation of the prior of a reference's weight (rho), from the calibrated tables of one board."""
RESIDUAL_MISFIT_SHARE = 0.7
"""Share of the misfit's standard deviation that remains with a reference's residuals. Default; a smaller value trusts
the reference more."""
CREDIBILITY_LOSS = 0.7
"""Loss of credibility from each prior to the next, log units. With another table of the same board first, this value
reduces the power error after the first measurements by a third, and costs boards without such a table little."""
REFERENCE_GAIN = 0.7
"""Gain of credibility by a reference's residuals, log units. Default; a larger value prefers references for longer."""
PRIOR_WIDTHS = (1.0, 2.0, 4.0)
"""Factors by which every prior's spread is widened: unknown workloads and boards may lie further off. Default; each
width adds a candidate to every fit."""
WIDTH_LOSS = 0.3
"""Loss of credibility per unit of log width. Default; a larger value keeps narrow priors for longer."""
MAX_PRIORS_WITH_RESIDUALS = 2
"""Number of first priors that are also combined with each reference's residuals. Default; each adds candidates to a
fit."""


@dataclass(frozen=True, slots=True, eq=False)
class PriorCandidate:
    """A prior over one quantity.

    Attributes:
        curve: Log values and derivatives at parameters and shares; the same object for candidates of one form, so that
            they can be fitted together.
        prior: Gaussian prior over the parameters.
        log_credibility: Log prior weight among the candidates, relative to the first.
        misfit: Share of the usual misfit's standard deviation that the curve leaves.
    """

    curve: KnobCurve
    prior: GaussianPrior
    log_credibility: float
    misfit: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class PriorSource:
    """Coefficients that a candidate starts from.

    Attributes:
        coefficients: The physical model's log-parameters.
        reference: A reference table whose residuals are added; None for none.
        log_credibility: Log prior weight among the sources, relative to the first.
    """

    coefficients: Coefficients
    reference: ReferenceFit | None
    log_credibility: float


def list_prior_sources(knowledge: PriorKnowledge) -> tuple[PriorSource, ...]:
    """Return the sources of candidates, the most credible first.

    Raises:
        BadInput: There is neither a prior nor a reference.
    """
    if not knowledge.priors and not knowledge.references:
        raise BadInput("the predictor's prior", "nothing", "at least one calibrated workload or one reference table")
    idle_w = knowledge.idle_w or 0.0
    priors = [raise_to_idle_w(prior, idle_w) for prior in knowledge.priors]
    references = [fit_reference(table, knowledge.maxn) for table in knowledge.references]
    found = [PriorSource(prior, None, -CREDIBILITY_LOSS * rank) for rank, prior in enumerate(priors)]
    for rank, reference in enumerate(references):
        if not reference.is_same_kind:  # another kind of board: a prior like the others, and the last of them
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
    """Raise the idle power of coefficients to at least the board's, because some tables measured only part of the power
    rails.

    Args:
        coefficients: The coefficients to raise.
        idle_w: The board's measured idle power in the top mode, in watts; 0 if unknown.
    """
    return with_idle_w(coefficients, max(idle_w, idle_w_at_maxn(coefficients)))


def iterate_time_candidates(found: tuple[PriorSource, ...]) -> Iterator[PriorCandidate]:
    """Yield the candidates for log time: every source with every prior width."""
    curve_of = _join_residuals(log_derivatives.evaluate_log_time, TIME)
    for source in found:
        yield from _iterate_candidates(source, curve_of(source.reference), build_time_prior)


def iterate_power_candidates(found: tuple[PriorSource, ...], time: Floats) -> Iterator[PriorCandidate]:
    """Yield the candidates for log power: every source with every prior width.

    Args:
        found: The sources (``list_prior_sources``).
        time: Log time parameters, shape (11,), which determine how busy each part is.
    """
    curve_of = _join_residuals(make_power_curve(time), POWER)
    for source in found:
        yield from _iterate_candidates(source, curve_of(source.reference), build_power_prior)


def _iterate_candidates(
    source: PriorSource, curve: KnobCurve, gaussian: Callable[[Prior], GaussianPrior]
) -> Iterator[PriorCandidate]:
    about = gaussian(build_prior(source.coefficients))
    for width in PRIOR_WIDTHS:
        prior = GaussianPrior(about.mean, about.precision / width**2)
        credibility = source.log_credibility - WIDTH_LOSS * float(np.log(width))
        if source.reference is None:
            yield PriorCandidate(curve, prior, credibility)
        else:
            yield PriorCandidate(curve, _append_residual_weight(prior), credibility, RESIDUAL_MISFIT_SHARE)


def _join_residuals(curve: KnobCurve, quantity: int) -> Callable[[ReferenceFit | None], KnobCurve]:
    """Return a function from a reference to the curve with its residuals, weighted by a further last parameter."""

    @cache
    def curve_of(reference: ReferenceFit | None) -> KnobCurve:
        if reference is None:
            return curve

        def joined(parameters: Floats, x: Floats) -> tuple[Floats, Floats]:
            values, by = curve(parameters[..., :-1], x)
            left = np.broadcast_to(reference.residuals(x)[quantity], values.shape)
            return values + parameters[..., -1:] * left, np.concatenate([by, left[..., None, :]], axis=-2)

        return joined

    return curve_of


def _append_residual_weight(prior: GaussianPrior) -> GaussianPrior:
    """Append the weight of the residuals to the prior's parameters."""
    k = len(prior.mean)
    precision = np.zeros((k + 1, k + 1))
    precision[:k, :k], precision[k, k] = prior.precision, 1.0 / WEIGHT_SD**2
    return GaussianPrior(np.append(prior.mean, WEIGHT), precision)
