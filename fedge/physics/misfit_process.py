"""Bayesian curve fit with smooth misfit and noise, linearised at the best fit: posterior, prediction and evidence.

Symbols: th parameters, N(mu, S) their prior, v(x) the curve of log time or log power, J(x) its derivatives at the best
fit th*, R(x, x') covariance of the misfit that the curve cannot follow, B(x, x') covariance of the boards' offsets, s
noise of one row, w its robust weight. With rows X, y the prediction is the Gaussian one of the curve linearised at th*,
plus R and B:

K = J' S J + R + B,  mean(x) = v(x) + J(x)' (mu - th*) + K(x, X) (K(X, X) + s^2 / w)^-1 (y - v(X) - J(X)' (mu - th*))

The evidence is that of the Gaussian prediction and of the weights: down-weighting a row costs what its weight costs
under Student-t noise, DEGREES / 2 (log w + 1 - w).

The spread is scaled by sqrt((nu + sum min(z^2, 4^2)) / (nu + n)), where z are the n rows whitened without weights (the
scale of a Student-t process): rows further off than expected widen it, closer rows narrow it, and an outlier counts as
at most four standard deviations.

References:
    Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), section 2.7. Shah, Wilson and Ghahramani,
    Student-t Processes as Alternatives to Gaussian Processes (2014).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.physics.log_derivatives import LinearizedCurve
from fedge.physics.matern import Float32Array, matern5_single
from fedge.physics.robust_fit import STUDENT_DEGREES, Curve, CurveFit, GaussianPrior, fit_curves
from fedge.physics.time_power_model import KnobTable, as_knob_table
from fedge.types import Floats

KnobCurve = Callable[[Floats, Floats | KnobTable], LinearizedCurve]
"""Parameters (..., k) and shares (..., n, 4), or their table -> curve of log values with derivatives."""
MemberKnobCurves = Callable[[Floats, NDArray[np.intp]], LinearizedCurve]
"""Parameters (r, k) and the boards (r,) that they belong to -> curves of r fits."""
CurveBinding = Callable[[Floats], MemberKnobCurves]
"""Shares (B, n, 4) of the rows of B boards -> their curves."""

FIT_TOLERANCE = 1e-3
"""Relative decrease of the objective at which a fit to few measurements stops. The objective counts squared standard
deviations, so a thousandth changes no prediction, and fits run on boards during rounds."""
LENGTH_SCALES = (1.0, 0.65, 0.7, 0.5)
"""Correlation lengths of the misfit in log-knobs (cores, CPU, GPU, memory): close to the most probable values for the
residuals of the calibrated tables."""
SINGLE_KNOB_SHARE = 0.3
"""Share of the misfit's variance that belongs to single knobs, such as one GPU clock that is off in every mode; taken
from the residuals of the calibrated tables."""
SPREAD_PRIOR_ROWS = 8.0
"""Rows that the expected size of the misfit counts as (nu above). Default; smaller values adapt the spread to fewer
rows."""
ROW_PADDING = 8
"""Rows of a fit are padded to a multiple of this, so that boards with about as many rows are fitted together."""
FEW_MODES = 256
"""Modes up to which the spreads of all members are computed at once; the number changes the time of a prediction only.
"""
OUTLIER_SD = 4.0
"""Standard deviations at which a row is clipped when the spread is scaled. Default; larger values let outliers widen
it."""


@dataclass(frozen=True, slots=True, eq=False)
class QuantityRows:
    """Measurements of one quantity, one row per mode and board.

    The three offset fields are zero if no other board's measurements are included.

    Attributes:
        x: Knobs as shares of the top mode, shape (n, 4).
        log: Log seconds or log watts, shape (n,).
        noise_sd: Noise in log units, shape (n,).
        offset: Covariance of the boards' offsets between the rows, shape (n, n).
        offset_here: Covariance of the offsets between the rows and the predicted board, shape (n,).
        offset_sd: Spread of the predicted board's own offset, log units.
        here: 1 for rows of the predicted board, else 0, shape (n,).
    """

    x: Floats
    log: Floats
    noise_sd: Floats
    offset: Floats
    offset_here: Floats
    offset_sd: float
    here: Floats


@dataclass(frozen=True, slots=True, eq=False)
class QuantityPosterior:
    """Linearised posterior of log time or log power, or several with leading axes; symbols as above.

    Attributes:
        best: Parameters at the best fit th*, shape (..., k).
        shift: mu - th*, shape (..., k).
        prior_cov: S, shape (..., k, k).
        rows: The n rows that were fitted.
        slopes: J(X), shape (..., k, n).
        gain: (K(X, X) + noise)^-1 (y - ...), shape (..., n).
        whitener: Inverse of the lower Cholesky factor of K(X, X) + noise, shape (..., n, n).
        misfit_sd: Standard deviation of the misfit, log units, shape (...).
        noise_sd: Noise of the next measurement, log units.
        log_evidence: Log probability density of the rows under the prior, up to a constant, shape (...).
        scale: Factor of the spread, shape (...).
    """

    best: Floats
    shift: Floats
    prior_cov: Floats
    rows: QuantityRows
    slopes: Floats
    gain: Floats
    whitener: Floats
    misfit_sd: Floats
    noise_sd: float
    log_evidence: Floats
    scale: Floats

    def select(self, members: NDArray[np.int64]) -> QuantityPosterior:
        """Return some of several posteriors."""
        return dataclasses.replace(self, **{name: getattr(self, name)[members] for name in _MEMBER_FIELDS})


_MEMBER_FIELDS = ("best", "shift", "prior_cov", "slopes", "gain", "whitener", "misfit_sd", "log_evidence", "scale")


@dataclass(frozen=True, slots=True, eq=False)
class QuantityProblem:
    """One board's fit of a quantity under K priors.

    Attributes:
        rows: The measurements; may be empty.
        alike: Correlation of the rows' misfits, shape (n, n): ``misfit_correlation(rows.x, rows.x)`` for a single
            board.
        prior: K priors over the parameters.
        prior_cov: Their covariances, shape (K, k, k).
        misfit_sd: Standard deviations of the misfit, log units, shape (K,).
    """

    rows: QuantityRows
    alike: Float32Array
    prior: GaussianPrior
    prior_cov: Floats
    misfit_sd: Floats

    @property
    def padded_rows(self) -> int:
        """Return the number of rows to which the problem is padded, so that few sizes occur."""
        return -(-len(self.rows.log) // ROW_PADDING) * ROW_PADDING


def fit_quantity(
    curve: KnobCurve,
    rows: QuantityRows,
    prior: GaussianPrior,
    misfit_sd: Floats | float,
    noise_sd: float,
    alike: Float32Array,
) -> QuantityPosterior:
    """Fit the posterior of one quantity of one board under one prior, or under several at once.

    Args:
        curve: Log values and derivatives at parameters and shares.
        rows: The measurements; may be empty.
        prior: Prior over the parameters, or K priors; the posterior has the same leading axis.
        misfit_sd: Standard deviation of the misfit, log units, scalar or shape (K,).
        noise_sd: Noise of the next measurement, log units.
        alike: Correlation of the rows' misfits, shape (n, n).
    """
    leading = GaussianPrior(np.atleast_2d(prior.mean), prior.precision.reshape(-1, *prior.precision.shape[-2:]))
    problem = QuantityProblem(
        rows,
        alike=alike,
        prior=leading,
        prior_cov=np.asarray(np.linalg.inv(leading.precision), dtype=np.float64),
        misfit_sd=np.broadcast_to(np.asarray(misfit_sd, dtype=np.float64), len(leading.mean)),
    )
    posterior = fit_quantities(bind_curve(curve), [problem], noise_sd)[0]
    return posterior if prior.mean.ndim == 2 else posterior.select(np.array(0))


def bind_curve(curve: KnobCurve) -> CurveBinding:
    """Return the binding of a curve that is the same for every board."""
    return lambda x: lambda th, boards: curve(th, x[boards])


def fix_shares(curve: KnobCurve, x: Floats) -> Curve:
    """Return a curve's values and derivatives at shares of shape (n, 4)."""

    def linearize(th: Floats) -> tuple[Floats, Floats]:
        linear = curve(th, x)
        return linear.values, linear.stack_slopes()

    return linearize


def fit_quantities(bind: CurveBinding, problems: Sequence[QuantityProblem], noise_sd: float) -> list[QuantityPosterior]:
    """Fit the posteriors of B boards together. No board affects the result of another, not even in its last bit.

    Args:
        bind: Binds the curves to the padded rows.
        problems: The boards' problems, with one number of priors and one ``padded_rows``.
        noise_sd: Noise of the next measurement, log units.

    Returns:
        The boards' posteriors, each with a leading axis of K.
    """
    rows = _pad_rows(problems)
    priors = len(problems[0].misfit_sd)
    owner = np.repeat(np.arange(len(problems)), priors)
    prior = GaussianPrior(
        np.concatenate([problem.prior.mean for problem in problems]),
        np.concatenate([problem.prior.precision for problem in problems]),
    )
    misfit = np.square(np.concatenate([problem.misfit_sd for problem in problems]))[:, None]
    spread = misfit + np.diagonal(rows.offset, axis1=-2, axis2=-1)[owner]
    curves = bind(rows.x)

    def linearize(th: Floats, fits: NDArray[np.intp]) -> tuple[Floats, Floats]:
        linear = curves(th, owner[fits])
        return linear.values, linear.stack_slopes()

    fitted = fit_curves(
        linearize,
        data=rows.log[owner],
        noise_sd=np.sqrt(rows.noise_sd[owner] ** 2 + spread),
        prior=prior,
        start=prior.mean,
        tolerance=FIT_TOLERANCE,
    )
    covariance = np.concatenate([problem.prior_cov for problem in problems])
    together = _condition_on_rows(
        fitted, prior.mean, covariance=covariance, rows=rows.select(owner), misfit=misfit, spread=spread
    )
    return [
        _build_posterior(problem.rows, noise_sd, {name: values[owner == place] for name, values in together.items()})
        for place, problem in enumerate(problems)
    ]


def _build_posterior(rows: QuantityRows, noise_sd: float, fields: dict[str, Floats]) -> QuantityPosterior:
    """Build a board's posterior from ``_condition_on_rows``, without the rows that pad."""
    n = len(rows.log)
    for name in ("slopes", "gain"):
        fields[name] = fields[name][..., :n]
    return QuantityPosterior(**fields | {"whitener": fields["whitener"][..., :n, :n]}, rows=rows, noise_sd=noise_sd)


def _condition_on_rows(
    fitted: CurveFit, expected: Floats, *, covariance: Floats, rows: _PaddedRows, misfit: Floats, spread: Floats
) -> dict[str, Floats]:
    """Condition the linearised curves and their misfits on the rows, as the module's docstring says.

    Args:
        fitted: B best fits.
        expected: mu, shape (B, k).
        covariance: S, shape (B, k, k).
        rows: The rows of each fit.
        misfit: Variance of the misfit, shape (B, 1).
        spread: The same plus that of the boards' offsets, shape (B, n).

    Returns:
        The fields of ``QuantityPosterior`` that have a leading axis.
    """
    real = rows.real
    slopes, weights = fitted.slopes * real[:, None, :], np.minimum(fitted.weights, 1.0)
    shift = expected - fitted.parameters
    kernel = slopes.swapaxes(-1, -2) @ covariance @ slopes + misfit[..., None] * rows.alike + rows.offset
    with np.errstate(invalid="ignore"):  # infinite noise minus itself
        noise = np.where(real > 0.0, (rows.noise_sd**2 + spread) / weights - spread, 1.0)
    exact = np.where(real > 0.0, np.square(rows.noise_sd), 1.0)
    off: Floats = real * (fitted.residuals - (slopes.swapaxes(-1, -2) @ shift[..., None])[..., 0])
    whitener, whitened, evidence, surprise = explain_residuals(off, kernel, noise, exact=exact, weights=weights)
    return {
        "best": fitted.parameters,
        "shift": shift,
        "prior_cov": covariance,
        "slopes": slopes,
        "gain": (whitener.swapaxes(-1, -2) @ whitened[..., None])[..., 0],
        "whitener": whitener,
        "misfit_sd": np.sqrt(misfit[:, 0]),
        "log_evidence": evidence,
        "scale": np.sqrt((SPREAD_PRIOR_ROWS + surprise) / (SPREAD_PRIOR_ROWS + real.sum(axis=-1))),
    }


@dataclass(frozen=True, slots=True, eq=False)
class _PaddedRows:
    """The rows of B boards with a leading axis; rows that pad have infinite noise and correlate with nothing."""

    x: Floats
    log: Floats
    noise_sd: Floats
    offset: Floats
    alike: Float32Array
    real: Floats

    def select(self, boards: NDArray[np.intp]) -> _PaddedRows:
        """Return the rows of the given boards."""
        return _PaddedRows(*(getattr(self, field.name)[boards] for field in dataclasses.fields(self)))


def _pad_rows(problems: Sequence[QuantityProblem]) -> _PaddedRows:
    shape = len(problems), problems[0].padded_rows
    padded = _PaddedRows(
        np.ones((*shape, problems[0].rows.x.shape[-1])),
        log=np.zeros(shape),
        noise_sd=np.full(shape, np.inf),
        offset=np.zeros((*shape, shape[1])),
        alike=np.zeros((*shape, shape[1]), dtype=np.float32),
        real=np.zeros(shape),
    )
    for place, problem in enumerate(problems):
        rows, n = problem.rows, len(problem.rows.log)
        padded.x[place, :n], padded.log[place, :n], padded.noise_sd[place, :n] = rows.x, rows.log, rows.noise_sd
        padded.offset[place, :n, :n], padded.alike[place, :n, :n] = rows.offset, problem.alike
        padded.real[place, :n] = 1.0
    return padded


def explain_residuals(
    off: Floats, covariance: Floats, noise: Floats, *, exact: Floats, weights: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """Explain residuals by a Gaussian process with the noise of a Student distribution.

    Args:
        off: Residuals, shape (..., n).
        covariance: Their covariance without noise, shape (..., n, n).
        noise: Variance of the noise by its weights, shape (..., n).
        exact: Variance of the noise at weight one, shape (..., n).
        weights: Weights of at most one, shape (..., n).

    Returns:
        Inverse of the Cholesky factor (..., n, n), residuals that it whitens (..., n), and per set the log evidence and
        the sum of squares, up to ``OUTLIER_SD``, of those that exact noise whitens.
    """
    factor = _factorise(covariance, noise)
    whitener = np.asarray(np.linalg.inv(factor), dtype=np.float64)
    whitened: Floats = (whitener @ off[..., None])[..., 0]
    plain = np.linalg.solve(_factorise(covariance, exact), off[..., None])[..., 0]
    lost = 0.5 * STUDENT_DEGREES * (np.log(weights) + 1.0 - weights).sum(axis=-1)
    spans = np.log(np.diagonal(factor, axis1=-2, axis2=-1)).sum(axis=-1)
    evidence = lost - 0.5 * np.square(whitened).sum(axis=-1) - spans
    return whitener, whitened, evidence, np.minimum(np.square(plain), OUTLIER_SD**2).sum(axis=-1)


def _factorise(covariance: Floats, diagonal: Floats) -> Floats:
    matrices = covariance + diagonal[..., None] * np.eye(covariance.shape[-1])
    return np.asarray(np.linalg.cholesky(matrices), dtype=np.float64)


def predict_mean_log(side: QuantityPosterior, curve: LinearizedCurve, alike: Float32Array) -> Floats:
    """Return the mean log value of each mode, shape (..., n).

    Args:
        side: One posterior, or several with leading axes, fitted to m rows.
        curve: The curve at ``side.best``.
        alike: Correlation of the misfits of modes and rows, shape (n, m).
    """
    gain = side.gain[..., None]
    moved = side.shift + (side.prior_cov @ (side.slopes @ gain))[..., 0]
    if not (gain.any() or moved.any()):  # without rows the curve itself: its derivatives take most of the time
        return curve.values
    misfit = (alike @ gain.astype(np.float32))[..., 0]
    mean: Floats = (
        curve.values
        + curve.slope_along(moved)
        + np.square(side.misfit_sd)[..., None] * misfit
        + side.gain @ side.rows.offset_here[:, None]
    )
    return mean


def predict_sd_log(side: QuantityPosterior, curve: LinearizedCurve, alike: Float32Array) -> Floats:
    """Return the standard deviation of the next measurement's log in each mode, shape (..., n).

    The arguments are those of ``predict_variance_log``.
    """
    variance = predict_variance_log(side, curve, alike)
    sd: Floats = side.scale[..., None] * np.sqrt(np.maximum(variance, 0.0) + side.noise_sd**2)
    return sd


def predict_variance_log(side: QuantityPosterior, curve: LinearizedCurve, alike: Float32Array) -> Floats:
    """Return the variance of each mode's log value, unscaled and without the noise of a measurement, shape (..., n).

    The parameters' covariance after the rows is subtracted in double precision and is small, so the many modes can be
    computed in single precision: with a = R + B of modes and rows and C = K(X, X) + noise, the variance is
    J' (S - S J(X) C^-1 J(X)' S) J - 2 J' S J(X) C^-1 a + R + B - a' C^-1 a.

    Args:
        side: One posterior, or several with leading axes, fitted to m rows.
        curve: The curve at ``side.best``.
        alike: Correlation of the misfits of modes and rows, shape (n, m).
    """
    seen = side.whitener @ (side.slopes.swapaxes(-1, -2) @ side.prior_cov)
    after = side.prior_cov - seen.swapaxes(-1, -2) @ seen
    misfit = np.square(side.misfit_sd)
    near = np.ascontiguousarray(alike.T)
    whitened = (side.whitener * misfit[..., None, None]).astype(np.float32)
    far = (side.whitener @ side.rows.offset_here[:, None]).astype(np.float32)
    slopes = curve.stack_slopes_single()
    variance = np.empty(curve.values.shape)
    # Many modes one member after the other: together they would not fit the processor's cache.
    members = np.ndindex(misfit.shape) if len(alike) > FEW_MODES else ((...,),)
    for member in members:
        known = whitened[member] @ near
        known += far[member]
        moved = after[member].astype(np.float32) @ slopes[member]
        moved -= (2.0 * seen[member].swapaxes(-1, -2)).astype(np.float32) @ known
        moved *= slopes[member]
        np.square(known, out=known)
        variance[member] = moved.sum(axis=-2) - known.sum(axis=-2)
    variance += misfit[..., None] + side.rows.offset_sd**2
    return variance


def misfit_correlation(x: Floats | KnobTable, seen: Floats) -> Float32Array:
    """Return the correlation of misfits between modes: Matern-5/2 over all knobs jointly and over each knob.

    Boards have few values per knob, so distances are looked up rather than computed. Single precision halves the time
    of a prediction and changes it by less than 1e-5.

    Args:
        x: Knobs as shares of the top mode, shape (n, 4), or their table.
        seen: The same of the measured rows, shape (m, 4).

    Returns:
        Correlations from 0 to 1, shape (n, m).
    """
    table = as_knob_table(x)
    each = np.arange(len(table.x))
    axes = table.axes or tuple((knob, each) for knob in table.x.T)
    shape = len(table.x), len(seen)
    squared, single = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32)
    for (values, which), rows, length in zip(axes, seen.T, LENGTH_SCALES, strict=True):
        apart = (np.square(np.log(values)[:, None] - np.log(rows)) / length**2).astype(np.float32)
        squared += apart[which]
        single += matern5_single(apart)[which]
    alike = matern5_single(squared)
    alike *= np.float32(1.0 - SINGLE_KNOB_SHARE)
    single *= np.float32(SINGLE_KNOB_SHARE / len(LENGTH_SCALES))
    alike += single
    return alike
