"""Predictor of plain Gaussian processes over log-knobs for log time and log power, without a physical model.

Symbols: x = ln(knob / its top), shape (n, 4); y = ln time or ln power minus its mean over the measured modes.
Kernel: k(x, x') = c^2 + b^2 x.x' + a^2 M(r) + s^2 [same row]: a straight line, and a Matern-5/2 process about it, with
r^2 = sum ((x_d - x'_d) / l_d)^2 and M(r) = (1 + z + z^2/3) e^-z, z = sqrt(5) r.
Hyper-parameters h = ln (a, l_1 .. l_4, s) maximise the evidence times a wide prior on h; c and b are fixed.

References:
    Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), chapters 2, 4.2 and 5.4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from fedge.physics.matern import matern5
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors.measurement_columns import collect_columns
from fedge.seeds import make_generator
from fedge.types import Floats, Measurement, Modes, Predictions

CONSTANT_SD, SLOPE_SD = 1.0, 1.0
"""c and b, log units: spread of the level about the measured mean, and of a knob's exponent. Defaults: wide, so that
the line is determined by the data."""
PRIOR = np.log([0.3, 1.0, 1.0, 1.0, 1.0, 0.02])
"""Prior mode of h: 30 % off the line, correlation over a factor of e in each knob, 2 % noise. Defaults; they decide the
prediction while there are few measurements."""
PRIOR_SD = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.5])
"""Prior spread of h. Default; with one measurement h stays at its mode."""
MOST_TO_TUNE, MOST_TO_LEARN = 200, 1000
"""Largest number of measurements used to tune the hyper-parameters, and to fit; beyond it, a random subset is used.
Defaults: the time grows with the cube of the number."""
STEPS, ENOUGH = 60, 1e-3
"""Largest number of optimiser steps, and the gain in log evidence below which it stops."""
ROWS_AT_ONCE = 2000
"""Modes predicted at once, to bound memory."""


@dataclass(frozen=True, slots=True, eq=False)
class GaussianProcess:
    """A Gaussian process fitted to n measurements.

    Attributes:
        h: Log hyper-parameters, shape (6,).
        x: Measured modes, shape (n, 4).
        mean: Mean of the measured logs.
        weights: K^-1 y, shape (n,).
        unroot: Inverse of K's Cholesky factor, shape (n, n).
    """

    h: Floats
    x: Floats
    mean: float
    weights: Floats
    unroot: Floats

    def predict(self, x: Floats) -> tuple[Floats, Floats]:
        """Return mean and standard deviation of the next measurement's log.

        Args:
            x: ln(knob / its top), shape (m, 4).

        Returns:
            Two arrays of shape (m,).
        """
        cross = _kernel(self.h, x, self.x)
        own = CONSTANT_SD**2 + SLOPE_SD**2 * np.square(x).sum(axis=1) + np.exp(2 * self.h[0])
        left = own - np.square(cross @ self.unroot.T).sum(axis=1)
        noise = np.exp(2 * self.h[5])
        return self.mean + cross @ self.weights, np.sqrt(np.maximum(left, 0.0) + noise)


class GaussianProcessPredictor:
    """A ``fedge.protocols.Predictor``: two Gaussian processes, from one measured mode on.

    Attributes:
        knowledge: Prior knowledge of board and workload.
        time_: Fitted process of log time.
        power_: Fitted process of log power.
    """

    def __init__(self, knowledge: PriorKnowledge) -> None:
        top = knowledge.maxn
        self.knowledge = knowledge
        self._top = np.array([top.cores, top.cpu_mhz, top.gpu_mhz, top.mem_mhz])

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Tune and fit both processes.

        Raises:
            BadInput: There are no measurements.
        """
        learnt = collect_columns("gp", measurements)
        order = make_generator(self.knowledge.seed, "gp").permutation(len(learnt.knobs))[:MOST_TO_LEARN]
        x = np.log(learnt.knobs[order] / self._top)
        self.time_, self.power_ = (_fit_process(x, np.log(y[order])) for y in (learnt.step_s, learnt.power_w))
        return self

    def predict(self, modes: Modes) -> Predictions:
        """Predict step time and power of every mode; requires ``fit``."""
        x = np.log(modes.knobs / self._top)
        (log_s, sd_s), (log_w, sd_w) = (_predict_in_chunks(process, x) for process in (self.time_, self.power_))
        return Predictions(modes, step_s=np.exp(log_s), power_w=np.exp(log_w), step_s_sd_log=sd_s, power_w_sd_log=sd_w)


def _predict_in_chunks(process: GaussianProcess, x: Floats) -> tuple[Floats, Floats]:
    parts = [process.predict(x[first : first + ROWS_AT_ONCE]) for first in range(0, max(len(x), 1), ROWS_AT_ONCE)]
    return np.concatenate([mean for mean, _ in parts]), np.concatenate([sd for _, sd in parts])


def _fit_process(x: Floats, log_y: Floats) -> GaussianProcess:
    mean = float(log_y.mean())
    y = log_y - mean
    some_x, some_y = x[:MOST_TO_TUNE], y[:MOST_TO_TUNE]
    h = _maximize(lambda h: log_posterior(h, some_x, some_y), PRIOR)
    unroot = np.linalg.inv(np.linalg.cholesky(_noisy_kernel(h, x)))
    return GaussianProcess(h, x=x, mean=mean, weights=unroot.T @ (unroot @ y), unroot=unroot)


def log_posterior(h: Floats, x: Floats, y: Floats) -> tuple[float, Floats]:
    """Return the log evidence plus the log prior of the hyper-parameters, up to a constant, and its gradient.

    Args:
        h: Log hyper-parameters, shape (6,).
        x: ln(knob / its top), shape (n, 4).
        y: Log values minus their mean, shape (n,).

    Returns:
        The value, and the gradient by ``h``, shape (6,).
    """
    k = _noisy_kernel(h, x)
    root = np.linalg.cholesky(k)
    inverse = np.linalg.inv(k)
    weights = inverse @ y
    value = -0.5 * y @ weights - np.log(np.diag(root)).sum() - 0.5 * np.square((h - PRIOR) / PRIOR_SD).sum()
    change = 0.5 * (np.outer(weights, weights) - inverse)
    z, squares = _scaled_distances(h, x, x)
    bend = np.exp(2 * h[0])
    slope = np.empty(6)
    slope[0] = np.sum(change * 2 * bend * matern5(z))
    # dM/d ln l_d = 5/3 (1 + z) e^-z ((x_d - x'_d) / l_d)^2
    shared = change * bend * (5 / 3) * (1 + z) * np.exp(-z)
    slope[1:5] = [np.sum(shared * squares[d]) for d in range(4)]
    slope[5] = 2 * np.exp(2 * h[5]) * np.trace(change)
    return float(value), slope - (h - PRIOR) / PRIOR_SD**2


def _maximize(value_and_slope: Callable[[Floats], tuple[float, Floats]], start: Floats) -> Floats:
    """Maximise by BFGS from ``start``, with step halving."""
    h, (value, slope) = start, value_and_slope(start)
    flat = np.diag(PRIOR_SD**2)
    for _ in range(STEPS):
        step = flat @ slope
        step *= min(1.0, 2.0 / np.abs(step).max(initial=1e-12))
        for _ in range(20):
            there, further = value_and_slope(h + step)
            if there >= value + 1e-4 * float(slope @ step):
                break
            step = step / 2
        else:
            return h
        gain, bent = there - value, slope - further
        h, value, slope = h + step, there, further
        if gain < ENOUGH:
            return h
        flat = _update_inverse_hessian(flat, step, bent)
    return h


def _update_inverse_hessian(flat: Floats, step: Floats, bent: Floats) -> Floats:
    """Apply the BFGS update to the inverse curvature; ``bent`` is the decrease of the gradient along ``step``."""
    along = float(step @ bent)
    if along <= 1e-10:
        return flat
    turn = np.eye(len(step)) - np.outer(step, bent) / along
    new: Floats = turn @ flat @ turn.T + np.outer(step, step) / along
    return new


def _scaled_distances(h: Floats, a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Return z of all pairs (n, m), and the squared scaled distance per knob (4, n, m)."""
    lengths = np.exp(h[1:5])
    squares = np.square((a / lengths).T[:, :, None] - (b / lengths).T[:, None, :])
    return np.sqrt(5 * squares.sum(axis=0)), squares


def _kernel(h: Floats, a: Floats, b: Floats) -> Floats:
    value: Floats = CONSTANT_SD**2 + SLOPE_SD**2 * a @ b.T + np.exp(2 * h[0]) * matern5(_scaled_distances(h, a, b)[0])
    return value


def _noisy_kernel(h: Floats, x: Floats) -> Floats:
    value: Floats = _kernel(h, x, x) + np.exp(2 * h[5]) * np.eye(len(x))
    return value
