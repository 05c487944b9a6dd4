"""Non-negative least squares on relative errors, robust, and drawn to a prior where the steps do not speak."""

from __future__ import annotations

import numpy as np

from fedge.physics.nonnegative_least_squares import solve_nonnegative
from fedge.types import Floats

MAX_REWEIGHTINGS = 6
"""Of re-weighting; the weights settle after three or four."""
TINY = 1e-9


def fit_relative(
    terms: Floats, target: Floats, weight: Floats, outlier: float, prior: Floats | None = None, pull: float = 0.01
) -> Floats:
    """Coefficients c >= 0 of ``terms @ c``, near ``target`` in relative error; terms (rows, terms), the others (rows,).

    A row that is off by more than ``outlier`` counts as its square root would. ``pull`` draws every term, as a share of
    the target, to that of ``prior`` (without one: to zero), in units of a mean squared relative error.
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
    """Weights (rows,) that let every group count the same, with mean 1."""
    _, which, counts = np.unique(groups, return_inverse=True, return_counts=True)
    weights: Floats = len(groups) / (len(counts) * counts[which.reshape(-1)])
    return weights
