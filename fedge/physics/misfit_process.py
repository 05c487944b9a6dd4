"""A curve with a Gaussian prior, linearised at its best fit, plus smooth misfit and noise: fit, prediction, evidence.

Symbols: th parameters, N(mu, S) their prior, v(x) the curve of log time or log power, J(x) its slopes at the best fit
th*, R(x, x') covariance of what the curve cannot follow, B(x, x') covariance of boards' offsets, s noise of one row,
w its robust weight. With rows X, y the prediction is the Gaussian one of the curve linearised at th*, plus R and B:

K = J' S J + R + B,  mean(x) = v(x) + J(x)' (mu - th*) + K(x, X) (K(X, X) + s^2 / w)^-1 (y - v(X) - J(X)' (mu - th*))

The evidence is that of the Gaussian prediction, and of the weights: explaining a row away has the price that its weight
has in Student-t noise, DEGREES / 2 (log w + 1 - w).

The spread is scaled by sqrt((nu + sum min(z^2, 4^2)) / (nu + n)), z the n rows whitened without weights: rows that lie
further off than expected widen it, rows that lie closer narrow it (the scale of a Student-t process), a wild one counts
no more than four standard deviations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.physics.robust_fit import STUDENT_DEGREES, GaussianPrior, fit_curve
from fedge.types import Floats

Float32Array = NDArray[np.float32]
KnobCurve = Callable[[Floats, Floats], tuple[Floats, Floats]]
"""Parameters (k,) and shares (n, 4) -> log values (n,) and slopes (k, n)."""

FIT_TOLERANCE = 1e-3
"""When the fit to a few measurements is done: its objective counts squared standard deviations, of which a thousandth
moves no prediction, while a board has no time to spare."""
LENGTH_SCALES = (1.0, 0.65, 0.7, 0.5)
"""Distance in log-knobs (cores, CPU, GPU, memory) over which the misfit stays alike: about what is most probable for
the residuals of the calibrated tables."""
SINGLE_KNOB_SHARE = 0.3
"""Share of the misfit's variance that belongs to single knobs, such as one GPU clock that is off in every mode; chosen
by us on the calibrated tables."""
SPREAD_PRIOR_ROWS = 8.0
"""How many rows the expected size of the misfit is worth (nu above); chosen by us."""
OUTLIER_SD = 4.0
"""Rows further off than this count as so far off where the spread is scaled; chosen by us."""


@dataclass(frozen=True, slots=True, eq=False)
class QuantityRows:
    """What was measured of one quantity, one row per mode and board: shares (n, 4), logs, noise and board offsets (n,).

    ``offset`` is the covariance of the boards' own offsets between the rows (n, n), ``offset_here`` that between the
    rows and the board that is predicted (n,), ``offset_sd`` that board's own spread; all zero when no other board's
    measurements are among them. ``here`` (n,) is 1 for rows of the board that is predicted, else 0.
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
    """The linearised posterior of log time or log power after some rows.

    ``shift`` is mu - th*, ``prior_cov`` S, ``gain`` (K(X, X) + noise)^-1 (y - ...), ``whitener`` the inverse of that
    matrix's lower factor, ``log_evidence`` the logarithm of the rows' probability density under the prior, and
    ``scale`` the factor of the spread.
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
    """The posterior after ``rows``, none allowed; ``alike`` is ``likeness(rows.x, rows.x)``.

    ``noise_sd`` is the noise of one next measurement, log units.
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
    """Mean log of every mode, from the curve at ``side.best`` and the likeness to the rows (n, m)."""
    mean: Floats = (
        values
        + slopes.T @ (side.shift + side.prior_cov @ (side.slopes @ side.gain))
        + side.misfit_sd**2 * (alike @ side.gain.astype(np.float32))
        + side.rows.offset_here @ side.gain
    )
    return mean


def predict_sd_log(side: QuantityPosterior, slopes: Floats, alike: Float32Array) -> Floats:
    """Standard deviation of the log of what a next measurement of every mode will read, shape (n,)."""
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
    """How alike the misfits of two modes are, from 0 to 1, shape (n, m): Matern-5/2 over all knobs and over each.

    Boards have few values of every knob, so distances are looked up rather than computed. Single precision halves the
    time of a prediction, which this and ``predict_sd_log`` take most of, and moves it by less than 1e-5.
    """
    squared = np.zeros((len(x), len(seen)), dtype=np.float32)
    single = np.zeros_like(squared)
    for knob, length in enumerate(LENGTH_SCALES):
        values = np.unique(x[:, knob])
        which = np.searchsorted(values, x[:, knob])
        apart = (np.square(np.log(values)[:, None] - np.log(seen[:, knob])) / length**2).astype(np.float32)
        squared += apart[which]
        single += _matern(apart)[which]
    alike = _matern(squared)
    alike *= np.float32(1.0 - SINGLE_KNOB_SHARE)
    single *= np.float32(SINGLE_KNOB_SHARE / len(LENGTH_SCALES))
    alike += single
    return alike


def _matern(squared: Float32Array) -> Float32Array:
    """Matern-5/2 correlation at squared distances."""
    d = np.sqrt(np.float32(5.0) * squared)
    correlation: Float32Array = d * d
    correlation /= np.float32(3.0)
    correlation += d
    correlation += np.float32(1.0)
    np.negative(d, out=d)
    correlation *= np.exp(d, out=d)
    return correlation
