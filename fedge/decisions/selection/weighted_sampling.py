"""Draws without replacement in proportion to weights, in the order of the draws."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedge.types import Floats


def sample_without_replacement(weights: Floats, size: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """``size`` different rows (all, when there are fewer), each next one in proportion to its weight among the rest.

    Weights have shape (n,) and are at least 0; rows of weight 0 come last, in random order. An exponential race: row i
    arrives at an exponential time of rate w_i, and the first arrivals are the draws (Efraimidis and Spirakis, 2006).
    """
    race = rng.exponential(size=len(weights))
    with np.errstate(divide="ignore", over="ignore"):
        arrival = np.where(weights > 0.0, race / weights, np.inf)
    return np.lexsort((race, arrival))[:size]


def round_randomly(value: float, rng: np.random.Generator) -> int:
    """The whole number below or above ``value``, at random so that the mean is ``value``."""
    return int(np.floor(value + rng.random()))
