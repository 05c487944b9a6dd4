"""The first trials: those from which both jobs together are learnt best, before anything is measured.

Greedy active learning (ALC, Cohn 1996) as in ``fedge.explorers.active``, over trials of both jobs at once: the next one
most lowers the mean log variance of all seconds and watts after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.physics.process import Singles
from fedge.strategies.beliefs import Belief


@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """A belief, and the point of it that each trial measures (trials,)."""

    belief: Belief
    point: NDArray[np.intp]


def first_trials(quantities: Sequence[Quantity], count: int, fixed: Sequence[int] = ()) -> list[int]:
    """``count`` trials: the ``fixed`` ones, then those that teach most beside them, the most telling first."""
    covariances = [quantity.belief.covariance.copy() for quantity in quantities]
    chosen: list[int] = []
    for wanted in [*fixed, *([None] * (count - len(fixed)))]:
        trial = _most_telling(quantities, covariances, chosen) if wanted is None else wanted
        chosen.append(trial)
        for quantity, covariance in zip(quantities, covariances, strict=True):
            point = quantity.point[trial]
            column = covariance[:, point].copy()
            taught = np.outer(column, column / (column[point] + quantity.belief.noise_sd**2))
            np.subtract(covariance, taught, out=covariance)
    return chosen[:count]


def _most_telling(quantities: Sequence[Quantity], covariances: Sequence[Singles], chosen: Sequence[int]) -> int:
    left = np.zeros(len(quantities[0].point))
    for quantity, covariance in zip(quantities, covariances, strict=True):
        noise_var = quantity.belief.noise_sd**2
        own = np.diag(covariance)
        after = np.maximum(own[:, None] - np.square(covariance) / (own + noise_var), 0.0) + noise_var
        left += np.log(after).mean(axis=0)[quantity.point]
    left[list(chosen)] = np.inf
    return int(np.argmin(left))
