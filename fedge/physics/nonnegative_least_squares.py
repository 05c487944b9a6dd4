"""Non-negative least squares in numpy alone, so that boards need no further package."""

from __future__ import annotations

import numpy as np

from fedge.types import Floats

_TINY = 1e-9


def solve_nonnegative(a: Floats, b: Floats) -> Floats:
    """Solve min ``|a x - b|`` subject to x >= 0 by an active-set method.

    Args:
        a: Matrix of shape (rows, terms).
        b: Right-hand side of shape (rows,).

    Returns:
        x, shape (terms,).

    References:
        Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23.
    """
    x, passive = np.zeros(a.shape[1]), np.zeros(a.shape[1], dtype=bool)
    gram, right = a.T @ a, a.T @ b
    tolerance = 1e-10 * max(1.0, float(np.abs(right).max()))
    for _ in range(10 * a.shape[1]):
        slope = np.where(passive, -np.inf, right - gram @ x)
        if slope.max() <= tolerance:
            break
        passive[int(slope.argmax())] = True
        x = _step_to_feasible(gram, right, x, passive)
    return x


def _step_to_feasible(gram: Floats, right: Floats, x: Floats, passive: np.ndarray) -> Floats:
    """Solve for the passive terms; while one would be negative, step to its bound and make it active."""
    while True:
        wanted = np.zeros_like(x)
        wanted[passive] = np.linalg.lstsq(gram[np.ix_(passive, passive)], right[passive], rcond=None)[0]
        bad = passive & (wanted <= 0)
        if not bad.any():
            return wanted
        step = float((x[bad] / np.maximum(x[bad] - wanted[bad], _TINY)).min())
        x = x + step * (wanted - x)
        passive &= x > _TINY * max(1.0, float(np.abs(x).max()))
        x = np.where(passive, x, 0.0)
