"""Fits the physical model: to a whole table, or to a few measurements starting from a prior.

Symbols: th log-parameters of time or of power, N(mu, S) their prior, v(x) the log curve, J(x) its slopes at the best
fit th*, R(x, x') covariance of what the curve cannot follow, s noise of one measurement, w its robust weight.
With few measurements X, y the prediction is the Gaussian one of the curve linearised at th*, plus R:

K = J' S J + R,  mean(x) = v(x) + J(x)' (mu - th*) + K(x, X) (K(X, X) + s^2 / w)^-1 (y - v(X) - J(X)' (mu - th*))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedge.physics import slopes
from fedge.physics.model import POWER_NAMES, TIME_NAMES, Coefficients, shares, time_parts
from fedge.physics.robust import Fitted, Gaussian, fit_curve
from fedge.types import Floats, Measurement, Modes, PowerMode, Predictions

MISFIT_TIME_SD = 0.04
"""How far the smooth model lies off a measured table, log units (95 % of rows: within 3-9 % time, 4-12 % power)."""
MISFIT_POWER_SD = 0.03
NOISE_SD = 0.012
"""Run-to-run noise of one measurement, log units (smoothness residuals of the tables: 0.4-1.2 %)."""
FEW_TOLERANCE = 1e-3
"""When the fit to a few measurements is done: its objective counts squared standard deviations, of which a thousandth
moves no prediction, while a board has no time to spare."""
THROTTLED_SD = 0.2
"""Noise of a measurement during which the board throttled: it hardly tells of the mode that was set."""
_CORRELATION_LENGTH = 0.5
"""Distance in log-knobs over which the misfit stays alike."""
_STARTS = 8
_ROWS_PER_START = 500
_WIDE_SD = 3.0

TIME_SD = {"gpu_mem_overlap": 0.6, "prep_core_exponent": 0.5, "stage_overlap": 0.8}
"""Prior spread of the time parameters between workloads, log units, where it is not ``TIME_TERM_SD``. The spreads were
chosen by us so that nine intervals in ten hold the truth when one board's workload is the prior of another."""
TIME_TERM_SD = 0.4
TIME_SCALE_SD = 0.4
POWER_SD = {
    "static_w": 0.25,
    "cpu_exponent": 0.4,
    "gpu_use_exponent": 0.5,
    "gpu_exponent": 0.2,
    "mem_exponent": 0.5,
}
"""Prior spread of the power parameters, log units, where it is not ``POWER_TERM_SD``."""
POWER_TERM_SD = 0.5
POWER_SCALE_SD = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """What is believed before measuring: coefficients, a spread per log-parameter (11,), (13,), and overall log-scales.

    A scale moves all seconds, or all watts, together.
    """

    coefficients: Coefficients
    time_sd: Floats
    power_sd: Floats
    time_scale_sd: float = TIME_SCALE_SD
    power_scale_sd: float = POWER_SCALE_SD


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """The linearised posterior of log time or log power; X are the measured modes.

    ``shift`` is mu - th*, ``prior_cov`` S, ``gain`` (K(X, X) + noise)^-1 (y - ...), ``chol`` the factor of that matrix
    and ``whitener`` the factor's inverse.
    """

    best: Floats
    shift: Floats
    prior_cov: Floats
    seen: Floats
    seen_slopes: Floats
    gain: Floats
    chol: Floats
    whitener: Floats
    misfit_sd: float


@dataclass(frozen=True, slots=True, eq=False)
class Posterior:
    """What is believed of one board and workload after measuring."""

    maxn: PowerMode
    time: Side
    power: Side

    @property
    def coefficients(self) -> Coefficients:
        """The most probable coefficients."""
        return Coefficients(self.time.best, self.power.best)


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """Measurements pooled by mode: shares (n, 4), log seconds, log watts and the noise of each (n,)."""

    x: Floats
    log_s: Floats
    log_w: Floats
    noise_sd: Floats


def fit_table(modes: Modes, maxn: PowerMode, step_s: Floats, power_w: Floats, seed: int = 0) -> Coefficients:
    """The coefficients that fit a whole table best, under Student-t noise; ``seed`` fixes the several starts."""
    rng = np.random.default_rng(seed)
    x = shares(maxn, modes)
    time = _fit_wide(slopes.log_time, x, np.log(step_s), _time_guess(float(step_s.min())), MISFIT_TIME_SD, rng)
    guess = _power_guess(float(power_w.max()))
    power = _fit_wide(_power_curve(time), x, np.log(power_w), guess, MISFIT_POWER_SD, rng)
    return Coefficients(time, power)


def prior_about(coefficients: Coefficients) -> Prior:
    """A prior about another workload's coefficients, as wide as workloads differ."""
    time_sd = np.array([TIME_SD.get(name, TIME_TERM_SD) for name in TIME_NAMES])
    power_sd = np.array([POWER_SD.get(name, POWER_TERM_SD) for name in POWER_NAMES])
    return Prior(coefficients, time_sd, power_sd)


def fit_map(prior: Prior, maxn: PowerMode, measurements: Sequence[Measurement]) -> Posterior:
    """The posterior after any number of measurements, also none; pools repeats of a mode, weights outliers down."""
    return fit_pooled(prior, maxn, pooled(measurements, maxn))


def fit_pooled(prior: Prior, maxn: PowerMode, seen: Seen) -> Posterior:
    """``fit_map`` of measurements that ``pooled`` has put together, for several priors over the same ones."""
    time_cov = _covariance(prior.time_sd, prior.time_scale_sd, TIME_NAMES, "_s")
    time = _side(slopes.log_time, seen.log_s, seen, prior.coefficients.time, time_cov, MISFIT_TIME_SD)
    power_cov = _covariance(prior.power_sd, prior.power_scale_sd, POWER_NAMES, "_w")
    curve_at = _power_curve(time.best)
    power = _side(curve_at, seen.log_w, seen, prior.coefficients.power, power_cov, MISFIT_POWER_SD)
    return Posterior(maxn, time, power)


def predict(posterior: Posterior, modes: Modes) -> Predictions:
    """Step time and power of every mode, with the spread of what a next measurement there will read."""
    return predict_each([posterior], modes)[0]


def predict_each(posteriors: Sequence[Posterior], modes: Modes) -> list[Predictions]:
    """``predict`` for posteriors of one board and the same measurements, whose common parts are computed once."""
    x = shares(posteriors[0].maxn, modes)
    alike = _alike(x, posteriors[0].time.seen)
    return [_predict_one(posterior, modes, x, alike) for posterior in posteriors]


def _predict_one(posterior: Posterior, modes: Modes, x: Floats, alike: Floats) -> Predictions:
    log_s, time_sd = _predict_side(posterior.time, slopes.log_time, x, alike)
    log_w, power_sd = _predict_side(posterior.power, _power_curve(posterior.time.best), x, alike)
    return Predictions(modes, np.exp(log_s), np.exp(log_w), time_sd, power_sd)


_Slopes = Callable[[Floats, Floats], tuple[Floats, Floats]]


def _power_curve(time: Floats) -> _Slopes:
    return lambda th, x: slopes.log_power(th, time_parts(time, x), x)


def _fit_wide(
    curve_at: _Slopes, x: Floats, data: Floats, guess: Floats, noise_sd: float, rng: np.random.Generator
) -> Floats:
    """The best of several starts on some rows, then polished on all."""
    prior = Gaussian(guess, np.eye(len(guess)) / _WIDE_SD**2)
    some = rng.permutation(len(x))[:_ROWS_PER_START]
    starts = [guess, *(guess + 0.7 * rng.standard_normal((_STARTS - 1, len(guess))))]
    tries = [fit_curve(lambda th: curve_at(th, x[some]), data[some], noise_sd, prior, start) for start in starts]
    best: Fitted = min(tries, key=lambda fitted: fitted.objective)
    return fit_curve(lambda th: curve_at(th, x), data, noise_sd / 2, prior, best.parameters).parameters


def _time_guess(t: float) -> Floats:
    """A neutral start for a fastest step of ``t`` seconds: half is GPU arithmetic, the rest the other parts."""
    guess = {
        "gpu_s": 0.5 * t,
        "mem_s": 0.2 * t,
        "gpu_mem_overlap": 2.0,
        "prep_s": 0.15 * t,
        "prep_core_exponent": 0.7,
        "prep_mem_share": 0.3,
        "prep_crowding": 0.1,
        "launch_s": 0.1 * t,
        "stage_overlap": 2.0,
        "host_s": 0.1 * t,
        "fixed_s": 0.02 * t,
    }
    return np.log(np.array([guess[name] for name in TIME_NAMES], dtype=np.float64))


def _power_guess(p: float) -> Floats:
    """A neutral start for a largest power of ``p`` watts."""
    guess = {
        "static_w": 0.2 * p,
        "cores_idle_w": 0.05 * p,
        "cores_busy_w": 0.1 * p,
        "host_busy_w": 0.1 * p,
        "cpu_exponent": 0.8,
        "gpu_idle_w": 0.1 * p,
        "gpu_busy_w": 0.2 * p,
        "gpu_math_w": 0.1 * p,
        "gpu_use_exponent": 1.0,
        "gpu_exponent": 0.8,
        "mem_idle_w": 0.05 * p,
        "mem_busy_w": 0.1 * p,
        "mem_exponent": 0.5,
    }
    return np.log(np.array([guess[name] for name in POWER_NAMES], dtype=np.float64))


def pooled(measurements: Sequence[Measurement], maxn: PowerMode) -> Seen:
    """One row per mode: the median over its repeats, with their noise averaged down."""
    groups: dict[PowerMode, list[Measurement]] = {}
    for measurement in measurements:
        groups.setdefault(measurement.mode, []).append(measurement)
    knobs = np.array([[m.cores, m.cpu_mhz, m.gpu_mhz, m.mem_mhz] for m in groups], dtype=np.float64).reshape(-1, 4)
    kept = [[m for m in group if not m.throttled] or group for group in groups.values()]
    return Seen(
        shares(maxn, Modes(knobs)),
        np.array([np.median([np.log(m.step_s) for m in group]) for group in kept], dtype=np.float64),
        np.array([np.median([np.log(m.power_w) for m in group]) for group in kept], dtype=np.float64),
        np.array([(THROTTLED_SD if g[0].throttled else NOISE_SD) / np.sqrt(len(g)) for g in kept], dtype=np.float64),
    )


def _covariance(sd: Floats, scale_sd: float, names: Sequence[str], unit: str) -> Floats:
    """Prior covariance: each parameter's own spread, and the scale that all parameters of ``unit`` share."""
    scaled = np.array([name.endswith(unit) for name in names], dtype=np.float64)
    covariance: Floats = np.diag(sd**2) + scale_sd**2 * np.outer(scaled, scaled)
    return covariance


def _side(curve_at: _Slopes, data: Floats, seen: Seen, mean: Floats, covariance: Floats, misfit_sd: float) -> Side:
    def curve(th: Floats) -> tuple[Floats, Floats]:
        return curve_at(th, seen.x)

    noise_sd: Floats = np.hypot(seen.noise_sd, misfit_sd)
    precision = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
    fitted = fit_curve(curve, data, noise_sd, Gaussian(mean, precision), mean, FEW_TOLERANCE)
    _, at_seen = curve(fitted.parameters)
    shift = mean - fitted.parameters
    noise = noise_sd**2 / np.minimum(fitted.weights, 1.0) - misfit_sd**2
    kernel = at_seen.T @ covariance @ at_seen + misfit_sd**2 * _alike(seen.x, seen.x) + np.diag(noise)
    chol = np.asarray(np.linalg.cholesky(kernel), dtype=np.float64)
    gain = np.asarray(np.linalg.solve(kernel, fitted.residuals - at_seen.T @ shift), dtype=np.float64)
    whitener = np.asarray(np.linalg.inv(chol), dtype=np.float64)
    return Side(fitted.parameters, shift, covariance, seen.x, at_seen, gain, chol, whitener, misfit_sd)


def _predict_side(side: Side, curve_at: _Slopes, x: Floats, alike: Floats) -> tuple[Floats, Floats]:
    values, at = curve_at(side.best, x)
    spread = side.prior_cov @ at
    across = spread.T @ side.seen_slopes + side.misfit_sd**2 * alike
    known = across @ side.whitener.T
    variance = np.einsum("kn,kn->n", at, spread) + side.misfit_sd**2 - np.einsum("nm,nm->n", known, known)
    mean: Floats = values + at.T @ side.shift + across @ side.gain
    return mean, np.sqrt(np.maximum(variance, 0.0) + NOISE_SD**2)


def _alike(x: Floats, seen: Floats) -> Floats:
    """How alike the misfits of two modes are: Matern-5/2 correlation in log-knobs, shape (n, m)."""
    a, b = np.log(x) / _CORRELATION_LENGTH, np.log(seen) / _CORRELATION_LENGTH
    squared = np.square(a).sum(axis=1)[:, None] + np.square(b).sum(axis=1) - (2.0 * a) @ b.T
    d = np.sqrt(np.maximum(5.0 * squared, 0.0, out=squared), out=squared)
    correlation: Floats = (d * d / 3.0 + d + 1.0) * np.exp(-d)
    return correlation


def log_evidence(posterior: Posterior) -> float:
    """Natural logarithm of the measurements' probability density under the prior, up to a constant shared by priors."""
    return sum(_log_density(side) for side in (posterior.time, posterior.power))


def _log_density(side: Side) -> float:
    whitened = side.chol.T @ side.gain
    return float(-0.5 * whitened @ whitened - np.log(np.diag(side.chol)).sum())


def idle_w_at_maxn(coefficients: Coefficients) -> float:
    """Modelled watts at zero use with every knob at its top."""
    return float(np.exp(coefficients.power[_IDLE_ROWS]).sum())


def with_idle_w(coefficients: Coefficients, idle_w: float) -> Coefficients:
    """The coefficients with the static watts raised or lowered until ``idle_w_at_maxn`` gives ``idle_w``."""
    power = coefficients.power.copy()
    static_w = float(np.exp(power[0])) + idle_w - idle_w_at_maxn(coefficients)
    power[0] = np.log(max(static_w, 0.05 * idle_w))
    return Coefficients(coefficients.time, power)


_IDLE_ROWS = [POWER_NAMES.index(name) for name in ("static_w", "cores_idle_w", "gpu_idle_w", "mem_idle_w")]
