"""The first trials are the most informative ones, or dealt evenly."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.serving.strategies.job_posterior import JobBelief
from fedge.serving.strategies.trial_model import TrialQuantity, choose_initial_trials, deal_trials, stack_readings
from fedge.serving.trial_search import TrialReading


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


@given(st.integers(1, 40), st.integers(0, 6), st.integers(0, 300), st.integers(0, 99))
def test_trials_are_dealt_evenly_and_never_twice(modes: int, batches: int, count: int, seed: int) -> None:
    trials = deal_trials(modes, batches, count, np.random.default_rng(seed))

    assert len(set(trials)) == len(trials) == min(count, modes * max(batches, 1))
    assert all(trial.row in range(modes) for trial in trials)
    assert {trial.row for trial in trials[:modes]} == {trial.row for trial in trials}
    assert {trial.batch for trial in trials} <= ({*range(batches)} or {None})
    if batches and trials and modes % batches == 0:
        shares = Counter(trial.batch for trial in trials)
        assert max(shares.values()) - min(shares[place] for place in range(batches)) <= 1


def test_readings_become_columns() -> None:
    assert stack_readings([TrialReading(1.0, 2.0, 3.0, 4.0)]).tolist() == [[1.0, 2.0, 3.0, 4.0]]
    assert stack_readings([]).shape == (0, 4)
