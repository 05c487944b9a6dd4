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
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.physics.matern import Float32Array, matern5_single
from fedge.physics.robust_fit import STUDENT_DEGREES, GaussianPrior, fit_curve
from fedge.types import Floats

KnobCurve = Callable[[Floats, Floats], tuple[Floats, Floats]]
"""Parameters (..., k) and shares (n, 4) -> log values (..., n) and derivatives (..., k, n)."""

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


def fit_quantity(
    curve: KnobCurve,
    rows: QuantityRows,
    prior: GaussianPrior,
    misfit_sd: Floats | float,
    noise_sd: float,
    alike: Float32Array,
) -> QuantityPosterior:
    """Fit the posterior of one quantity under one prior, or under several at once.

    Args:
        curve: Log values and derivatives at parameters and shares.
        rows: The measurements; may be empty.
        prior: Prior over the parameters, or B priors; the posterior has the same leading axis.
        misfit_sd: Standard deviation of the misfit, log units, scalar or shape (B,).
        noise_sd: Noise of the next measurement, log units.
        alike: Correlation of the rows' misfits, shape (n, n): ``misfit_correlation(rows.x, rows.x)`` for a single
            board.
    """
    covariance = np.asarray(np.linalg.inv(prior.precision), dtype=np.float64)
    misfit = np.square(np.asarray(misfit_sd, dtype=np.float64))
    apart = np.diag(rows.offset)
    loose: Floats = np.sqrt(rows.noise_sd**2 + misfit[..., None] + apart)
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
    noise = loose**2 / weights - misfit[..., None] - apart
    kernel = slopes.swapaxes(-1, -2) @ covariance @ slopes + misfit[..., None, None] * alike + rows.offset
    factor = np.asarray(np.linalg.cholesky(_add_diagonal(kernel, noise)), dtype=np.float64)
    whitener = np.asarray(np.linalg.inv(factor), dtype=np.float64)
    off: Floats = fitted.residuals - np.einsum("...kn,...k->...n", slopes, shift)
    whitened: Floats = np.einsum("...nm,...m->...n", whitener, off)
    explained_away = 0.5 * STUDENT_DEGREES * (np.log(weights) + 1.0 - weights).sum(axis=-1)
    spans = np.log(np.diagonal(factor, axis1=-2, axis2=-1)).sum(axis=-1)
    plain = np.linalg.solve(np.linalg.cholesky(_add_diagonal(kernel, rows.noise_sd**2)), off[..., None])[..., 0]
    count = SPREAD_PRIOR_ROWS + len(rows.log)
    return QuantityPosterior(
        best=fitted.parameters,
        shift=shift,
        prior_cov=covariance,
        rows=rows,
        slopes=slopes,
        gain=np.einsum("...nm,...n->...m", whitener, whitened),
        whitener=whitener,
        misfit_sd=np.sqrt(misfit),
        noise_sd=noise_sd,
        log_evidence=explained_away - 0.5 * np.square(whitened).sum(axis=-1) - spans,
        scale=np.sqrt((SPREAD_PRIOR_ROWS + np.minimum(plain**2, OUTLIER_SD**2).sum(axis=-1)) / count),
    )


def _add_diagonal(matrix: Floats, diagonal: Floats) -> Floats:
    """Return matrices (..., n, n) with ``diagonal`` (..., n) added to their diagonals."""
    total: Floats = matrix + diagonal[..., None] * np.eye(matrix.shape[-1])
    return total


def predict_mean_log(side: QuantityPosterior, values: Floats, slopes: Floats, alike: Float32Array) -> Floats:
    """Return the mean log value of each mode, shape (..., n).

    Args:
        side: One posterior, or several with leading axes, fitted to m rows.
        values: The curve at ``side.best``, shape (..., n).
        slopes: Its derivatives, shape (..., k, n).
        alike: Correlation of the misfits of modes and rows, shape (n, m).
    """
    gain = side.gain[..., None]
    moved = side.shift[..., None] + side.prior_cov @ (side.slopes @ gain)
    mean: Floats = (
        values
        + (slopes.swapaxes(-1, -2) @ moved)[..., 0]
        + np.square(side.misfit_sd)[..., None] * (alike @ gain.astype(np.float32))[..., 0]
        + side.gain @ side.rows.offset_here[:, None]
    )
    return mean


def predict_sd_log(side: QuantityPosterior, slopes: Floats, alike: Float32Array) -> Floats:
    """Return the standard deviation of the next measurement's log in each mode, shape (..., n).

    Args:
        side: One posterior, or several with leading axes, fitted to m rows.
        slopes: Derivatives of the curve at ``side.best``, shape (..., k, n).
        alike: Correlation of the misfits of modes and rows, shape (n, m).
    """
    moved = side.prior_cov @ slopes
    misfit = np.square(side.misfit_sd)[..., None]
    across = misfit[..., None].astype(np.float32) * alike
    across += moved.swapaxes(-1, -2).astype(np.float32) @ side.slopes.astype(np.float32)
    across += side.rows.offset_here.astype(np.float32)
    known = across @ side.whitener.swapaxes(-1, -2).astype(np.float32)
    before = np.einsum("...kn,...kn->...n", slopes, moved) + misfit + side.rows.offset_sd**2
    variance = np.maximum(before - np.einsum("...nm,...nm->...n", known, known), 0.0)
    sd: Floats = side.scale[..., None] * np.sqrt(variance + side.noise_sd**2)
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
