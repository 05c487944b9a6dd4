"""Matern correlations of Gaussian processes.

Symbols: z = sqrt(2 nu) r at a distance r in correlation lengths; nu = 3/2 gives once, nu = 5/2 twice differentiable
functions.

References:
    Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), equation 4.17.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedge.types import Floats

Float32Array = NDArray[np.float32]


def matern3(z: Floats) -> Floats:
    """Return the Matern-3/2 correlation at z = sqrt(3) r, any shape."""
    correlation: Floats = (1.0 + z) * np.exp(-z)
    return correlation


def matern5(z: Floats) -> Floats:
    """Return the Matern-5/2 correlation at z = sqrt(5) r, any shape."""
    correlation: Floats = (1.0 + z + z * z / 3.0) * np.exp(-z)
    return correlation


def matern5_single(squared: Float32Array) -> Float32Array:
    """Return the Matern-5/2 correlation at squared distances r^2, in single precision and without temporary arrays."""
    d = np.sqrt(np.float32(5.0) * squared)
    correlation: Float32Array = d * d
    correlation /= np.float32(3.0)
    correlation += d
    correlation += np.float32(1.0)
    np.negative(d, out=d)
    correlation *= np.exp(d, out=d)
    return correlation
