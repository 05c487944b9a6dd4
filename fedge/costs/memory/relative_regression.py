"""Robust non-negative least squares on relative errors, with shrinkage to a prior."""

from __future__ import annotations

import numpy as np

from fedge.physics.nonnegative_least_squares import solve_nonnegative
from fedge.types import Floats

MAX_REWEIGHTINGS = 6
"""Largest number of re-weightings; the weights converge after three or four."""
TINY = 1e-9


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
