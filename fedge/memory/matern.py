"""How alike two places are by their distance: Matern correlations, once (3/2) and twice (5/2) differentiable."""

from __future__ import annotations

import numpy as np

from fedge.types import Floats


def matern3(distance: Floats) -> Floats:
    """Matern-3/2 correlation at distances in lengths, any shape."""
    scaled = np.sqrt(3.0) * distance
    alike: Floats = (1.0 + scaled) * np.exp(-scaled)
    return alike


def matern5(distance: Floats) -> Floats:
    """Matern-5/2 correlation at distances in lengths, any shape."""
    scaled = np.sqrt(5.0) * distance
    alike: Floats = (1.0 + scaled + scaled**2 / 3.0) * np.exp(-scaled)
    return alike
