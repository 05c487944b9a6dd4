"""Fits the physical model: to a whole table, or to a few measurements starting from a prior (see ``process``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedge.errors import BadInput
from fedge.physics import log_derivatives
from fedge.physics.call_cache import cache_last_call
from fedge.physics.misfit_process import (
    Float32Array,
    KnobCurve,
    QuantityPosterior,
    QuantityRows,
    fit_quantity,
    misfit_correlation,
    predict_mean_log,
    predict_sd_log,
)
from fedge.physics.robust_fit import CurveFit, GaussianPrior, fit_curve
from fedge.physics.time_power_model import POWER_NAMES, TIME_NAMES, Coefficients, compute_time_parts, knob_shares
from fedge.types import Floats, Measurement, Modes, PowerMode, Predictions

MISFIT_TIME_SD = 0.04
"""How far the smooth model lies off a measured table, log units (95 % of rows: within 3-9 % time, 4-12 % power)."""
MISFIT_POWER_SD = 0.035
NOISE_TIME_SD = 0.012
"""Run-to-run noise of one measurement, log units (residuals of the tables about a smooth misfit: 0.1-2.6 %)."""
NOISE_POWER_SD = 0.018
OFFSET_TIME_SD = 0.05
"""How far boards of one kind lie apart in all modes alike, log units (1 to 8 % in POMACS 6(3) art. 44)."""
OFFSET_POWER_SD = 0.05
KIND_CORRELATION = 0.5
"""How alike the misfits of two boards of a kind are in one mode: half is the kind's, half the board's own; chosen by
us."""
THROTTLED_SD = 0.2
"""Noise of a measurement during which the board throttled: it hardly tells of the mode that was set."""
_STARTS = 8
_ROWS_PER_START = 500
_WIDE_SD = 3.0

TIME_SD = {"gpu_mem_overlap": 0.6, "prep_core_exponent": 0.5, "stage_overlap": 0.8}
"""Prior spread of the time parameters between workloads, log units, where it is not ``TIME_TERM_SD``. The spreads were
chosen by us so that nine intervals in ten hold the truth when one board's workload is the prior of another."""
TIME_TERM_SD = 0.5
TIME_SCALE_SD = 0.4
POWER_SD = {
    "static_w": 0.25,
    "cpu_exponent": 0.4,
    "gpu_use_exponent": 0.5,
    "gpu_exponent": 0.2,
    "mem_exponent": 0.5,
}
"""Prior spread of the power parameters, log units, where it is not ``POWER_TERM_SD``."""
POWER_TERM_SD = 0.7
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
class Posterior:
    """What is believed of one board and workload after measuring."""

    maxn: PowerMode
    time: QuantityPosterior
    power: QuantityPosterior

    @property
    def coefficients(self) -> Coefficients:
        """The most probable coefficients."""
        return Coefficients(self.time.best, self.power.best)


@dataclass(frozen=True, slots=True, eq=False)
class PooledMeasurements:
    """Measurements pooled by board and mode: log seconds, log watts, and the likeness of the rows' misfits (n, n)."""

    time: QuantityRows
    power: QuantityRows
    correlation: Float32Array


def fit_table(modes: Modes, maxn: PowerMode, step_s: Floats, power_w: Floats, seed: int = 0) -> Coefficients:
    """The coefficients that fit a whole table best, under Student-t noise; ``seed`` fixes the several starts."""
    rng = np.random.default_rng(seed)
    x = knob_shares(maxn, modes)
    time = _fit_wide(
        log_derivatives.evaluate_log_time,
        x=x,
        data=np.log(step_s),
        guess=guess_time_parameters(float(step_s.min())),
        noise_sd=MISFIT_TIME_SD,
        rng=rng,
    )
    guess = guess_power_parameters(float(power_w.max()))
    power = _fit_wide(make_power_curve(time), x=x, data=np.log(power_w), guess=guess, noise_sd=MISFIT_POWER_SD, rng=rng)
    return Coefficients(time, power)


def build_prior(coefficients: Coefficients) -> Prior:
    """A prior about another workload's coefficients, as wide as workloads differ."""
    time_sd = np.array([TIME_SD.get(name, TIME_TERM_SD) for name in TIME_NAMES])
    power_sd = np.array([POWER_SD.get(name, POWER_TERM_SD) for name in POWER_NAMES])
    return Prior(coefficients, time_sd, power_sd)


def fit_measurements(prior: Prior, maxn: PowerMode, measurements: Sequence[Measurement]) -> Posterior:
    """The posterior after any number of measurements, also none; pools repeats of a mode, weights outliers down."""
    return fit_pooled(prior, maxn, pool_measurements(measurements, maxn))


def fit_pooled(prior: Prior, maxn: PowerMode, seen: PooledMeasurements) -> Posterior:
    """``fit_measurements`` of measurements that ``pool_measurements`` has put together, for several priors over the
    same ones.
    """
    time_prior, power_prior = build_time_prior(prior), build_power_prior(prior)
    time = fit_quantity(
        log_derivatives.evaluate_log_time,
        rows=seen.time,
        prior=time_prior,
        misfit_sd=MISFIT_TIME_SD,
        noise_sd=NOISE_TIME_SD,
        alike=seen.correlation,
    )
    curve = make_power_curve(time.best)
    power = fit_quantity(
        curve,
        rows=seen.power,
        prior=power_prior,
        misfit_sd=MISFIT_POWER_SD,
        noise_sd=NOISE_POWER_SD,
        alike=seen.correlation,
    )
    return Posterior(maxn, time, power)


def build_time_prior(prior: Prior) -> GaussianPrior:
    """The prior of the time parameters."""
    covariance = _covariance(prior.time_sd, prior.time_scale_sd, TIME_NAMES, "_s")
    return GaussianPrior(prior.coefficients.time, np.asarray(np.linalg.inv(covariance), dtype=np.float64))


def build_power_prior(prior: Prior) -> GaussianPrior:
    """The prior of the power parameters."""
    covariance = _covariance(prior.power_sd, prior.power_scale_sd, POWER_NAMES, "_w")
    return GaussianPrior(prior.coefficients.power, np.asarray(np.linalg.inv(covariance), dtype=np.float64))


def predict(posterior: Posterior, modes: Modes) -> Predictions:
    """Step time and power of every mode, with the spread of what a next measurement there will read."""
    return predict_many([posterior], modes)[0]


def predict_many(posteriors: Sequence[Posterior], modes: Modes) -> list[Predictions]:
    """``predict`` for posteriors of one board and the same measurements, whose common parts are computed once."""
    x = knob_shares(posteriors[0].maxn, modes)
    alike = correlate_with_rows(posteriors[0].time.rows, x)
    return [_predict_one(posterior, modes, x, alike) for posterior in posteriors]


def _predict_one(posterior: Posterior, modes: Modes, x: Floats, alike: Float32Array) -> Predictions:
    time, power = posterior.time, posterior.power
    seconds, by_time = log_derivatives.evaluate_log_time(time.best, x)
    watts, by_power = make_power_curve(time.best)(power.best, x)
    return Predictions(
        modes,
        step_s=np.exp(predict_mean_log(time, seconds, by_time, alike)),
        power_w=np.exp(predict_mean_log(power, watts, by_power, alike)),
        step_s_sd_log=predict_sd_log(time, by_time, alike),
        power_w_sd_log=predict_sd_log(power, by_power, alike),
    )


def make_power_curve(time: Floats) -> KnobCurve:
    """The curve of log power, given the time parameters (11,) that say how busy each part is."""
    parts = cache_last_call(lambda x: compute_time_parts(time, x))
    return lambda th, x: log_derivatives.evaluate_log_power(th, parts(x), x)


def _fit_wide(
    curve_at: KnobCurve, x: Floats, data: Floats, guess: Floats, noise_sd: float, rng: np.random.Generator
) -> Floats:
    """The best of several starts on some rows, then polished on all."""
    prior = GaussianPrior(guess, np.eye(len(guess)) / _WIDE_SD**2)
    some = rng.permutation(len(x))[:_ROWS_PER_START]
    starts = [guess, *(guess + 0.7 * rng.standard_normal((_STARTS - 1, len(guess))))]
    tries = [
        fit_curve(lambda th: curve_at(th, x[some]), data=data[some], noise_sd=noise_sd, prior=prior, start=start)
        for start in starts
    ]
    best: CurveFit = min(tries, key=lambda fitted: fitted.objective)
    return fit_curve(
        lambda th: curve_at(th, x), data=data, noise_sd=noise_sd / 2, prior=prior, start=best.parameters
    ).parameters


def guess_time_parameters(t: float) -> Floats:
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


def guess_power_parameters(p: float) -> Floats:
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


def pool_measurements(measurements: Sequence[Measurement], maxn: PowerMode) -> PooledMeasurements:
    """One row per board and mode: the median over its repeats, with their noise averaged down.

    Raises ``BadInput`` for a measurement whose time or power is not a number above 0.
    """
    for measurement in measurements:
        if not (0.0 < measurement.step_s < np.inf and 0.0 < measurement.power_w < np.inf):
            got = f"{measurement.step_s:g} s per step and {measurement.power_w:g} W"
            raise BadInput(f"the measurement of {measurement.mode}", got, "two numbers above 0")
    groups: dict[tuple[str | None, PowerMode], list[Measurement]] = {}
    for measurement in measurements:
        groups.setdefault((measurement.board, measurement.mode), []).append(measurement)
    knobs = np.array([[m.cores, m.cpu_mhz, m.gpu_mhz, m.mem_mhz] for _, m in groups], dtype=np.float64).reshape(-1, 4)
    x = knob_shares(maxn, Modes(knobs))
    kept = [[m for m in group if not m.throttled] or group for group in groups.values()]
    boards = [board for board, _ in groups]

    same = np.array([[a == b for b in boards] for a in boards], dtype=np.float64).reshape(len(boards), len(boards))
    here = np.array([board is None for board in boards], dtype=np.float64)

    def rows(logs: list[float], noise_sd: float, offset_sd: float) -> QuantityRows:
        noise = [(THROTTLED_SD if group[0].throttled else noise_sd) / np.sqrt(len(group)) for group in kept]
        apart = offset_sd if any(board is not None for board in boards) else 0.0
        return QuantityRows(
            x,
            log=np.array(logs),
            noise_sd=np.array(noise),
            offset=apart**2 * same,
            offset_here=apart**2 * here,
            offset_sd=apart,
            here=here,
        )

    seconds = [float(np.median([np.log(m.step_s) for m in group])) for group in kept]
    watts = [float(np.median([np.log(m.power_w) for m in group])) for group in kept]
    return PooledMeasurements(
        rows(seconds, NOISE_TIME_SD, OFFSET_TIME_SD),
        rows(watts, NOISE_POWER_SD, OFFSET_POWER_SD),
        misfit_correlation(x, x) * _kind_correlation(same),
    )


def correlate_with_rows(rows: QuantityRows, x: Floats) -> Float32Array:
    """The likeness (n, m) of this board's misfit at shares ``x`` (n, 4) to that of the rows, some of other boards."""
    alike = misfit_correlation(x, rows.x)
    if rows.offset_sd:
        alike *= _kind_correlation(rows.here)
    return alike


def _kind_correlation(same: Floats) -> Float32Array:
    """1 where two rows are of the same board, ``KIND_CORRELATION`` where they are not."""
    return (KIND_CORRELATION + (1.0 - KIND_CORRELATION) * same).astype(np.float32)


def _covariance(sd: Floats, scale_sd: float, names: Sequence[str], unit: str) -> Floats:
    """Prior covariance: each parameter's own spread, and the scale that all parameters of ``unit`` share."""
    scaled = np.array([name.endswith(unit) for name in names], dtype=np.float64)
    covariance: Floats = np.diag(sd**2) + scale_sd**2 * np.outer(scaled, scaled)
    return covariance


def log_evidence(posterior: Posterior) -> float:
    """Natural logarithm of the measurements' probability density under the prior, up to a constant shared by priors."""
    return posterior.time.log_evidence + posterior.power.log_evidence


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
