"""Levenberg-Marquardt fit of a curve with a Gaussian prior and Student-t noise, robust against outliers.

Symbols: p parameters, y data (n,), v(p) curve with derivatives J (k, n), r = y - v, s noise scale (n,), N(mu,
precision^-1) the prior, nu degrees of freedom. Minimised: sum (nu + 1) log(1 + (r/s)^2 / nu) + (p - mu)' precision (p -
mu).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedge.types import Floats

Curve = Callable[[Floats], tuple[Floats, Floats]]
"""Parameters (k,) -> values (n,) and derivatives (k, n)."""

STUDENT_DEGREES = 4.0
SD_OF_MAD = 1.4826
"""Standard deviation of a normal distribution divided by its median absolute deviation."""
_LONGEST_STEP = 1.0
"""Largest change of a log-parameter in one iteration; larger steps leave the region where the linearisation holds."""
_STEPS = 80
_TRIES = 10


@dataclass(frozen=True, slots=True, eq=False)
class GaussianPrior:
    """A Gaussian prior over parameters.

    Attributes:
        mean: Mean, shape (k,).
        precision: Inverse covariance, shape (k, k).
    """

    mean: Floats
    precision: Floats


@dataclass(frozen=True, slots=True, eq=False)
class CurveFit:
    """Result of a fit.

    Attributes:
        parameters: Parameters at the optimum, shape (k,).
        objective: The minimised objective.
        residuals: Data minus curve, shape (n,).
        weights: Robust weight of each row, shape (n,); small far from the curve.
    """

    parameters: Floats
    objective: float
    residuals: Floats
    weights: Floats


def fit_curve(
    curve: Curve, data: Floats, noise_sd: Floats | float, prior: GaussianPrior, start: Floats, tolerance: float = 1e-7
) -> CurveFit:
    """Fit a curve's parameters by Levenberg-Marquardt steps.

    Args:
        curve: Values (n,) and derivatives (k, n) at parameters (k,).
        data: Data, shape (n,); without rows the fit converges to the prior's mean.
        noise_sd: Scale of the noise, scalar or shape (n,).
        prior: Prior over the parameters.
        start: Starting point, shape (k,).
        tolerance: Relative decrease of the objective at which the fit stops.
    """
    here = start
    values, slopes = curve(here)
    best = _objective(data - values, noise_sd, prior, here)
    damping = 1e-2
    for _ in range(_STEPS):
        moved = None
        for _ in range(_TRIES):
            there = here + _compute_step(
                data - values, slopes=slopes, noise_sd=noise_sd, prior=prior, here=here, damping=damping
            )
            moved = curve(there)
            objective = _objective(data - moved[0], noise_sd, prior, there)
            if objective < best:
                break
            damping, moved = damping * 5.0, None
        if moved is None:
            break
        gain, best = best - objective, objective
        here, (values, slopes) = there, moved
        damping = max(damping / 5.0, 1e-8)
        if gain < tolerance * (1.0 + abs(best)):
            break
    residuals = data - values
    return CurveFit(here, best, residuals, student_weights(residuals / noise_sd))


def student_weights(z: Floats) -> Floats:
    """Return the weights of standardised residuals under Student-t noise, of the same shape as ``z``."""
    weights: Floats = (STUDENT_DEGREES + 1.0) / (STUDENT_DEGREES + z * z)
    return weights


def robust_sd(deviations: Floats) -> float:
    """Return the standard deviation of normal deviations by their median size, which outliers do not move."""
    return SD_OF_MAD * float(np.median(np.abs(deviations)))


def _compute_step(
    residuals: Floats, slopes: Floats, noise_sd: Floats | float, prior: GaussianPrior, here: Floats, damping: float
) -> Floats:
    weighted: Floats = slopes * (student_weights(residuals / noise_sd) / np.square(noise_sd))
    curvature = weighted @ slopes.T + prior.precision
    uphill = weighted @ residuals - prior.precision @ (here - prior.mean)
    step = np.asarray(np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), uphill), dtype=np.float64)
    shrink = min(1.0, _LONGEST_STEP / max(float(np.abs(step).max()), 1e-12))
    scaled: Floats = step * shrink
    return scaled


def _objective(residuals: Floats, noise_sd: Floats | float, prior: GaussianPrior, here: Floats) -> float:
    """Return the objective; infinite where the curve is not finite, so that such steps are rejected."""
    misfit = (STUDENT_DEGREES + 1.0) * np.log1p(np.square(residuals / noise_sd) / STUDENT_DEGREES).sum()
    off = here - prior.mean
    total = float(misfit + off @ prior.precision @ off)
    return total if np.isfinite(total) else float("inf")
