"""What every choice is made of: the margin, what keeps a limit, the best row, a number for a sentence."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from fedge.errors import BadInput, FedgeError
from fedge.types import Floats

LIMIT_ROUNDING = 1e-9
"""A limit counts as kept up to this share of it, so that a plan made from a board's own numbers is never missed."""


def compute_margin_z(confidence: float, where: str = "confidence") -> float:
    """Standard deviations of margin that hold with ``confidence`` (0.5: 0, 0.84: 1); ``BadInput`` outside (0, 1).

    ``where`` is the field or option that the error names.
    """
    if not 0.0 < confidence < 1.0:
        raise BadInput(where, f"{confidence:g}", "a number between 0 and 1")
    return NormalDist().inv_cdf(confidence)


def add_margin(values: Floats, sd_log: Floats, z: float) -> Floats:
    """What is not exceeded with a margin of ``z`` spreads, v exp(z s); shape as ``values``."""
    overestimated: Floats = values * np.exp(z * sd_log)
    return overestimated


def mask_within(values: Floats, limit: float) -> NDArray[np.bool_]:
    """Marks the values that keep ``limit``."""
    return values <= limit + LIMIT_ROUNDING * abs(limit)


def find_best_row(primary: Floats, secondary: Floats, allowed: NDArray[np.bool_] | None = None) -> int:
    """The allowed row of least ``primary``, then least ``secondary``, then the first.

    Rows with a value that is not finite are never it. Raises ``FedgeError`` when no row is left.
    """
    finite = np.isfinite(primary) & np.isfinite(secondary)
    rows = np.flatnonzero(finite if allowed is None else finite & allowed)
    if len(rows) == 0:
        raise FedgeError(f"none of the {len(primary)} modes has a finite prediction of time and power")
    tied = rows[primary[rows] == primary[rows].min()]
    return int(tied[np.argmin(secondary[tied])])


def format_figure(value: float) -> str:
    """A number for a sentence: one decimal, or three digits where it is small."""
    return f"{value:.3g}" if math.fabs(value) < 10.0 else f"{value:.1f}"
