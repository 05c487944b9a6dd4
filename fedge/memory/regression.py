"""Non-negative least squares on relative errors, robust, and drawn to a prior where the steps do not speak."""

from __future__ import annotations

import numpy as np

from fedge.types import Floats

ROUNDS = 6
"""Of re-weighting; the weights settle after three or four."""
TINY = 1e-9


def nonnegative(a: Floats, b: Floats) -> Floats:
    """The x >= 0 of least ``|a x - b|``, by active sets (Lawson and Hanson 1974); a (rows, terms), b (rows,)."""
    x, passive = np.zeros(a.shape[1]), np.zeros(a.shape[1], dtype=bool)
    gram, right = a.T @ a, a.T @ b
    tolerance = 1e-10 * max(1.0, float(np.abs(right).max()))
    for _ in range(10 * a.shape[1]):
        slope = np.where(passive, -np.inf, right - gram @ x)
        if slope.max() <= tolerance:
            break
        passive[int(slope.argmax())] = True
        x = _feasible(gram, right, x, passive)
    return x


def _feasible(gram: Floats, right: Floats, x: Floats, passive: np.ndarray) -> Floats:
    """Solves for the passive terms and, while one would be negative, steps to the bound and gives that one up."""
    while True:
        wanted = np.zeros_like(x)
        wanted[passive] = np.linalg.lstsq(gram[np.ix_(passive, passive)], right[passive], rcond=None)[0]
        bad = passive & (wanted <= 0)
        if not bad.any():
            return wanted
        step = float((x[bad] / np.maximum(x[bad] - wanted[bad], TINY)).min())
        x = x + step * (wanted - x)
        passive &= x > TINY * max(1.0, float(np.abs(x).max()))
        x = np.where(passive, x, 0.0)


def relative_fit(
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
    for _ in range(ROUNDS):
        root = np.sqrt(now)
        rows = np.vstack([scaled * root[:, None], strength * np.eye(len(size))])
        found = nonnegative(rows, np.concatenate([root, strength * wanted]))
        off = np.abs(scaled @ found - 1.0)
        now = weight * np.minimum(1.0, outlier / np.maximum(off, TINY))
    coefficients: Floats = found / size
    return coefficients


def balanced(groups: np.ndarray) -> Floats:
    """Weights (rows,) that let every group count the same, with mean 1."""
    _, which, counts = np.unique(groups, return_inverse=True, return_counts=True)
    weights: Floats = len(groups) / (len(counts) * counts[which.reshape(-1)])
    return weights
