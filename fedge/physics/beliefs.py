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
from fedge.physics import slopes
from fedge.physics.fit import (
    Prior,
    gaussian_power,
    gaussian_time,
    idle_w_at_maxn,
    power_curve,
    prior_about,
    with_idle_w,
)
from fedge.physics.knowledge import Knowledge
from fedge.physics.model import Coefficients
from fedge.physics.process import Curve
from fedge.physics.reference import Reference, study
from fedge.physics.robust import Gaussian
from fedge.types import Floats

TIME, POWER = 0, 1
"""Rows of a reference's residuals."""
WEIGHT, WEIGHT_SD = 0.8, 0.3
"""Prior of a reference's weight (rho)."""
LEFT_OVER = 0.7
"""What a reference's residuals leave of the misfit's standard deviation; chosen by us."""
CREDIBILITY_LOSS = 0.7
"""How much less credible each prior is than the one before it, log units. Chosen by us: with another table of the same
board first, it takes a third off the power error of the first measurements, and costs boards without one little."""
REFERENCE_GAIN = 0.7
"""How much more credible a candidate is with a reference's residuals than without, log units; chosen by us."""
WIDTHS = (1.0, 2.0, 4.0)
"""Every prior is held as it is, twice and four times as wide: workloads and boards that were never seen may lie further
off; chosen by us."""
WIDTH_LOSS = 0.3
"""Loss of credibility per unit of log width; chosen by us."""
BORROWERS = 2
"""How many of the first priors are also tried with each reference's residuals; chosen by us."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One belief about one quantity: a curve, its Gaussian prior and its credibility (log, relative to the first).

    ``misfit`` is the share of the usual misfit's standard deviation that the curve leaves.
    """

    curve: Curve
    prior: Gaussian
    log_credibility: float
    misfit: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Coefficients that a candidate starts from, perhaps with a reference's residuals."""

    coefficients: Coefficients
    reference: Reference | None
    log_credibility: float


def sources(knowledge: Knowledge) -> tuple[Source, ...]:
    """The most credible first; raises ``BadInput`` when there is neither a prior nor a reference."""
    if not knowledge.priors and not knowledge.references:
        raise BadInput("the predictor's prior", "nothing", "at least one calibrated workload or one reference table")
    idle_w = knowledge.idle_w or 0.0
    priors = [at_least_idle_w(prior, idle_w) for prior in knowledge.priors]
    references = [study(table, knowledge.maxn) for table in knowledge.references]
    found = [Source(prior, None, -CREDIBILITY_LOSS * rank) for rank, prior in enumerate(priors)]
    for rank, reference in enumerate(references):
        if not reference.alike:  # another kind of board: no more than one prior among others, and the last
            last = -CREDIBILITY_LOSS * (len(priors) + rank) + reference.log_credibility
            found.append(Source(at_least_idle_w(reference.coefficients, idle_w), None, last))
            continue
        gain = REFERENCE_GAIN + reference.log_credibility
        found.append(Source(reference.coefficients, reference, gain - CREDIBILITY_LOSS * rank))
        found += [
            Source(prior, reference, gain - CREDIBILITY_LOSS * (place + rank))
            for place, prior in enumerate(priors[:BORROWERS])
        ]
    return tuple(sorted(found, key=lambda source: -source.log_credibility))


def at_least_idle_w(coefficients: Coefficients, idle_w: float) -> Coefficients:
    """Raised to what the board draws at rest: a table that metered some rails only lies below."""
    return with_idle_w(coefficients, max(idle_w, idle_w_at_maxn(coefficients)))


def time_candidates(found: tuple[Source, ...]) -> Iterator[Candidate]:
    """Candidates for log time, every source in every width."""
    for source in found:
        yield from _candidates(source, TIME, slopes.log_time, gaussian_time)


def power_candidates(found: tuple[Source, ...], time: Floats) -> Iterator[Candidate]:
    """Candidates for log power, given the time parameters (11,) that say how busy each part is."""
    curve = power_curve(time)
    for source in found:
        yield from _candidates(source, POWER, curve, gaussian_power)


def _candidates(
    source: Source, quantity: int, curve: Curve, gaussian: Callable[[Prior], Gaussian]
) -> Iterator[Candidate]:
    about = gaussian(prior_about(source.coefficients))
    for width in WIDTHS:
        prior = Gaussian(about.mean, about.precision / width**2)
        credibility = source.log_credibility - WIDTH_LOSS * float(np.log(width))
        if source.reference is None:
            yield Candidate(curve, prior, credibility)
        else:
            yield Candidate(_with(curve, source.reference, quantity), _weighted(prior), credibility, LEFT_OVER)


def _with(curve: Curve, reference: Reference, quantity: int) -> Curve:
    """The curve plus its last parameter times the reference's residuals."""

    def joined(parameters: Floats, x: Floats) -> tuple[Floats, Floats]:
        values, by = curve(parameters[:-1], x)
        left = reference.residuals(x)[quantity]
        return values + parameters[-1] * left, np.vstack([by, left])

    return joined


def _weighted(prior: Gaussian) -> Gaussian:
    """The prior with the weight of the residuals as one more parameter."""
    k = len(prior.mean)
    precision = np.zeros((k + 1, k + 1))
    precision[:k, :k], precision[k, k] = prior.precision, 1.0 / WEIGHT_SD**2
    return Gaussian(np.append(prior.mean, WEIGHT), precision)
