"""Models of a training step's memory and time over the terms of ``step_terms``: fits and predictions.

Memory is at least a floor (the peak of loading the libraries) and cannot be measured above a ceiling (the board is
full). A step is never faster than the processor launches its layers: time is (launching^p + computing^p)^(1/p). The
constants were set by hand with the evaluated tables in sight; see docs/explanation/memory.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedge.physics.nonnegative_least_squares import solve_nonnegative
from fedge.types import Floats

MEMORY_PRIOR = np.array([1400.0, 3.0, 1.5, 0.5, 6.0, 2.0])
"""Prior coefficients of ``step_terms.MEMORY_TERMS``, which a few networks cannot separate: a CUDA process; weights,
gradients and momentum; two copies of a layer's output; work space and gradients of the largest layer."""
MEMORY_PULL = 0.02
MEMORY_OUTLIER, TIME_OUTLIER = 0.03, 0.1
"""Relative errors beyond which a step is down-weighted: memory varies less than time."""
TIME_PULL = 1e-4
FLOOR_SHARE, CEILING_SHARE, LAUNCH_SHARE = 0.05, 0.99, 0.02
"""Quantiles used as smallest memory, largest memory, and fastest step per layer."""
ABOVE_FLOOR_MB, BELOW_CEILING_MB = 40.0, 110.0
"""Steps closer to the floor or the ceiling do not show their own need."""
BLEND_EXPONENT = 4.0
"""p: sharpness of the transition between launching and computing; set with the evaluated tables in sight."""
LAUNCH_BOUND_FACTOR = 1.1
"""Multiple of the launching time up to which a step says nothing about its computing."""
MIN_COMPUTE_SHARE = 0.3
MAX_REWEIGHTINGS = 6
"""Largest number of re-weightings; the weights converge after three or four."""
TINY = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class MemoryModel:
    """Linear model of memory with bounds.

    Attributes:
        coefficients: Coefficients of ``step_terms.MEMORY_TERMS``, shape (6,).
        floor_mb: Smallest peak of a training process in MB.
        ceiling_mb: Largest measurable peak in MB.
    """

    coefficients: Floats
    floor_mb: float
    ceiling_mb: float

    def need_mb(self, terms: Floats) -> Floats:
        """Return the memory that steps need without limits, in MB, shape (n,)."""
        need: Floats = terms @ self.coefficients
        return need

    def clip_to_board_mb(self, need_mb: Floats) -> Floats:
        """Return the memory that would be measured on this board, in MB."""
        seen: Floats = np.clip(need_mb, self.floor_mb, self.ceiling_mb)
        return seen


@dataclass(frozen=True, slots=True, eq=False)
class TimeModel:
    """Model of step time.

    Attributes:
        coefficients: Coefficients of ``step_terms.TIME_TERMS`` or ``OWN_TIME_TERMS``, in ms.
        launch_ms: Launching time per layer in ms.
    """

    coefficients: Floats
    launch_ms: float

    def step_ms(self, terms: Floats, layers: Floats) -> Floats:
        """Return the time of steps in ms, shape (n,), from their terms, shape (n, terms), and numbers of launched
        layers, (n,).
        """
        computing, launching = terms @ self.coefficients, self.launch_ms * layers
        step: Floats = (computing**BLEND_EXPONENT + launching**BLEND_EXPONENT) ** (1.0 / BLEND_EXPONENT)
        return step


def find_unbounded_steps(memory_mb: Floats, floor_mb: float | Floats, ceiling_mb: float) -> np.ndarray:
    """Return which steps show their own need, neither at the floor nor where the board is full, shape (n,).

    Memory is measured per step, shape (n,), as is the floor unless it is one number.
    """
    shows: np.ndarray = (memory_mb > floor_mb + ABOVE_FLOOR_MB) & (memory_mb < ceiling_mb - BELOW_CEILING_MB)
    return shows


def estimate_floor_mb(memory_mb: Floats, networks: np.ndarray) -> float:
    """Return the median, over networks, of their lowest memory in MB."""
    return float(np.median([np.quantile(memory_mb[networks == name], FLOOR_SHARE) for name in np.unique(networks)]))


def fit_memory_model(terms: Floats, memory_mb: Floats, networks: np.ndarray, ceiling_mb: float) -> MemoryModel:
    """Fit the memory model to steps of several networks.

    Args:
        terms: Memory terms, shape (n, 6).
        memory_mb: Measured memory in MB, shape (n,).
        networks: Name of each step's network, shape (n,).
        ceiling_mb: Memory at which the board is full, in MB.
    """
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
    """Return the memory at which the board is full, in MB, from the largest measured steps (n,)."""
    return float(np.quantile(memory_mb, CEILING_SHARE))


def fit_time_model(terms: Floats, step_ms: Floats, layers: Floats, networks: np.ndarray) -> TimeModel:
    """Fit the time model to steps of several networks.

    Args:
        terms: Time terms, shape (n, terms).
        step_ms: Measured time in ms, shape (n,).
        layers: Number of launched layers, shape (n,).
        networks: Name of each step's network, shape (n,).
    """
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


# Robust non-negative least squares on relative errors ----------------------------------------------------------------


def fit_relative(
    terms: Floats, target: Floats, weight: Floats, outlier: float, prior: Floats | None = None, pull: float = 0.01
) -> Floats:
    """Fit coefficients c >= 0 so that ``terms @ c`` is close to the target in relative error.

    Args:
        terms: Terms of each row, shape (rows, terms).
        target: Target of each row, above 0, shape (rows,).
        weight: Weight of each row, shape (rows,).
        outlier: Relative error beyond which a row counts linearly instead of quadratically (Huber).
        prior: Prior coefficients, above 0, shape (terms,); None to shrink to zero.
        pull: Strength of the shrinkage of each term, in units of a mean squared relative error.

    Returns:
        Coefficients, shape (terms,).
    """
    shares = terms / target[:, None]
    size = np.sqrt((shares**2).mean(axis=0)) if prior is None else 1.0 / prior
    size = np.where(size > 0, size, 1.0)
    wanted = np.zeros(len(size)) if prior is None else np.ones(len(size))
    scaled, weight = shares / size, weight / weight.mean()
    strength = np.sqrt(pull * len(target))
    now = weight
    for _ in range(MAX_REWEIGHTINGS):
        root = np.sqrt(now)
        rows = np.vstack([scaled * root[:, None], strength * np.eye(len(size))])
        found = solve_nonnegative(rows, np.concatenate([root, strength * wanted]))
        off = np.abs(scaled @ found - 1.0)
        now = weight * np.minimum(1.0, outlier / np.maximum(off, TINY))
    coefficients: Floats = found / size
    return coefficients


def balance_weights(groups: np.ndarray) -> Floats:
    """Return weights (rows,) with mean 1 that give every group the same total weight."""
    _, which, counts = np.unique(groups, return_inverse=True, return_counts=True)
    weights: Floats = len(groups) / (len(counts) * counts[which.reshape(-1)])
    return weights
