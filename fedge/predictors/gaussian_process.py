"""Predicts with a plain Gaussian process on log-knobs for log time and one for log power; nothing physical in it.

Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), chapters 2, 4.2 and 5.4.

Symbols: x = ln(knob / its top), shape (n, 4); y = ln time or ln power less its mean over the measured modes;
k(x, x') = c^2 + b^2 x.x' + a^2 M(r) + s^2 [same row]: a straight line, and a Matern-5/2 process that bends about it;
r^2 = sum ((x_d - x'_d) / l_d)^2 and M(r) = (1 + z + z^2/3) e^-z with z = sqrt(5) r. Hyper-parameters h = ln (a, l_1 ..
l_4, s) maximise the evidence times a wide prior on h; c and b are fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors.measurement_columns import collect_columns
from fedge.seeds import make_generator
from fedge.types import Floats, Measurement, Modes, Predictions

CONSTANT_SD, SLOPE_SD = 1.0, 1.0
"""c and b: log units of the level beyond the measured mean, and of an exponent of a knob. Chosen by us."""
PRIOR = np.log([0.3, 1.0, 1.0, 1.0, 1.0, 0.02])
"""Most probable h beforehand: 30 % off the line, a bend per factor of e of a knob, 2 % noise. Chosen by us."""
PRIOR_SD = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.5])
"""How far h may be from it; with one measurement it stays there. Chosen by us."""
MOST_TO_TUNE, MOST_TO_LEARN = 200, 1000
"""Of more measurements, a random choice tunes the hyper-parameters and another is learnt from: time grows with the
cube of their number. Chosen by us."""
STEPS, ENOUGH = 60, 1e-3
"""At most so many steps uphill, and the gain in evidence below which the search stops."""
ROWS_AT_ONCE = 2000
"""Modes predicted at once, for the sake of memory."""


@dataclass(frozen=True, slots=True, eq=False)
class GaussianProcess:
    """A Gaussian process given what was measured: ``x`` (n, 4), K^-1 y and the inverse of K's Cholesky factor."""

    h: Floats
    x: Floats
    mean: float
    weights: Floats
    unroot: Floats

    def predict(self, x: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the next reading at ``x`` (m, 4), both (m,)."""
        cross = _kernel(self.h, x, self.x)
        own = CONSTANT_SD**2 + SLOPE_SD**2 * np.square(x).sum(axis=1) + np.exp(2 * self.h[0])
        left = own - np.square(cross @ self.unroot.T).sum(axis=1)
        noise = np.exp(2 * self.h[5])
        return self.mean + cross @ self.weights, np.sqrt(np.maximum(left, 0.0) + noise)


class GaussianProcessPredictor:
    """A ``fedge.protocols.Predictor``: two Gaussian processes, from one measured mode on.

    Learnt: ``time_``, ``power_``.
    """

    def __init__(self, knowledge: PriorKnowledge) -> None:
        top = knowledge.maxn
        self.knowledge = knowledge
        self._top = np.array([top.cores, top.cpu_mhz, top.gpu_mhz, top.mem_mhz])

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Tune and learn both processes; raises ``BadInput`` when nothing was measured."""
        learnt = collect_columns("gp", measurements)
        order = make_generator(self.knowledge.seed, "gp").permutation(len(learnt.knobs))[:MOST_TO_LEARN]
        x = np.log(learnt.knobs[order] / self._top)
        self.time_, self.power_ = (_fit_process(x, np.log(y[order])) for y in (learnt.step_s, learnt.power_w))
        return self

    def predict(self, modes: Modes) -> Predictions:
        """Step time and power of every mode; needs ``fit`` first."""
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
    """The evidence of ``y`` (n,) at ``x`` (n, 4) times the prior of ``h`` (6,), as a logarithm, and its slope (6,)."""
    k = _noisy_kernel(h, x)
    root = np.linalg.cholesky(k)
    inverse = np.linalg.inv(k)
    weights = inverse @ y
    value = -0.5 * y @ weights - np.log(np.diag(root)).sum() - 0.5 * np.square((h - PRIOR) / PRIOR_SD).sum()
    change = 0.5 * (np.outer(weights, weights) - inverse)
    z, squares = _scaled_distances(h, x, x)
    bend = np.exp(2 * h[0])
    slope = np.empty(6)
    slope[0] = np.sum(change * 2 * bend * _matern(z))
    # dM/d ln l_d = 5/3 (1 + z) e^-z ((x_d - x'_d) / l_d)^2
    shared = change * bend * (5 / 3) * (1 + z) * np.exp(-z)
    slope[1:5] = [np.sum(shared * squares[d]) for d in range(4)]
    slope[5] = 2 * np.exp(2 * h[5]) * np.trace(change)
    return float(value), slope - (h - PRIOR) / PRIOR_SD**2


def _maximize(value_and_slope: Callable[[Floats], tuple[float, Floats]], start: Floats) -> Floats:
    """Where the value is largest, by BFGS from ``start``: each step follows the curvature, halved until it helps."""
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
    """BFGS's estimate of the inverse curvature after one step; ``bent`` is how much the slope fell along it."""
    along = float(step @ bent)
    if along <= 1e-10:
        return flat
    turn = np.eye(len(step)) - np.outer(step, bent) / along
    new: Floats = turn @ flat @ turn.T + np.outer(step, step) / along
    return new


def _scaled_distances(h: Floats, a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """The z of all pairs (n, m), and per knob the squared distance in lengths, (4, n, m)."""
    lengths = np.exp(h[1:5])
    squares = np.square((a / lengths).T[:, :, None] - (b / lengths).T[:, None, :])
    return np.sqrt(5 * squares.sum(axis=0)), squares


def _matern(z: Floats) -> Floats:
    value: Floats = (1 + z + z * z / 3) * np.exp(-z)
    return value


def _kernel(h: Floats, a: Floats, b: Floats) -> Floats:
    value: Floats = CONSTANT_SD**2 + SLOPE_SD**2 * a @ b.T + np.exp(2 * h[0]) * _matern(_scaled_distances(h, a, b)[0])
    return value


def _noisy_kernel(h: Floats, x: Floats) -> Floats:
    value: Floats = _kernel(h, x, x) + np.exp(2 * h[5]) * np.eye(len(x))
    return value
