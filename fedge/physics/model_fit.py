"""Fits of the physical model: to a whole table, or to a few measurements with a prior (see ``misfit_process``)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedge.call_cache import cache_last_call
from fedge.errors import BadInput
from fedge.groups import group_by
from fedge.physics import log_derivatives
from fedge.physics.matern import Float32Array
from fedge.physics.misfit_process import (
    KnobCurve,
    QuantityPosterior,
    QuantityRows,
    fit_quantity,
    fix_shares,
    misfit_correlation,
    predict_mean_log,
    predict_sd_log,
)
from fedge.physics.robust_fit import CurveFit, GaussianPrior, fit_curve
from fedge.physics.time_power_model import (
    POWER_NAMES,
    TIME_NAMES,
    Coefficients,
    KnobTable,
    StepParts,
    compute_time_parts,
    knob_shares,
)
from fedge.types import Floats, Measurement, Modes, PowerMode, Predictions

MISFIT_TIME_SD = 0.04
"""Misfit of the smooth model to a measured table, log units (95 % of rows: within 3-9 % for time, 4-12 % for power)."""
MISFIT_POWER_SD = 0.035
NOISE_TIME_SD = 0.012
"""Run-to-run noise of one measurement, log units (residuals of the tables about a smooth misfit: 0.1-2.6 %)."""
NOISE_POWER_SD = 0.018
OFFSET_TIME_SD = 0.05
"""Spread between boards of one kind that is common to all modes, log units (1 to 8 % in POMACS 6(3) art. 44)."""
OFFSET_POWER_SD = 0.05
KIND_CORRELATION = 0.5
"""Correlation of the misfits of two boards of a kind in one mode: half is the kind's, half the board's own. Default; a
larger value transfers more from other boards and is more wrong for an unusual one."""
THROTTLED_SD = 0.2
"""Noise of a measurement during which the board throttled, log units: it says little about the mode that was set."""
UNSURE_SE_LOG = 0.05
"""Standard error from which a measurement's own scatter counts as its noise, log units: a single step, of which the
noise above is expected to hold, scatters by 0.03. Default; also the least error of a profile's row that did not settle.
"""
_STARTS = 8
_ROWS_PER_START = 500
_WIDE_SD = 3.0

TIME_SD = {"gpu_mem_overlap": 0.6, "prep_core_exponent": 0.5, "stage_overlap": 0.8}
"""Prior spread of the time parameters between workloads, log units, where it differs from ``TIME_TERM_SD``. Set so that
90 % intervals cover 90 % of the values when one workload of a board is the prior of another."""
TIME_TERM_SD = 0.5
TIME_SCALE_SD = 0.4
POWER_SD = {
    "static_w": 0.25,
    "cpu_exponent": 0.4,
    "gpu_use_exponent": 0.5,
    "gpu_exponent": 0.2,
    "mem_exponent": 0.5,
}
"""Prior spread of the power parameters, log units, where it differs from ``POWER_TERM_SD``."""
POWER_TERM_SD = 0.7
POWER_SCALE_SD = 0.1
FEED_SHARE, FEED_SD = 1.0, 1.0
"""Time to load the next batch of inference at the top mode, as a share of the batch's own, and its spread in log units.
Default: the order of magnitude. On the worst three pairs of ``fedge study transfer --part serving``, with this model as
the only candidate, the strategy loses 3.1 % of the steps with half of it and 2.3 % with it, without this term 5.3 %."""


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """Prior over the coefficients, with common scales that change all times, or all powers, together.

    Attributes:
        coefficients: Prior means (log-parameters).
        time_sd: Spread of each log time parameter, shape (11,).
        power_sd: Spread of each log power parameter, shape (13,).
        time_scale_sd: Spread of the common log scale of times.
        power_scale_sd: Spread of the common log scale of powers.
    """

    coefficients: Coefficients
    time_sd: Floats
    power_sd: Floats
    time_scale_sd: float = TIME_SCALE_SD
    power_scale_sd: float = POWER_SCALE_SD


@dataclass(frozen=True, slots=True, eq=False)
class Posterior:
    """Posterior of one board and workload.

    Attributes:
        maxn: The board's top mode, to which shares refer.
        time: Posterior of log time.
        power: Posterior of log power.
    """

    maxn: PowerMode
    time: QuantityPosterior
    power: QuantityPosterior

    @property
    def coefficients(self) -> Coefficients:
        """Return the most probable coefficients."""
        return Coefficients(self.time.best, self.power.best)


@dataclass(frozen=True, slots=True, eq=False)
class PooledMeasurements:
    """Measurements pooled by board and mode.

    Attributes:
        time: Log seconds per step, n rows.
        power: Log watts, n rows.
        correlation: Correlation of the rows' misfits, shape (n, n).
    """

    time: QuantityRows
    power: QuantityRows
    correlation: Float32Array


def fit_table(modes: Modes, maxn: PowerMode, step_s: Floats, power_w: Floats) -> Coefficients:
    """Fit the coefficients to a whole table under Student-t noise.

    Args:
        modes: The n measured modes.
        maxn: The board's top mode.
        step_s: Seconds per step, shape (n,), above 0.
        power_w: Module power in watts, shape (n,), above 0.
    """
    rng = np.random.default_rng(0)
    x = knob_shares(maxn, modes)
    time = _fit_wide(
        log_derivatives.linearize_log_time,
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
    """Return a prior centred on another workload's coefficients, with the spread observed between workloads."""
    time_sd = np.array([TIME_SD.get(name, TIME_TERM_SD) for name in TIME_NAMES])
    power_sd = np.array([POWER_SD.get(name, POWER_TERM_SD) for name in POWER_NAMES])
    return Prior(coefficients, time_sd, power_sd)


def fit_pooled(prior: Prior, maxn: PowerMode, seen: PooledMeasurements) -> Posterior:
    """Fit the posterior to pooled measurements, which several priors may share.

    Args:
        prior: Prior over the coefficients.
        maxn: The board's top mode; the one given to ``pool_measurements``.
        seen: Result of ``pool_measurements``; may be empty.

    Returns:
        The posterior of log seconds per step and log watts. Power is fitted second, at the most probable time
        parameters, because these determine how busy each part of the board is.
    """
    time_prior, power_prior = build_time_prior(prior), build_power_prior(prior)
    time = fit_quantity(
        log_derivatives.linearize_log_time,
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
    """Return the Gaussian prior of the log time parameters."""
    covariance = _covariance(prior.time_sd, prior.time_scale_sd, TIME_NAMES, "_s")
    return GaussianPrior(prior.coefficients.time, np.asarray(np.linalg.inv(covariance), dtype=np.float64))


def build_power_prior(prior: Prior) -> GaussianPrior:
    """Return the Gaussian prior of the log power parameters."""
    covariance = _covariance(prior.power_sd, prior.power_scale_sd, POWER_NAMES, "_w")
    return GaussianPrior(prior.coefficients.power, np.asarray(np.linalg.inv(covariance), dtype=np.float64))


def build_fed_power_prior(prior: Prior) -> GaussianPrior:
    """Return the Gaussian prior of the parameters of ``make_fed_power_curve``."""
    known = build_power_prior(prior)
    precision = np.diag(np.append(np.zeros(len(known.mean)), 1.0 / FEED_SD**2))
    precision[:-1, :-1] = known.precision
    return GaussianPrior(np.append(known.mean, math.log(FEED_SHARE)), precision)


def predict_many(posteriors: Sequence[Posterior], modes: Modes) -> list[Predictions]:
    """Predict with several posteriors; shared parts are computed once.

    Args:
        posteriors: Posteriors of one board, fitted to the same measurements.
        modes: The modes to predict.

    Returns:
        One prediction per posterior, in the same order.
    """
    x = knob_shares(posteriors[0].maxn, modes)
    alike = correlate_with_rows(posteriors[0].time.rows, x)
    return [_predict_one(posterior, modes, x, alike) for posterior in posteriors]


def _predict_one(posterior: Posterior, modes: Modes, x: Floats, alike: Float32Array) -> Predictions:
    time, power = posterior.time, posterior.power
    seconds = log_derivatives.linearize_log_time(time.best, x)
    watts = make_power_curve(time.best)(power.best, x)
    return Predictions(
        modes,
        step_s=np.exp(predict_mean_log(time, seconds, alike)),
        power_w=np.exp(predict_mean_log(power, watts, alike)),
        step_s_sd_log=predict_sd_log(time, seconds, alike),
        power_w_sd_log=predict_sd_log(power, watts, alike),
    )


def make_power_curve(time: Floats) -> KnobCurve:
    """Return the curve of log power for given log time parameters (11,), which determine how busy each part is."""

    @cache_last_call
    def parts(x: Floats | KnobTable) -> StepParts:
        return compute_time_parts(time, x)

    return lambda th, x: log_derivatives.linearize_log_power(th, parts(x))


def make_fed_power_curve(time: Floats) -> KnobCurve:
    """Return the curve of log power of inference whose next batch is loaded meanwhile (``linearize_fed_log_power``)."""
    top_s = float(compute_time_parts(time, np.ones((1, 4))).total_s[0])

    @cache_last_call
    def parts(x: Floats | KnobTable) -> StepParts:
        return compute_time_parts(time, x)

    return lambda th, x: log_derivatives.linearize_fed_log_power(th, parts(x), top_s)


def _fit_wide(
    curve_at: KnobCurve, x: Floats, data: Floats, guess: Floats, noise_sd: float, rng: np.random.Generator
) -> Floats:
    """Fit from several starting points on a subset of rows, then refine the best on all rows."""
    prior = GaussianPrior(guess, np.eye(len(guess)) / _WIDE_SD**2)
    some = rng.permutation(len(x))[:_ROWS_PER_START]
    starts = [guess, *(guess + 0.7 * rng.standard_normal((_STARTS - 1, len(guess))))]
    tries = [
        fit_curve(fix_shares(curve_at, x[some]), data=data[some], noise_sd=noise_sd, prior=prior, start=start)
        for start in starts
    ]
    best: CurveFit = min(tries, key=lambda fitted: fitted.objective)
    return fit_curve(
        fix_shares(curve_at, x), data=data, noise_sd=noise_sd / 2, prior=prior, start=best.parameters
    ).parameters


def guess_time_parameters(t: float) -> Floats:
    """Return starting values of the log time parameters, shape (11,).

    Args:
        t: Shortest measured step time in seconds; half of it is assigned to GPU arithmetic.
    """
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
    """Return starting values of the log power parameters, shape (13,).

    Args:
        p: Largest measured power in watts.
    """
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
    """Pool measurements to one row per board and mode: the median of the repeats, with reduced noise.

    Args:
        measurements: Any number of measurements, also of other boards of the same kind.
        maxn: The board's top mode.

    Raises:
        BadInput: A time or power is not a finite number above 0.
    """
    for measurement in measurements:
        if not (0.0 < measurement.step_s < np.inf and 0.0 < measurement.power_w < np.inf):
            got = f"{measurement.step_s:g} s per step and {measurement.power_w:g} W"
            raise BadInput(f"the measurement of {measurement.mode}", got, "two numbers above 0")
    groups = group_by(measurements, lambda one: (one.board, one.mode))
    knobs = np.array([[m.cores, m.cpu_mhz, m.gpu_mhz, m.mem_mhz] for _, m in groups], dtype=np.float64).reshape(-1, 4)
    x = knob_shares(maxn, Modes(knobs))
    kept = [[m for m in group if not m.throttled] or group for group in groups.values()]
    boards = [board for board, _ in groups]

    numbers = {board: number for number, board in enumerate(dict.fromkeys(boards))}
    owner = np.array([numbers[board] for board in boards], dtype=np.intp)
    same = (owner[:, None] == owner).astype(np.float64)
    here = np.array([board is None for board in boards], dtype=np.float64)

    def rows(logs: list[float], noise_sd: Floats, offset_sd: float) -> QuantityRows:
        apart = offset_sd if any(board is not None for board in boards) else 0.0
        return QuantityRows(
            x,
            log=np.array(logs),
            noise_sd=noise_sd,
            offset=apart**2 * same,
            offset_here=apart**2 * here,
            offset_sd=apart,
            here=here,
        )

    seconds = [statistics.median(math.log(m.step_s) for m in group) for group in kept]
    watts = [statistics.median(math.log(m.power_w) for m in group) for group in kept]
    return PooledMeasurements(
        rows(seconds, _compute_noise(kept, NOISE_TIME_SD, lambda one: one.time_se_log), OFFSET_TIME_SD),
        rows(watts, _compute_noise(kept, NOISE_POWER_SD, lambda one: one.power_se_log), OFFSET_POWER_SD),
        misfit_correlation(x, x) * _kind_correlation(same),
    )


def _compute_noise(
    groups: Sequence[Sequence[Measurement]], noise_sd: float, read_error: Callable[[Measurement], float]
) -> Floats:
    """Return the noise of the median of each group of repeats, log units."""
    noise = []
    for group in groups:
        error = statistics.median(map(read_error, group))
        alone = THROTTLED_SD if group[0].throttled else error if error >= UNSURE_SE_LOG else noise_sd
        noise.append(alone / np.sqrt(len(group)))
    return np.array(noise)


def correlate_with_rows(rows: QuantityRows, x: Floats | KnobTable) -> Float32Array:
    """Return the correlation of this board's misfit with that of the rows, some of which may be of other boards.

    Args:
        rows: The m measured rows.
        x: Knobs as shares of the top mode, shape (n, 4), or their table.

    Returns:
        Correlations, shape (n, m).
    """
    alike = misfit_correlation(x, rows.x)
    if rows.offset_sd:
        alike *= _kind_correlation(rows.here)
    return alike


def _kind_correlation(same: Floats) -> Float32Array:
    """Return 1 for pairs of rows of the same board, otherwise ``KIND_CORRELATION``."""
    return (KIND_CORRELATION + (1.0 - KIND_CORRELATION) * same).astype(np.float32)


def _covariance(sd: Floats, scale_sd: float, names: Sequence[str], unit: str) -> Floats:
    """Return the prior covariance: each parameter's own variance, plus the common scale of all parameters with
    ``unit``.
    """
    scaled = np.array([name.endswith(unit) for name in names], dtype=np.float64)
    covariance: Floats = np.diag(sd**2) + scale_sd**2 * np.outer(scaled, scaled)
    return covariance


def log_evidence(posterior: Posterior) -> float:
    """Return the log probability density of the measurements under the prior, up to a constant shared by all priors."""
    return float(posterior.time.log_evidence + posterior.power.log_evidence)


def idle_w_at_maxn(coefficients: Coefficients) -> float:
    """Return the modelled idle power in watts with every knob at its top."""
    return float(np.exp(coefficients.power[_IDLE_ROWS]).sum())


def with_idle_w(coefficients: Coefficients, idle_w: float) -> Coefficients:
    """Return the coefficients with static power adjusted to a given idle power.

    Args:
        coefficients: The coefficients to adjust.
        idle_w: Wanted ``idle_w_at_maxn`` in watts; static power stays above 5 % of it.
    """
    power = coefficients.power.copy()
    static_w = float(np.exp(power[0])) + idle_w - idle_w_at_maxn(coefficients)
    power[0] = np.log(max(static_w, 0.05 * idle_w))
    return Coefficients(coefficients.time, power)


_IDLE_ROWS = [POWER_NAMES.index(name) for name in ("static_w", "cores_idle_w", "gpu_idle_w", "mem_idle_w")]
