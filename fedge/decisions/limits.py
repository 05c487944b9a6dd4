"""Building blocks of every choice: confidence margins, limits with rounding, the best row, numbers for a sentence."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from fedge.errors import BadInput, FedgeError
from fedge.types import Floats

LIMIT_ROUNDING = 1e-9
"""Relative excess up to which a limit counts as kept, so that rounding never breaks a plan made from these numbers."""


def compute_margin_z(confidence: float, where: str = "confidence") -> float:
    """Return the standard deviations of margin that hold with a one-sided normal ``confidence`` (0.5: 0, 0.84: 1).

    Args:
        confidence: Probability between 0 and 1, both excluded.
        where: The configuration field or option that the error names.

    Raises:
        BadInput: If ``confidence`` is outside (0, 1).
    """
    if not 0.0 < confidence < 1.0:
        raise BadInput(where, f"{confidence:g}", "a number between 0 and 1")
    return NormalDist().inv_cdf(confidence)


def add_margin(values: Floats, sd_log: Floats, z: float) -> Floats:
    """Return the values with a log-normal margin of ``z`` standard deviations, v exp(z s).

    Args:
        values: Expected values, any shape and unit.
        sd_log: Standard deviations of their logarithms, same shape.
        z: Margin in standard deviations; 0 leaves the values unchanged.
    """
    overestimated: Floats = values * np.exp(z * sd_log)
    return overestimated


def mask_within(values: Floats, limit: float) -> NDArray[np.bool_]:
    """Mask the values that keep ``limit``, up to a relative excess of ``LIMIT_ROUNDING``."""
    return values <= limit + LIMIT_ROUNDING * abs(limit)


def find_best_row(primary: Floats, secondary: Floats, allowed: NDArray[np.bool_] | None = None) -> int:
    """Return the allowed row of least ``primary``, then of least ``secondary``, then the first.

    Args:
        primary: First criterion, shape (n,). Rows where either criterion is not finite are never chosen.
        secondary: Second criterion, shape (n,).
        allowed: Mask of the rows to choose from, shape (n,); all rows if None.

    Raises:
        FedgeError: If no row is left.
    """
    finite = np.isfinite(primary) & np.isfinite(secondary)
    rows = np.flatnonzero(finite if allowed is None else finite & allowed)
    if len(rows) == 0:
        raise FedgeError(f"none of the {len(primary)} modes has a finite prediction of time and power")
    tied = rows[primary[rows] == primary[rows].min()]
    return int(tied[np.argmin(secondary[tied])])


def format_figure(value: float) -> str:
    """Format a number for a sentence: three significant digits below 10, else one decimal."""
    return f"{value:.3g}" if math.fabs(value) < 10.0 else f"{value:.1f}"
