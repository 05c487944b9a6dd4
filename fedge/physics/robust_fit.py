"""Levenberg-Marquardt fits of curves with Gaussian priors and Student-t noise, robust against outliers.

Symbols: B fits that advance together, p parameters (B, k), y data (B, n), v(p) curves (B, n) with derivatives J
(B, k, n), r = y - v, s noise scale (B, n), N(mu, precision^-1) the priors, nu degrees of freedom. Minimised by each
fit, which has its own damping and ends by itself: sum (nu + 1) log(1 + (r/s)^2 / nu) + (p - mu)' precision (p - mu).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.types import Floats

Curve = Callable[[Floats], tuple[Floats, Floats]]
"""Parameters (k,) -> values (n,) and derivatives (k, n)."""
MemberCurves = Callable[[Floats, NDArray[np.intp]], tuple[Floats, Floats]]
"""Parameters (r, k) of the r fits with the given indices -> values (r, n) and derivatives (r, k, n)."""

STUDENT_DEGREES = 4.0
SD_OF_MAD = 1.4826
"""Standard deviation of a normal distribution divided by its median absolute deviation."""
_LONGEST_STEP = 1.0
"""Largest change of a log-parameter in one iteration; larger steps leave the region where the linearisation holds."""
_STEPS = 80
_TRIES = 10
_NO_STEP = 1e-12
"""Change of a log-parameter that no longer matters: without rows, the prior's mean is the optimum already."""


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
    """Result of one fit, or of several with a leading axis.

    Attributes:
        parameters: Parameters at the optimum, shape (..., k).
        objective: The minimised objective, shape (...).
        residuals: Data minus curve, shape (..., n).
        slopes: Derivatives of the curve, shape (..., k, n).
        weights: Robust weight of each row, shape (..., n); small far from the curve.
    """

    parameters: Floats
    objective: Floats
    residuals: Floats
    slopes: Floats
    weights: Floats


def fit_curve(
    curve: Curve, data: Floats, noise_sd: Floats | float, prior: GaussianPrior, start: Floats, tolerance: float = 1e-7
) -> CurveFit:
    """Fit a curve's parameters by Levenberg-Marquardt steps.

    Args:
        curve: Values and derivatives at parameters.
        data: Data, shape (n,); without rows the fit converges to the prior's mean.
        noise_sd: Scale of the noise, scalar or shape (n,).
        prior: Prior over the parameters.
        start: Starting point, shape (k,).
        tolerance: Relative decrease of the objective at which a fit stops.
    """

    def curves(th: Floats, _: NDArray[np.intp]) -> tuple[Floats, Floats]:
        values, slopes = curve(th[0])
        return values[None], slopes[None]

    one = GaussianPrior(prior.mean[None], prior.precision[None])
    noise = np.broadcast_to(noise_sd, (1, len(data)))
    fitted = fit_curves(curves, data=data[None], noise_sd=noise, prior=one, start=start[None], tolerance=tolerance)
    return CurveFit(*(getattr(fitted, field.name)[0] for field in dataclasses.fields(CurveFit)))


def fit_curves(
    curves: MemberCurves, data: Floats, noise_sd: Floats, prior: GaussianPrior, start: Floats, tolerance: float
) -> CurveFit:
    """Fit B curves that advance together; each has its own damping and ends by itself, so none affects another.

    Args:
        curves: Values and derivatives of some of the fits.
        data: Data, shape (B, n).
        noise_sd: Scale of the noise, shape (B, n); rows with infinite noise do not count.
        prior: B priors over the parameters.
        start: Starting points, shape (B, k).
        tolerance: Relative decrease of the objective at which a fit stops.
    """
    running = np.arange(len(start))
    values, slopes = curves(start, running)
    fits = _RunningFits(
        start.copy(),
        values=values.copy(),
        slopes=slopes.copy(),
        best=_objective(data - values, noise_sd, prior, start),
        damping=np.full(len(start), 1e-2),
        steps=np.zeros(len(start), dtype=np.int64),
        tries=np.zeros(len(start), dtype=np.int64),
    )
    while len(running):
        some = GaussianPrior(prior.mean[running], prior.precision[running])
        noise, aim = noise_sd[running], data[running]
        step = _compute_step(
            aim - fits.values[running],
            slopes=fits.slopes[running],
            noise_sd=noise,
            prior=some,
            here=fits.here[running],
            damping=fits.damping[running],
        )
        there = fits.here[running] + step
        moved = curves(there, running)
        objective = _objective(aim - moved[0], noise, some, there)
        better = objective < fits.best[running]
        won = running[better]
        small = fits.best[won] - objective[better] < tolerance * (1.0 + np.abs(objective[better]))
        fits.accept(won, there[better], (moved[0][better], moved[1][better]), objective[better])
        fits.reject(running[~better])
        ended = (
            (fits.steps[running] >= _STEPS) | (fits.tries[running] >= _TRIES) | (np.abs(step).max(axis=-1) < _NO_STEP)
        )
        ended[better] |= small
        running = running[~ended]
    residuals = data - fits.values
    return CurveFit(
        fits.here, fits.best, residuals=residuals, slopes=fits.slopes, weights=student_weights(residuals / noise_sd)
    )


def differentiate(function: Callable[[Floats], Floats], at: Floats, step: float) -> tuple[Floats, Floats]:
    """Return a function's values, shape (n,), and its slopes by finite differences, shape (k, n): a ``Curve``."""
    here = function(at)
    return here, np.array([(function(at + step * axis) - here) / step for axis in np.eye(len(at))])


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
    total = misfit + (off * (prior.precision @ off[..., None])[..., 0]).sum(axis=-1)
    objective: Floats = np.where(np.isfinite(total), total, np.inf)
    return objective
