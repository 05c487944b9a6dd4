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
    every = np.arange(len(start))
    values, slopes = curves(start, every)
    begun = _RunningFits(
        every,
        data=data,
        noise_sd=noise_sd,
        mean=prior.mean,
        precision=prior.precision,
        here=start,
        values=values,
        slopes=slopes,
        best=_objective(data - values, noise_sd, prior, start),
        damping=np.full(len(start), 1e-2),
        steps=np.zeros(len(start), dtype=np.int64),
        tries=np.zeros(len(start), dtype=np.int64),
    )
    ended, running = [begun.select(every[:0])], begun.select(every)
    while len(running.place):
        done = running.advance(curves, tolerance)
        if done.any():
            ended.append(running.select(done))
            running = running.select(~done)
    order = np.argsort(np.concatenate([fits.place for fits in ended]))
    names = ("here", "best", "values", "slopes")
    here, best, values, slopes = (np.concatenate([getattr(fits, name) for fits in ended])[order] for name in names)
    residuals = data - values
    weights = student_weights(residuals / noise_sd)
    return CurveFit(here, best, residuals=residuals, slopes=slopes, weights=weights)


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
    """Fits that still run: what they fit, their state at the best point so far, and the damping.

    Attributes:
        place: Index of each fit among all that began.
        equations: ``_build_equations`` at the best points; None if a point has moved since. After steps that were all
            rejected only the damping differs.
    """

    place: NDArray[np.intp]
    data: Floats
    noise_sd: Floats
    mean: Floats
    precision: Floats
    here: Floats
    values: Floats
    slopes: Floats
    best: Floats
    damping: Floats
    steps: NDArray[np.int64]
    tries: NDArray[np.int64]
    equations: tuple[Floats, Floats] | None = None

    def select(self, fits: NDArray[np.intp] | NDArray[np.bool_]) -> _RunningFits:
        """Return some of the fits."""
        return _RunningFits(*(getattr(self, field.name)[fits] for field in dataclasses.fields(self)[:-1]))

    def advance(self, curves: MemberCurves, tolerance: float) -> NDArray[np.bool_]:
        """Try a step of every fit, move those that it makes better, and mask those that have ended."""
        prior = GaussianPrior(self.mean, self.precision)
        if self.equations is None:
            self.equations = _build_equations(
                self.data - self.values, slopes=self.slopes, noise_sd=self.noise_sd, prior=prior, here=self.here
            )
        step = _compute_step(self.equations, self.damping)
        there = self.here + step
        values, slopes = curves(there, self.place)
        objective = _objective(self.data - values, self.noise_sd, prior, there)
        better = objective < self.best
        with np.errstate(invalid="ignore"):
            small = better & (self.best - objective < tolerance * (1.0 + np.abs(objective)))
        if better.any():
            self._move(better, there, values=values, slopes=slopes, objective=objective)
        self.damping = np.where(better, np.maximum(self.damping / 5.0, 1e-8), self.damping * 5.0)
        self.steps = self.steps + better
        self.tries = np.where(better, 0, self.tries + 1)
        ended: NDArray[np.bool_] = small | (self.steps >= _STEPS) | (self.tries >= _TRIES)
        ended |= np.abs(step).max(axis=-1) < _NO_STEP
        return ended

    def _move(
        self, better: NDArray[np.bool_], there: Floats, *, values: Floats, slopes: Floats, objective: Floats
    ) -> None:
        """Move the fits of a mask to better points."""
        self.here = np.where(better[:, None], there, self.here)
        self.values = np.where(better[:, None], values, self.values)
        # Contiguous, as a product of arrays in another order is summed in another one.
        self.slopes = np.ascontiguousarray(np.where(better[:, None, None], slopes, self.slopes))
        self.best = np.where(better, objective, self.best)
        self.equations = None


def _build_equations(
    residuals: Floats, slopes: Floats, noise_sd: Floats, prior: GaussianPrior, here: Floats
) -> tuple[Floats, Floats]:
    """Return the curvature, shape (B, k, k), and the downhill direction, shape (B, k, 1), of every fit's objective."""
    weighted: Floats = slopes * (student_weights(residuals / noise_sd) / np.square(noise_sd))[:, None, :]
    curvature = weighted @ slopes.swapaxes(-1, -2) + prior.precision
    return curvature, weighted @ residuals[..., None] - prior.precision @ (here - prior.mean)[..., None]


def _compute_step(equations: tuple[Floats, Floats], damping: Floats) -> Floats:
    """Return the damped Gauss-Newton step of every fit, shape (B, k)."""
    curvature, downhill = equations[0].copy(), equations[1]
    diagonal = np.arange(curvature.shape[-1])
    curvature[:, diagonal, diagonal] *= 1.0 + damping[:, None]
    step = np.asarray(np.linalg.solve(curvature, downhill)[..., 0], dtype=np.float64)
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
