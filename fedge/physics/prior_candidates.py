"""Prior candidates for time and power: every prior and reference table as a curve with a Gaussian prior.

Symbols: k a prior or reference, v_k its curve, r_k the residuals of a reference about its own fit, rho their weight.
A candidate with a reference is v_k(th, x) + rho r_k(x): boards of a kind deviate from the smooth curve in a similar way
for every workload. rho ~ N(0.8, 0.3^2), from the calibrated tables of one board.

Reference tables of other workloads on similar boards: fitted coefficients, and the residuals of the fit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedge.call_cache import cache_last_call
from fedge.errors import BadInput
from fedge.groups import group_by
from fedge.physics import log_derivatives
from fedge.physics.log_derivatives import LinearizedCurve
from fedge.physics.misfit_process import CurveBinding, KnobCurve, MemberKnobCurves, bind_curve
from fedge.physics.model_fit import (
    Prior,
    build_power_prior,
    build_prior,
    build_time_prior,
    fit_table,
    idle_w_at_maxn,
    make_power_curve,
    with_idle_w,
)
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.physics.robust_fit import GaussianPrior
from fedge.physics.time_power_model import (
    Coefficients,
    KnobTable,
    as_knob_table,
    compute_power_w,
    compute_step_s,
    compute_time_parts,
    knob_shares,
)
from fedge.types import Floats, Modes, PowerMode, ProfileTable

LARGEST_RESIDUAL = 0.3
"""Residuals are clipped to this, log units: larger ones are outliers of the table, not properties of the board."""
RESIDUAL_REACH = 0.3
"""Distance in log-knobs over which a residual decays for modes that the table lacks. Default; larger values extrapolate
the residuals further."""
USUAL_RESIDUAL_SD = 0.06
"""Spread of residuals up to which a table counts as smooth, log units; the calibrated tables have 0.02 to 0.04."""
DOUBT_SD = 0.03
"""Each further spread of this size makes the table less credible by a factor of e. Default; smaller values reject rough
tables sooner."""
SAME_KIND_TOLERANCE = 0.1
"""Relative difference of top clocks beyond which boards are of different kinds. Default; a smaller value separates
boards with modified clock limits."""
_ROWS = 1200
"""Rows that a reference is fitted to: more hardly change the coefficients but take longer."""


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceFit:
    """A fitted reference table.

    The coefficients of another kind of board hold for shares of its own clocks; its residuals do not apply.

    Attributes:
        coefficients: The physical model fitted to the table.
        residuals: Function from shares (n, 4) to residuals of log time and log power, shape (2, n).
        log_credibility: 0 for a table as smooth as measured ones usually are, negative for a rougher one.
        is_same_kind: Whether the table's board has about the same top clocks.
    """

    coefficients: Coefficients
    residuals: Callable[[Floats], Floats]
    log_credibility: float
    is_same_kind: bool


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceResiduals:
    """Residuals of a table: log measured minus log modelled.

    Attributes:
        axes: Values of each knob that occur in the table, ascending.
        keys: Combined index of the knob values of each row, ascending, shape (rows,).
        values: Residuals of time and power, shape (2, rows), in the order of ``keys``.
    """

    axes: tuple[Floats, ...]
    keys: NDArray[np.int64]
    values: Floats

    def interpolate(self, x: Floats) -> Floats:
        """Return the residuals at the nearest knob values, decaying with distance and 0 where the table has no row.

        Args:
            x: Knobs as shares of the top mode, shape (n, 4).

        Returns:
            Residuals of log time and log power, shape (2, n).
        """
        index, squared = np.zeros(len(x), dtype=np.int64), np.zeros(len(x))
        for axis, wanted in zip(self.axes, x.T, strict=True):
            middles = np.sqrt(axis[1:] * axis[:-1])
            nearest = np.searchsorted(middles, wanted)
            index = index * len(axis) + nearest
            squared += np.square(np.log(wanted / axis[nearest]))
        place = np.minimum(np.searchsorted(self.keys, index), len(self.keys) - 1)
        known = self.keys[place] == index
        found: Floats = np.where(known, self.values[:, place] * np.exp(-squared / RESIDUAL_REACH**2), 0.0)
        return found


@lru_cache(maxsize=16)
def fit_reference(table: ProfileTable, maxn: PowerMode) -> ReferenceFit:
    """Fit the physical model to a reference table; takes about a second.

    Args:
        table: The reference table.
        maxn: Top mode of the board that is to be predicted.
    """
    alike = _is_same_kind(table.maxn, maxn)
    top = maxn if alike else table.maxn
    some = np.random.default_rng(0).permutation(len(table.modes))[:_ROWS]
    rows = Modes(table.modes.knobs[some])
    coefficients = fit_table(rows, top, table.step_s[some], table.power_w[some])
    time = np.log(table.step_s) - np.log(compute_step_s(coefficients, top, table.modes))
    power = np.log(table.power_w) - np.log(compute_power_w(coefficients, top, table.modes))
    x = knob_shares(top, table.modes)
    doubt = sum(max(0.0, float(residual.std()) - USUAL_RESIDUAL_SD) for residual in (time, power)) / DOUBT_SD
    return ReferenceFit(
        coefficients, cache_last_call(_tabulate_residuals(x, np.stack([time, power])).interpolate), -doubt, alike
    )


def _is_same_kind(top: PowerMode, maxn: PowerMode) -> bool:
    """Return whether a table with this top mode is of the same kind of board; it may have fewer cores."""
    pairs = zip((top.cpu_mhz, top.gpu_mhz, top.mem_mhz), (maxn.cpu_mhz, maxn.gpu_mhz, maxn.mem_mhz), strict=True)
    return top.cores <= maxn.cores and all(abs(own / known - 1.0) <= SAME_KIND_TOLERANCE for own, known in pairs)


def _tabulate_residuals(x: Floats, values: Floats) -> ReferenceResiduals:
    axes = tuple(np.unique(knob) for knob in x.T)
    index = np.zeros(len(x), dtype=np.int64)
    for axis, knob in zip(axes, x.T, strict=True):
        index = index * len(axis) + np.searchsorted(axis, knob)
    order = np.argsort(index)
    return ReferenceResiduals(axes, index[order], np.clip(values, -LARGEST_RESIDUAL, LARGEST_RESIDUAL)[:, order])


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
RATED_LOSS = 0.2
"""The same where the priors' errors are known, which say most: 0.15 and 0.3 do as well, and 0 or 0.5 is slightly worse
(``fedge study transfer --part predictor``)."""
RATED_EXPONENT = 3.0
"""How the weight of a prior falls with its expected error. With 2, as of independent errors, profiles of other
workloads count too much, since they are off together: without measurements the time of training is off by 22 % in
``fedge study transfer --part predictor`` instead of 17. With 4, one of 55 choices is slower than promised."""
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
        reference: Reference table whose residuals are added to the curve, weighted by a last parameter; None for none.
        prior: Gaussian prior over the parameters.
        log_credibility: Log prior weight among the candidates, relative to the first.
        misfit: Share of the usual misfit's standard deviation that the curve leaves.
    """

    reference: ReferenceFit | None
    prior: GaussianPrior
    log_credibility: float
    misfit: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class PriorGroup:
    """The candidates with one reference, which are fitted together.

    Attributes:
        reference: The reference; None for none.
        prior: Their K priors.
        prior_cov: Covariances of the priors, shape (K, k, k).
        log_credibility: Shape (K,).
        misfit: Shape (K,).
    """

    reference: ReferenceFit | None
    prior: GaussianPrior
    prior_cov: Floats
    log_credibility: Floats
    misfit: Floats


@dataclass(frozen=True, slots=True, eq=False)
class PriorSource:
    """Coefficients that a candidate starts from.

    Attributes:
        coefficients: The physical model's log-parameters.
        reference: A reference table whose residuals are added; None for none.
        log_credibility: Log prior weight among the sources for log time, relative to the first.
        log_power_credibility: The same for log power.
    """

    coefficients: Coefficients
    reference: ReferenceFit | None
    log_credibility: float
    log_power_credibility: float


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
    found = [PriorSource(prior, None, *own) for prior, own in zip(priors, _rate_priors(knowledge), strict=True)]
    for rank, reference in enumerate(references):
        if not reference.is_same_kind:  # another kind of board: a prior like the others, and the last of them
            last = -CREDIBILITY_LOSS * (len(priors) + rank) + reference.log_credibility
            found.append(PriorSource(raise_to_idle_w(reference.coefficients, idle_w), None, last, last))
            continue
        gain = REFERENCE_GAIN + reference.log_credibility
        own = gain - CREDIBILITY_LOSS * rank
        found.append(PriorSource(reference.coefficients, reference, own, own))
        found += [
            PriorSource(prior, reference, own - CREDIBILITY_LOSS * place, own - CREDIBILITY_LOSS * place)
            for place, prior in enumerate(priors[:MAX_PRIORS_WITH_RESIDUALS])
        ]
    return tuple(sorted(found, key=lambda source: -source.log_credibility))


def _rate_priors(knowledge: PriorKnowledge) -> Iterator[tuple[float, float]]:
    """Yield each prior's log credibility for log time and log power: by its expected error if that is known."""
    if not knowledge.errors:
        yield from ((-CREDIBILITY_LOSS * rank,) * 2 for rank in range(len(knowledge.priors)))
        return
    least = np.min(knowledge.errors, axis=0)
    for rank, errors in enumerate(knowledge.errors):
        time, power = -RATED_EXPONENT * np.log(errors / least) - RATED_LOSS * rank
        yield float(time), float(power)


def raise_to_idle_w(coefficients: Coefficients, idle_w: float) -> Coefficients:
    """Raise the idle power of coefficients to at least the board's, because some tables measured only part of the power
    rails.

    Args:
        coefficients: The coefficients to raise.
        idle_w: The board's measured idle power in the top mode, in watts; 0 if unknown.
    """
    return with_idle_w(coefficients, max(idle_w, idle_w_at_maxn(coefficients)))


def list_time_candidates(sources: Sequence[PriorSource]) -> list[PriorCandidate]:
    """Return the candidates for log time: every source with every prior width."""
    return [
        candidate
        for source in sources
        for candidate in _iterate_widths(source, build_time_prior, source.log_credibility)
    ]


def list_power_candidates(sources: Sequence[PriorSource]) -> list[PriorCandidate]:
    """Return the candidates for log power: every source with every prior width."""
    return [
        candidate
        for source in sources
        for candidate in _iterate_widths(source, build_power_prior, source.log_power_credibility)
    ]


def group_candidates(candidates: Sequence[PriorCandidate]) -> tuple[PriorGroup, ...]:
    """Return the candidates by their reference, in the order of the first of each group."""
    groups = []
    for reference, members in group_by(candidates, lambda one: one.reference).items():
        precision = np.stack([member.prior.precision for member in members])
        groups.append(
            PriorGroup(
                reference,
                GaussianPrior(np.stack([member.prior.mean for member in members]), precision),
                prior_cov=np.asarray(np.linalg.inv(precision), dtype=np.float64),
                log_credibility=np.array([member.log_credibility for member in members]),
                misfit=np.array([member.misfit for member in members]),
            )
        )
    return tuple(groups)


def _iterate_widths(
    source: PriorSource, gaussian: Callable[[Prior], GaussianPrior], log_credibility: float
) -> Iterator[PriorCandidate]:
    about = gaussian(build_prior(source.coefficients))
    for width in PRIOR_WIDTHS:
        prior = GaussianPrior(about.mean, about.precision / width**2)
        credibility = log_credibility - WIDTH_LOSS * float(np.log(width))
        if source.reference is None:
            yield PriorCandidate(None, prior, credibility)
        else:
            yield PriorCandidate(source.reference, _append_residual_weight(prior), credibility, RESIDUAL_MISFIT_SHARE)


def make_time_curve(reference: ReferenceFit | None) -> KnobCurve:
    """Return the curve of log time of the candidates with a reference."""
    return _join_residuals(log_derivatives.linearize_log_time, reference, TIME)


def make_power_curve_with(reference: ReferenceFit | None, time: Floats) -> KnobCurve:
    """Return the curve of log power of the candidates with a reference.

    Args:
        reference: The reference; None for none.
        time: Log time parameters, shape (11,), which determine how busy each part is.
    """
    return _join_residuals(make_power_curve(time), reference, POWER)


def bind_time_curves(reference: ReferenceFit | None) -> CurveBinding:
    """Return ``make_time_curve`` for the rows of several boards."""
    return _bind_residuals(bind_curve(log_derivatives.linearize_log_time), reference, TIME)


def bind_power_curves(reference: ReferenceFit | None, times: Floats) -> CurveBinding:
    """Return ``make_power_curve_with`` for the rows of B boards, whose log time parameters have the shape (B, 11)."""

    def bind(x: Floats) -> MemberKnobCurves:
        parts = compute_time_parts(times, x)
        return lambda th, boards: log_derivatives.linearize_log_power(th, parts.select(boards))

    return _bind_residuals(bind, reference, POWER)


def _join_residuals(curve: KnobCurve, reference: ReferenceFit | None, quantity: int) -> KnobCurve:
    if reference is None:
        return curve

    def evaluate(parameters: Floats, x: Floats | KnobTable) -> LinearizedCurve:
        left = reference.residuals(as_knob_table(x).x)[quantity]
        return _add_residuals(curve(parameters[..., :-1], x), parameters[..., -1:], left)

    return evaluate


def _bind_residuals(binding: CurveBinding, reference: ReferenceFit | None, quantity: int) -> CurveBinding:
    if reference is None:
        return binding

    def bind(x: Floats) -> MemberKnobCurves:
        curves, left = binding(x), reference.residuals(x.reshape(-1, x.shape[-1]))[quantity].reshape(x.shape[:-1])
        return lambda th, boards: _add_residuals(curves(th[:, :-1], boards), th[:, -1:], left[boards])

    return bind


def _add_residuals(curve: LinearizedCurve, weight: Floats, left: Floats) -> LinearizedCurve:
    """Add a reference's residuals (..., n), weighted by a further last parameter (..., 1)."""
    values = curve.values + weight * left
    return LinearizedCurve(values, curve.count + 1, lambda: itertools.chain(curve.iterate_rows(), (left,)))


def _append_residual_weight(prior: GaussianPrior) -> GaussianPrior:
    """Append the weight of the residuals to the prior's parameters."""
    k = len(prior.mean)
    precision = np.zeros((k + 1, k + 1))
    precision[:k, :k], precision[k, k] = prior.precision, 1.0 / WEIGHT_SD**2
    return GaussianPrior(np.append(prior.mean, WEIGHT), precision)
