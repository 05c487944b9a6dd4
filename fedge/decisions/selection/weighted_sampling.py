"""Sampling without replacement in proportion to weights, in the order of the draws."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedge.types import Floats


def sample_without_replacement(weights: Floats, size: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw ``size`` different rows (all, if there are fewer), each in proportion to its weight among the rest.

    Implemented as an exponential race: row i arrives at an exponential time of rate w_i, and the first arrivals are
    drawn.

    Args:
        weights: Weights of at least 0, shape (n,); rows of weight 0 come last, in random order.
        size: Number of rows.
        rng: Source of randomness.

    References:
        Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006.
    """
    race = rng.exponential(size=len(weights))
    with np.errstate(divide="ignore", over="ignore"):
        arrival = np.where(weights > 0.0, race / weights, np.inf)
    return np.lexsort((race, arrival))[:size]


def round_randomly(value: float, rng: np.random.Generator) -> int:
    """Round ``value`` down or up at random so that the mean is ``value``."""
    return int(np.floor(value + rng.random()))
