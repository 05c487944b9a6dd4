"""The first trials are those that a search through all of them would take, one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from fedge.serving.strategies.initial_trials import TrialQuantity, choose_initial_trials
from fedge.serving.strategies.job_posterior import JobBelief


def quantities(seed: int, trials: int = 8) -> list[TrialQuantity]:
    """One quantity with a point per trial, and one of which two trials measure the same point."""
    rng = np.random.default_rng(seed)

    def belief(points: int, noise_sd: float) -> JobBelief:
        factor = rng.standard_normal((points, points))
        return JobBelief(np.zeros(points), factor @ factor.T / points, noise_sd)

    every = np.arange(trials)
    return [TrialQuantity(belief(trials, 0.1), every), TrialQuantity(belief(trials // 2, 0.3), every % (trials // 2))]


def left(given: list[TrialQuantity], trials: list[int]) -> float:
    """Mean log variance of everything after these trials, noise included, by exact conditioning."""
    total = 0.0
    for quantity in given:
        belief, at = quantity.belief, quantity.point[trials]
        own = belief.covariance[np.ix_(at, at)] + belief.noise_sd**2 * np.eye(len(at))
        shared = belief.covariance[:, at]
        after = np.diag(belief.covariance - shared @ np.linalg.solve(own, shared.T))
        total += float(np.log(after + belief.noise_sd**2).mean())
    return total


@pytest.mark.parametrize("seed", range(8))
def test_every_next_trial_is_the_most_telling_of_all(seed: int) -> None:
    given = quantities(seed)
    chosen = choose_initial_trials(given, 5)

    assert len(set(chosen)) == 5
    for known in range(5):
        before = chosen[:known]
        open_trials = [trial for trial in range(8) if trial not in before]
        assert chosen[known] == min(open_trials, key=lambda trial: left(given, [*before, trial]))


def test_trials_that_are_fixed_come_first_and_the_others_are_chosen_beside_them() -> None:
    given = quantities(3)
    fixed = [6, 1]
    chosen = choose_initial_trials(given, 3, fixed)

    assert chosen[:2] == fixed
    rest = [trial for trial in range(8) if trial not in fixed]
    assert chosen[2] == min(rest, key=lambda trial: left(given, [*fixed, trial]))
    assert choose_initial_trials(given, 1, fixed) == [6]
