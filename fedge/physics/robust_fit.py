"""Levenberg-Marquardt for a curve with a Gaussian prior and Student-t noise, so that few bad rows cannot bend the fit.

Symbols: p parameters, y data (n,), v(p) curve with slopes J (k, n), r = y - v, s noise scale (n,), N(mu, precision^-1)
the prior, nu degrees of freedom. Minimised: sum (nu + 1) log(1 + (r/s)^2 / nu) + (p - mu)' precision (p - mu).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedge.types import Floats

Curve = Callable[[Floats], tuple[Floats, Floats]]
"""Parameters (k,) -> values (n,) and slopes (k, n)."""

STUDENT_DEGREES = 4.0
_LONGEST_STEP = 1.0
"""No log-parameter moves further in one step; far steps leave the region where the slopes mean anything."""
_STEPS = 80
_TRIES = 10


@dataclass(frozen=True, slots=True, eq=False)
class GaussianPrior:
    """A prior over parameters: mean (k,) and precision (k, k)."""

    mean: Floats
    precision: Floats


@dataclass(frozen=True, slots=True, eq=False)
class CurveFit:
    """Parameters at the optimum, the objective there, residuals, and each row's weight (small far off the curve)."""

    parameters: Floats
    objective: float
    residuals: Floats
    weights: Floats


def fit_curve(
    curve: Curve, data: Floats, noise_sd: Floats | float, prior: GaussianPrior, start: Floats, tolerance: float = 1e-7
) -> CurveFit:
    """The best parameters from ``start``; any number of rows, also none (then the prior's mean is the answer).

    Ends when a step lowers the objective by less than ``tolerance`` of it.
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
    """The weight of standardised residuals ``z`` under Student-t noise."""
    weights: Floats = (STUDENT_DEGREES + 1.0) / (STUDENT_DEGREES + z * z)
    return weights


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
    """Infinite where the curve is not a number, so that a step there is refused."""
    misfit = (STUDENT_DEGREES + 1.0) * np.log1p(np.square(residuals / noise_sd) / STUDENT_DEGREES).sum()
    off = here - prior.mean
    total = float(misfit + off @ prior.precision @ off)
    return total if np.isfinite(total) else float("inf")
