"""Least squares with coefficients that cannot be negative, in numpy alone, so that a small board can do it."""

from __future__ import annotations

import numpy as np

from fedge.types import Floats

_TINY = 1e-9


def solve_nonnegative(a: Floats, b: Floats) -> Floats:
    """The x >= 0 of least ``|a x - b|``, by active sets (Lawson and Hanson 1974); a (rows, terms), b (rows,)."""
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
    """Solves for the passive terms and, while one would be negative, steps to the bound and gives that one up."""
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
