"""A training step's memory and time from the terms: what is fitted, and how it predicts.

Memory never falls below a floor (what loading the libraries peaks at) and cannot be seen above a ceiling (the board is
full). A step is never faster than the processor launches its layers: time is (launching^p + computing^p)^(1/p).
The constants here were chosen by us, with the tables that the model is judged on in sight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedge.costs.memory.relative_regression import balance_weights, fit_relative
from fedge.types import Floats

MEMORY_PRIOR = np.array([1400.0, 3.0, 1.5, 0.5, 6.0, 2.0])
"""Coefficients of ``terms.MEMORY_TERMS`` to begin with, chosen by us: a CUDA process; weights, gradients and momentum;
two copies of a layer's output; work space and gradients of the largest layer. Few networks do not tell them apart."""
MEMORY_PULL = 0.02
MEMORY_OUTLIER, TIME_OUTLIER = 0.03, 0.1
"""Relative errors beyond which a step counts less: memory is steadier than time."""
TIME_PULL = 1e-4
FLOOR_SHARE, CEILING_SHARE, LAUNCH_SHARE = 0.05, 0.99, 0.02
"""Quantiles that stand for the least memory, the most, and the fastest step per layer."""
ABOVE_FLOOR_MB, BELOW_CEILING_MB = 40.0, 110.0
"""Steps nearer to the floor or the ceiling show these and not their own need."""
BLEND_EXPONENT = 4.0
"""p: how sharply launching takes over from computing; chosen by us."""
LAUNCH_BOUND_FACTOR = 1.1
"""Up to so many times the launching time, a step says nothing of its computing."""
MIN_COMPUTE_SHARE = 0.3


@dataclass(frozen=True, slots=True, eq=False)
class MemoryModel:
    """``coefficients`` of ``terms.MEMORY_TERMS``, and the bounds in MB."""

    coefficients: Floats
    floor_mb: float
    ceiling_mb: float

    def need_mb(self, terms: Floats) -> Floats:
        """What a step would take of a board without limits, shape (n,)."""
        need: Floats = terms @ self.coefficients
        return need

    def clip_to_board_mb(self, need_mb: Floats) -> Floats:
        """What is measured of a need on this board."""
        seen: Floats = np.clip(need_mb, self.floor_mb, self.ceiling_mb)
        return seen


@dataclass(frozen=True, slots=True, eq=False)
class TimeModel:
    """``coefficients`` in ms of ``terms.TIME_TERMS`` or ``OWN_TIME_TERMS``; ``launch_ms`` per layer."""

    coefficients: Floats
    launch_ms: float

    def step_ms(self, terms: Floats, layers: Floats) -> Floats:
        """Milliseconds of a step, (n,): terms (n, terms), how many layers are launched (n,)."""
        computing, launching = terms @ self.coefficients, self.launch_ms * layers
        step: Floats = (computing**BLEND_EXPONENT + launching**BLEND_EXPONENT) ** (1.0 / BLEND_EXPONENT)
        return step


def find_unbounded_steps(memory_mb: Floats, floor_mb: float | Floats, ceiling_mb: float) -> np.ndarray:
    """Which steps (n,) show what they need: neither at the floor nor where the board is full."""
    shows: np.ndarray = (memory_mb > floor_mb + ABOVE_FLOOR_MB) & (memory_mb < ceiling_mb - BELOW_CEILING_MB)
    return shows


def estimate_floor_mb(memory_mb: Floats, networks: np.ndarray) -> float:
    """The usual floor of the networks: the median of their lowest steps."""
    return float(np.median([np.quantile(memory_mb[networks == name], FLOOR_SHARE) for name in np.unique(networks)]))


def fit_memory_model(terms: Floats, memory_mb: Floats, networks: np.ndarray, ceiling_mb: float) -> MemoryModel:
    """The model of steps (n,) of several networks: terms (n, 6), measured MB, and whose each step is."""
    floor_mb = np.array(
        [estimate_floor_mb(memory_mb[networks == name], networks[networks == name]) for name in networks]
    )
    shows = find_unbounded_steps(memory_mb, floor_mb, ceiling_mb)
    coefficients = MEMORY_PRIOR
    if shows.any():
        weight = balance_weights(networks[shows])
        coefficients = fit_relative(
            terms[shows],
            target=memory_mb[shows],
            weight=weight,
            outlier=MEMORY_OUTLIER,
            prior=MEMORY_PRIOR,
            pull=MEMORY_PULL,
        )
    return MemoryModel(coefficients, estimate_floor_mb(memory_mb, networks), ceiling_mb)


def estimate_ceiling_mb(memory_mb: Floats) -> float:
    """Where the board is full, by the largest of steps (n,)."""
    return float(np.quantile(memory_mb, CEILING_SHARE))


def fit_time_model(terms: Floats, step_ms: Floats, layers: Floats, networks: np.ndarray) -> TimeModel:
    """The model of steps (n,) of several networks: terms (n, terms), measured ms, layers launched, whose a step is."""
    fastest = [np.quantile((step_ms / layers)[networks == name], LAUNCH_SHARE) for name in np.unique(networks)]
    launch_ms = float(np.median(fastest))
    launching = launch_ms * layers
    rest = np.maximum(
        step_ms**BLEND_EXPONENT - launching**BLEND_EXPONENT, (MIN_COMPUTE_SHARE * step_ms) ** BLEND_EXPONENT
    ) ** (1.0 / BLEND_EXPONENT)
    telling = (
        np.where(
            step_ms > LAUNCH_BOUND_FACTOR * launching, np.minimum(rest / step_ms, 1.0) ** (2 * BLEND_EXPONENT), 0.0
        )
        + 1e-6
    )
    weight = telling * balance_weights(networks)
    return TimeModel(fit_relative(terms, rest, weight, TIME_OUTLIER, pull=TIME_PULL), launch_ms)
