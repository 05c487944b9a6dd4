"""Levenberg-Marquardt fits of curves with Gaussian priors and Student-t noise, robust against outliers.

Symbols: B fits that advance together, p parameters (B, k), y data (n,), v(p) curves (B, n) with derivatives J
(B, k, n), r = y - v, s noise scale (B, n), N(mu, precision^-1) the priors, nu degrees of freedom. Minimised by each
fit, which has its own damping and ends by itself: sum (nu + 1) log(1 + (r/s)^2 / nu) + (p - mu)' precision (p - mu).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.types import Floats

Curve = Callable[[Floats], tuple[Floats, Floats]]
"""Parameters (..., k) -> values (..., n) and derivatives (..., k, n)."""

STUDENT_DEGREES = 4.0
SD_OF_MAD = 1.4826
"""Standard deviation of a normal distribution divided by its median absolute deviation."""
_LONGEST_STEP = 1.0
"""Largest change of a log-parameter in one iteration; larger steps leave the region where the linearisation holds."""
_STEPS = 80
_TRIES = 10


@dataclass(frozen=True, slots=True, eq=False)
class GaussianPrior:
    """Gaussian priors over parameters, one or several.

    Attributes:
        mean: Mean, shape (..., k).
        precision: Inverse covariance, shape (..., k, k).
    """

    mean: Floats
    precision: Floats


@dataclass(frozen=True, slots=True, eq=False)
class CurveFit:
    """Result of one fit, or of several with the leading axes of their priors.

    Attributes:
        parameters: Parameters at the optimum, shape (..., k).
        objective: The minimised objective, shape (...).
        residuals: Data minus curve, shape (..., n).
        weights: Robust weight of each row, shape (..., n); small far from the curve.
    """

    parameters: Floats
    objective: Floats
    residuals: Floats
    weights: Floats


def fit_curve(
    curve: Curve, data: Floats, noise_sd: Floats | float, prior: GaussianPrior, start: Floats, tolerance: float = 1e-7
) -> CurveFit:
    """Fit a curve's parameters by Levenberg-Marquardt steps, for one prior or for several at once.

    Args:
        curve: Values and derivatives at parameters; with several priors it must accept a leading axis.
        data: Data, shape (n,); without rows the fit converges to the prior's mean.
        noise_sd: Scale of the noise, scalar, shape (n,) or, by prior, (B, n).
        prior: Prior over the parameters, or B priors.
        start: Starting point, shape (k,) or (B, k).
        tolerance: Relative decrease of the objective at which a fit stops.
    """
    if start.ndim == 1:

        def lifted(th: Floats) -> tuple[Floats, Floats]:
            values, slopes = curve(th[0])
            return values[None], slopes[None]

        one = GaussianPrior(prior.mean[None], prior.precision[None])
        noise = np.broadcast_to(noise_sd, (1, len(data)))
        fitted = _fit_curves(lifted, data=data, noise_sd=noise, prior=one, start=start[None], tolerance=tolerance)
        return CurveFit(fitted.parameters[0], fitted.objective[0], fitted.residuals[0], fitted.weights[0])
    noise = np.broadcast_to(noise_sd, (len(start), len(data)))
    return _fit_curves(curve, data=data, noise_sd=noise, prior=prior, start=start, tolerance=tolerance)


def student_weights(z: Floats) -> Floats:
    """Return the weights of standardised residuals under Student-t noise, of the same shape as ``z``."""
    weights: Floats = (STUDENT_DEGREES + 1.0) / (STUDENT_DEGREES + z * z)
    return weights


def robust_sd(deviations: Floats) -> float:
    """Return the standard deviation of normal deviations by their median size, which outliers do not move."""
    return SD_OF_MAD * float(np.median(np.abs(deviations)))


@dataclass(slots=True, eq=False)
class _RunningFits:
    """The state of B fits: parameters, values, derivatives and objective at the best point so far, and the damping."""

    here: Floats
    values: Floats
    slopes: Floats
    best: Floats
    damping: Floats
    steps: NDArray[np.int64]
    tries: NDArray[np.int64]

    def accept(self, rows: NDArray[np.int64], there: Floats, at: tuple[Floats, Floats], objective: Floats) -> None:
        """Move the fits ``rows`` to a better point."""
        self.here[rows], self.best[rows] = there, objective
        self.values[rows], self.slopes[rows] = at
        self.damping[rows] = np.maximum(self.damping[rows] / 5.0, 1e-8)
        self.steps[rows] += 1
        self.tries[rows] = 0

    def reject(self, rows: NDArray[np.int64]) -> None:
        """Let the fits ``rows`` try a shorter step."""
        self.damping[rows] *= 5.0
        self.tries[rows] += 1


def _fit_curves(
    curve: Curve, data: Floats, noise_sd: Floats, prior: GaussianPrior, start: Floats, tolerance: float
) -> CurveFit:
    values, slopes = curve(start)
    count = len(start)
    fits = _RunningFits(
        start.copy(),
        values=values.copy(),
        slopes=slopes.copy(),
        best=_objective(data - values, noise_sd, prior, start),
        damping=np.full(count, 1e-2),
        steps=np.zeros(count, dtype=np.int64),
        tries=np.zeros(count, dtype=np.int64),
    )
    running = np.arange(count)
    while len(running):
        some = GaussianPrior(prior.mean[running], prior.precision[running])
        noise = noise_sd[running]
        step = _compute_step(
            data - fits.values[running],
            slopes=fits.slopes[running],
            noise_sd=noise,
            prior=some,
            here=fits.here[running],
            damping=fits.damping[running],
        )
        there = fits.here[running] + step
        moved = curve(there)
        objective = _objective(data - moved[0], noise, some, there)
        better = objective < fits.best[running]
        won = running[better]
        small = fits.best[won] - objective[better] < tolerance * (1.0 + np.abs(objective[better]))
        fits.accept(won, there[better], (moved[0][better], moved[1][better]), objective[better])
        fits.reject(running[~better])
        ended = (fits.steps[running] >= _STEPS) | (fits.tries[running] >= _TRIES)
        ended[better] |= small
        running = running[~ended]
    residuals = data - fits.values
    return CurveFit(fits.here, fits.best, residuals, student_weights(residuals / noise_sd))


def _compute_step(
    residuals: Floats, slopes: Floats, noise_sd: Floats, prior: GaussianPrior, here: Floats, damping: Floats
) -> Floats:
    """Return the damped Gauss-Newton step of every fit, shape (B, k)."""
    weighted: Floats = slopes * (student_weights(residuals / noise_sd) / np.square(noise_sd))[:, None, :]
    curvature = weighted @ slopes.swapaxes(-1, -2) + prior.precision
    uphill = weighted @ residuals[..., None] - prior.precision @ (here - prior.mean)[..., None]
    diagonal = np.arange(curvature.shape[-1])
    curvature[:, diagonal, diagonal] *= 1.0 + damping[:, None]
    step = np.asarray(np.linalg.solve(curvature, uphill)[..., 0], dtype=np.float64)
    longest = np.maximum(np.abs(step).max(axis=-1, keepdims=True), 1e-12)
    scaled: Floats = step * np.minimum(1.0, _LONGEST_STEP / longest)
    return scaled


def _objective(residuals: Floats, noise_sd: Floats, prior: GaussianPrior, here: Floats) -> Floats:
    """Return every fit's objective; infinite where the curve is not finite, so that such steps are rejected."""
    misfit = (STUDENT_DEGREES + 1.0) * np.log1p(np.square(residuals / noise_sd) / STUDENT_DEGREES).sum(axis=-1)
    off = here - prior.mean
    total = misfit + np.einsum("bi,bij,bj->b", off, prior.precision, off)
    objective: Floats = np.where(np.isfinite(total), total, np.inf)
    return objective
