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

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedge.physics.matern import Float32Array, matern5_single
from fedge.physics.robust_fit import STUDENT_DEGREES, GaussianPrior, fit_curve
from fedge.types import Floats

KnobCurve = Callable[[Floats, Floats], tuple[Floats, Floats]]
"""Parameters (k,) and shares (n, 4) -> log values (n,) and derivatives (k, n)."""

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
    """Linearised posterior of log time or log power; symbols as in the module's docstring.

    Attributes:
        best: Parameters at the best fit th*, shape (k,).
        shift: mu - th*, shape (k,).
        prior_cov: S, shape (k, k).
        rows: The n rows that were fitted.
        slopes: J(X), shape (k, n).
        gain: (K(X, X) + noise)^-1 (y - ...), shape (n,).
        whitener: Inverse of the lower Cholesky factor of K(X, X) + noise, shape (n, n).
        misfit_sd: Standard deviation of the misfit, log units.
        noise_sd: Noise of the next measurement, log units.
        log_evidence: Log probability density of the rows under the prior, up to a constant.
        scale: Factor of the spread.
    """

    best: Floats
    shift: Floats
    prior_cov: Floats
    rows: QuantityRows
    slopes: Floats
    gain: Floats
    whitener: Floats
    misfit_sd: float
    noise_sd: float
    log_evidence: float
    scale: float


def fit_quantity(
    curve: KnobCurve, rows: QuantityRows, prior: GaussianPrior, misfit_sd: float, noise_sd: float, alike: Float32Array
) -> QuantityPosterior:
    """Fit the posterior of one quantity.

    Args:
        curve: Log values and derivatives at parameters and shares.
        rows: The measurements; may be empty.
        prior: Prior over the parameters.
        misfit_sd: Standard deviation of the misfit, log units.
        noise_sd: Noise of the next measurement, log units.
        alike: Correlation of the rows' misfits, shape (n, n): ``misfit_correlation(rows.x, rows.x)`` for a single
            board.
    """
    covariance = np.asarray(np.linalg.inv(prior.precision), dtype=np.float64)
    loose: Floats = np.sqrt(rows.noise_sd**2 + misfit_sd**2 + np.diag(rows.offset))
    fitted = fit_curve(
        lambda th: curve(th, rows.x),
        data=rows.log,
        noise_sd=loose,
        prior=prior,
        start=prior.mean,
        tolerance=FIT_TOLERANCE,
    )
    _, slopes = curve(fitted.parameters, rows.x)
    shift = prior.mean - fitted.parameters
    weights = np.minimum(fitted.weights, 1.0)
    noise = loose**2 / weights - misfit_sd**2 - np.diag(rows.offset)
    kernel = slopes.T @ covariance @ slopes + misfit_sd**2 * alike + rows.offset
    factor = np.asarray(np.linalg.cholesky(kernel + np.diag(noise)), dtype=np.float64)
    whitener = np.asarray(np.linalg.inv(factor), dtype=np.float64)
    off: Floats = fitted.residuals - slopes.T @ shift
    whitened: Floats = whitener @ off
    explained_away = 0.5 * STUDENT_DEGREES * (np.log(weights) + 1.0 - weights).sum()
    evidence = float(-0.5 * whitened @ whitened - np.log(np.diag(factor)).sum() + explained_away)
    plain = np.linalg.solve(np.linalg.cholesky(kernel + np.diag(rows.noise_sd**2)), off)
    scale = float(
        np.sqrt((SPREAD_PRIOR_ROWS + np.minimum(plain**2, OUTLIER_SD**2).sum()) / (SPREAD_PRIOR_ROWS + len(plain)))
    )
    gain: Floats = whitener.T @ whitened
    return QuantityPosterior(
        best=fitted.parameters,
        shift=shift,
        prior_cov=covariance,
        rows=rows,
        slopes=slopes,
        gain=gain,
        whitener=whitener,
        misfit_sd=misfit_sd,
        noise_sd=noise_sd,
        log_evidence=evidence,
        scale=scale,
    )


def predict_mean_log(side: QuantityPosterior, values: Floats, slopes: Floats, alike: Float32Array) -> Floats:
    """Return the mean log value of each mode, shape (n,).

    Args:
        side: The posterior, fitted to m rows.
        values: The curve at ``side.best``, shape (n,).
        slopes: Its derivatives, shape (k, n).
        alike: Correlation of the misfits of modes and rows, shape (n, m).
    """
    mean: Floats = (
        values
        + slopes.T @ (side.shift + side.prior_cov @ (side.slopes @ side.gain))
        + side.misfit_sd**2 * (alike @ side.gain.astype(np.float32))
        + side.rows.offset_here @ side.gain
    )
    return mean


def predict_sd_log(side: QuantityPosterior, slopes: Floats, alike: Float32Array) -> Floats:
    """Return the standard deviation of the next measurement's log in each mode, shape (n,).

    Args:
        side: The posterior, fitted to m rows.
        slopes: Derivatives of the curve at ``side.best``, shape (k, n).
        alike: Correlation of the misfits of modes and rows, shape (n, m).
    """
    moved = side.prior_cov @ slopes
    across = np.float32(side.misfit_sd**2) * alike
    across += moved.T.astype(np.float32) @ side.slopes.astype(np.float32)
    across += side.rows.offset_here.astype(np.float32)
    known = across @ side.whitener.T.astype(np.float32)
    before = np.einsum("kn,kn->n", slopes, moved) + side.misfit_sd**2 + side.rows.offset_sd**2
    variance = np.maximum(before - np.einsum("nm,nm->n", known, known), 0.0)
    sd: Floats = side.scale * np.sqrt(variance + side.noise_sd**2)
    return sd


def misfit_correlation(x: Floats, seen: Floats) -> Float32Array:
    """Return the correlation of misfits between modes: Matern-5/2 over all knobs jointly and over each knob.

    Boards have few values per knob, so distances are looked up rather than computed. Single precision halves the time
    of a prediction, which is dominated by this function and ``predict_sd_log``, and changes it by less than 1e-5.

    Args:
        x: Knobs as shares of the top mode, shape (n, 4).
        seen: The same of the measured rows, shape (m, 4).

    Returns:
        Correlations from 0 to 1, shape (n, m).
    """
    squared = np.zeros((len(x), len(seen)), dtype=np.float32)
    single = np.zeros_like(squared)
    for knob, length in enumerate(LENGTH_SCALES):
        values = np.unique(x[:, knob])
        which = np.searchsorted(values, x[:, knob])
        apart = (np.square(np.log(values)[:, None] - np.log(seen[:, knob])) / length**2).astype(np.float32)
        squared += apart[which]
        single += matern5_single(apart)[which]
    alike = matern5_single(squared)
    alike *= np.float32(1.0 - SINGLE_KNOB_SHARE)
    single *= np.float32(SINGLE_KNOB_SHARE / len(LENGTH_SCALES))
    alike += single
    return alike
