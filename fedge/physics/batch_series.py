"""Joint fit of one workload's tables at several batch sizes, so that the coefficients change smoothly with batch size.

Symbols: b_i the batch sizes, ascending; th_i the log-parameters at b_i; D their drift: 1 for the times that grow with
the batch (``GROWING_PARAMETERS``), else 0; l_i = log2(b_i+1 / b_i); s the drift's spread per doubling.
Prior: th_i+1 - th_i ~ N(D l_i log 2, s^2 l_i), a Brownian motion in the logarithm of the batch size. Parameters that a
table does not determine are thus taken from its neighbours, and between two sizes the expected th is linear in log b.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedge.physics.log_derivatives import linearize_log_time
from fedge.physics.misfit_process import fix_shares
from fedge.physics.model_fit import (
    MISFIT_POWER_SD,
    MISFIT_TIME_SD,
    guess_power_parameters,
    guess_time_parameters,
    make_power_curve,
)
from fedge.physics.robust_fit import Curve, GaussianPrior, fit_curve
from fedge.physics.time_power_model import POWER_NAMES, TIME_NAMES, Coefficients, knob_shares
from fedge.types import Floats, PowerMode, ProfileTable

GROWING_PARAMETERS = ("gpu_s", "mem_s", "host_s")
"""Times that grow with the batch: the GPU's work, and copies by the host. Launches and loading hardly grow."""
DRIFT = np.array([float(name in GROWING_PARAMETERS) for name in TIME_NAMES])
"""Growth of each log time parameter with the logarithm of the batch size; power parameters do not grow."""
DRIFT_SD = 0.1
"""s. At 0.05 the fits themselves get worse, from 0.4 on the prediction of a size that is left out does;
docs/how-to/calibration.md has the errors of both kinds at 0.1."""
_FIRST_SD = 3.0
_STARTS = 8


def fit_series(tables: Sequence[ProfileTable], maxn: PowerMode) -> tuple[Coefficients, ...]:
    """Fit the physical model to tables of one workload at several batch sizes.

    Args:
        tables: The tables, ascending in batch size.
        maxn: The board's top mode.

    Returns:
        Coefficients for each table, in the same order.
    """
    rng = np.random.default_rng(0)
    sizes = np.array([table.batch_size for table in tables], dtype=np.float64)
    at = [knob_shares(maxn, table.modes) for table in tables]
    seconds = _fit_sizes(
        [fix_shares(linearize_log_time, x) for x in at],
        data=[np.log(table.step_s) for table in tables],
        prior=_brownian_prior(guess_time_parameters(float(tables[0].step_s.min())), DRIFT, sizes),
        noise_sd=MISFIT_TIME_SD,
        rng=rng,
    )
    watts = _fit_sizes(
        [fix_shares(make_power_curve(time), x) for time, x in zip(seconds, at, strict=True)],
        data=[np.log(table.power_w) for table in tables],
        prior=_brownian_prior(
            guess_power_parameters(float(tables[-1].power_w.max())), np.zeros(len(POWER_NAMES)), sizes
        ),
        noise_sd=MISFIT_POWER_SD,
        rng=rng,
    )
    return tuple(Coefficients(time, power) for time, power in zip(seconds, watts, strict=True))


def _brownian_prior(first: Floats, drift: Floats, sizes: Floats) -> GaussianPrior:
    """Return the joint prior over the parameters of all sizes, size by size; ``first`` is a guess for the smallest."""
    inverse = np.zeros((len(sizes), len(sizes)))
    inverse[0, 0] = 1.0 / _FIRST_SD**2
    for i, doublings in enumerate(np.diff(np.log2(sizes))):
        inverse[i : i + 2, i : i + 2] += np.array([[1.0, -1.0], [-1.0, 1.0]]) / (DRIFT_SD**2 * doublings)
    mean = first + np.log(sizes / sizes[0])[:, None] * drift
    return GaussianPrior(mean.ravel(), np.asarray(np.kron(inverse, np.eye(len(first))), dtype=np.float64))


def _fit_sizes(
    curves: Sequence[Curve], data: Sequence[Floats], prior: GaussianPrior, noise_sd: float, rng: np.random.Generator
) -> Floats:
    """Fit from several starting points and refine the best; return the parameters, shape (sizes, parameters)."""
    joined, rows, sizes = _concatenate_curves(curves, data), np.concatenate(data), len(curves)
    count = len(prior.mean) // sizes
    shifts = [np.zeros(count), *(0.7 * rng.standard_normal((_STARTS - 1, count)))]
    tries = [
        fit_curve(joined, data=rows, noise_sd=noise_sd, prior=prior, start=prior.mean + np.tile(shift, sizes))
        for shift in shifts
    ]
    best = min(tries, key=lambda fitted: fitted.objective)
    polished: Floats = fit_curve(
        joined, data=rows, noise_sd=noise_sd / 2, prior=prior, start=best.parameters
    ).parameters.reshape(sizes, count)
    return polished


def _concatenate_curves(curves: Sequence[Curve], data: Sequence[Floats]) -> Curve:
    """Combine the curves of all sizes into one; rows of a size depend on its own parameters only."""
    ends = np.cumsum([len(rows) for rows in data])

    def curve(th: Floats) -> tuple[Floats, Floats]:
        each = [own(part) for own, part in zip(curves, np.split(th, len(curves)), strict=True)]
        by, count = np.zeros((len(th), ends[-1])), len(th) // len(curves)
        for i, ((_, slope), end) in enumerate(zip(each, ends, strict=True)):
            by[i * count : (i + 1) * count, end - slope.shape[1] : end] = slope
        return np.concatenate([values for values, _ in each]), by

    return curve
