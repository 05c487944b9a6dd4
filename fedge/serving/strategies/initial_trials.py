"""The initial trials of a search, and readings as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.physics.misfit_process import Float32Array
from fedge.serving.strategies.job_posterior import JobBelief
from fedge.serving.trial_search import Trial, TrialReading
from fedge.types import Floats


def deal_trials(modes: int, batches: int, count: int, rng: np.random.Generator) -> list[Trial]:
    """Draw random trials whose modes are distributed evenly over the batch sizes.

    Args:
        modes: Number of modes; no mode repeats before all were drawn once.
        batches: Number of batch sizes; 0 without inference.
        count: Number of trials; fewer are returned if there are fewer combinations.
        rng: Random generator.
    """
    order = rng.permutation(modes).tolist()
    if batches == 0:
        return [Trial(row) for row in order[:count]]
    places = range(min(count, modes * batches))
    return [Trial(order[at % modes], (at % modes + at // modes) % batches) for at in places]


def stack_readings(seen: Sequence[TrialReading]) -> Floats:
    """Return the columns train_s, train_w, infer_s, infer_w, shape (n, 4)."""
    values = [(one.train_s, one.train_w, one.infer_s, one.infer_w) for one in seen]
    return np.array(values, dtype=np.float64).reshape(len(values), 4)


@dataclass(frozen=True, slots=True, eq=False)
class TrialQuantity:
    """A posterior, and the index of the point that each trial measures, shape (trials,)."""

    belief: JobBelief
    point: NDArray[np.intp]


def choose_initial_trials(quantities: Sequence[TrialQuantity], count: int, fixed: Sequence[int] = ()) -> list[int]:
    """Choose the most informative trials greedily.

    Args:
        quantities: Prior of every quantity that a trial measures.
        count: Number of trials.
        fixed: Trials that come first in any case.

    Returns:
        Trial numbers: the fixed ones, then the others by decreasing information.
    """
    covariances = [quantity.belief.covariance.copy() for quantity in quantities]
    chosen: list[int] = []
    for wanted in [*fixed, *([None] * (count - len(fixed)))]:
        trial = _most_informative_trial(quantities, covariances, chosen) if wanted is None else wanted
        chosen.append(trial)
        for quantity, covariance in zip(quantities, covariances, strict=True):
            point = quantity.point[trial]
            column = covariance[:, point].copy()
            taught = np.outer(column, column / (column[point] + quantity.belief.noise_sd**2))
            np.subtract(covariance, taught, out=covariance)
    return chosen[:count]


def _most_informative_trial(
    quantities: Sequence[TrialQuantity], covariances: Sequence[Float32Array], chosen: Sequence[int]
) -> int:
    left = np.zeros(len(quantities[0].point))
    for quantity, covariance in zip(quantities, covariances, strict=True):
        noise_var = quantity.belief.noise_sd**2
        own = np.diag(covariance)
        after = np.maximum(own[:, None] - np.square(covariance) / (own + noise_var), 0.0) + noise_var
        left += np.log(after).mean(axis=0)[quantity.point]
    left[list(chosen)] = np.inf
    return int(np.argmin(left))
