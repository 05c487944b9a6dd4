"""The first trials are the most informative ones, or dealt evenly."""

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.serving.strategies.job_posterior import JobBelief
from fedge.serving.strategies.trial_model import (
    FEASIBILITY_WEIGHT,
    MAX_EXTRA_STEPS,
    TIE_WEIGHT,
    BestTrial,
    LogNormalSpread,
    TrialQuantity,
    choose_initial_trials,
    deal_trials,
    expected_gain_both,
    expected_gain_inference,
    expected_gain_training,
    normal_cdf,
    stack_readings,
)
from fedge.serving.trial_search import ServingProblem, TrialReading


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
def test_every_next_trial_is_the_most_telling_of_all(seed):
    given = quantities(seed)
    chosen = choose_initial_trials(given, 5)

    assert len(set(chosen)) == 5
    for known in range(5):
        before = chosen[:known]
        open_trials = [trial for trial in range(8) if trial not in before]
        assert chosen[known] == min(open_trials, key=lambda trial: left(given, [*before, trial]))


def test_trials_that_are_fixed_come_first_and_the_others_are_chosen_beside_them():
    given = quantities(3)
    fixed = [6, 1]
    chosen = choose_initial_trials(given, 3, fixed)

    assert chosen[:2] == fixed
    rest = [trial for trial in range(8) if trial not in fixed]
    assert chosen[2] == min(rest, key=lambda trial: left(given, [*fixed, trial]))
    assert choose_initial_trials(given, 1, fixed) == [6]


@given(st.integers(1, 40), st.integers(0, 6), st.integers(0, 300), st.integers(0, 99))
def test_trials_are_dealt_evenly_and_never_twice(modes, batches, count, seed):
    trials = deal_trials(modes, batches, count, np.random.default_rng(seed))

    assert len(set(trials)) == len(trials) == min(count, modes * max(batches, 1))
    assert all(trial.row in range(modes) for trial in trials)
    assert {trial.row for trial in trials[:modes]} == {trial.row for trial in trials}
    assert {trial.batch for trial in trials} <= ({*range(batches)} or {None})
    if batches and trials and modes % batches == 0:
        shares = Counter(trial.batch for trial in trials)
        assert max(shares.values()) - min(shares[place] for place in range(batches)) <= 1


def test_readings_become_columns():
    assert stack_readings([TrialReading(1.0, 2.0, 3.0, 4.0)]).tolist() == [[1.0, 2.0, 3.0, 4.0]]
    assert stack_readings([]).shape == (0, 4)


DRAWS = 100_000
SIZES = np.array([[4.0], [16.0]])


@dataclass(frozen=True)
class Drawn:
    """Draws of a quantity: (draws, batch sizes or 1, n)."""

    spread: LogNormalSpread
    values: np.ndarray


def drawn(seed: int, middle: np.ndarray, sd: tuple[float, float]) -> Drawn:
    """Logarithms about those of ``middle``, each point with its own spread."""
    rng = np.random.default_rng(seed)
    spread = LogNormalSpread(np.log(middle), rng.uniform(*sd, middle.shape))
    return Drawn(spread, np.exp(spread.mean + spread.sd * rng.standard_normal((DRAWS, *middle.shape))))


def seconds_of_training(seed: int = 1) -> Drawn:
    return drawn(seed, np.array([[0.03, 0.05, 0.08, 0.12]]), (0.02, 0.3))


def seconds_of_inference(seed: int = 2) -> Drawn:
    return drawn(seed, np.array([[0.02, 0.03, 0.05, 0.08], [0.06, 0.1, 0.16, 0.3]]), (0.02, 0.3))


def watts(seed: int, places: int) -> Drawn:
    return drawn(seed, np.tile([[33.0, 29.0, 24.0, 18.0]], (places, 1)), (0.02, 0.2))


def improved(on: float, values: np.ndarray) -> np.ndarray:
    return np.maximum(np.log(on / values), 0.0).mean(axis=0)


def held(problem: ServingProblem, infer_s: np.ndarray) -> np.ndarray:
    """How often latency and keep-up hold, by their own words."""
    in_time = SIZES / problem.rate_hz + infer_s <= problem.latency_s
    return (in_time & (infer_s * problem.rate_hz <= SIZES)).mean(axis=0)


def test_the_normal_distribution_is_near_enough_to_the_exact_one():
    z = np.linspace(-6.0, 6.0, 2001)
    exact = np.array([0.5 * (1.0 + math.erf(one / math.sqrt(2.0))) for one in z])

    assert np.abs(normal_cdf(z) - exact).max() < 2e-4


def test_training_gains_what_draws_gain():
    problem, train_s, train_w = ServingProblem("train", 28.0), seconds_of_training(), watts(3, 1)
    holds = (train_w.values <= 28.0).mean(axis=0)

    first = expected_gain_training(problem, train_s.spread, train_w.spread, None)
    later = expected_gain_training(problem, train_s.spread, train_w.spread, BestTrial(0.07, math.nan))

    np.testing.assert_allclose(first, holds, atol=0.01)
    np.testing.assert_allclose(later, holds * improved(0.07, train_s.values), atol=0.01)


def test_inference_gains_what_draws_gain():
    problem, infer_s, infer_w = ServingProblem("infer", 28.0, 0.5, 50.0), seconds_of_inference(), watts(4, 2)
    holds = held(problem, infer_s.values) * (infer_w.values <= 28.0).mean(axis=0)

    first = expected_gain_inference(problem, SIZES, infer_s.spread, infer_w.spread, None)
    later = expected_gain_inference(problem, SIZES, infer_s.spread, infer_w.spread, BestTrial(math.nan, 0.06))

    assert holds.min() < 0.2
    assert holds.max() > 0.7
    np.testing.assert_allclose(first, holds, atol=0.01)
    np.testing.assert_allclose(later, holds * improved(0.06, infer_s.values), atol=0.01)


def test_both_gain_what_draws_gain():
    """The sum of two log-normal times is taken for log-normal: within 2 % of a probability."""
    problem = ServingProblem("concurrent", 34.0, 0.5, 50.0)
    train_s, infer_s, train_w, infer_w = seconds_of_training(), seconds_of_inference(), watts(5, 1), watts(6, 2)
    top = BestTrial(0.05, 0.1, 2)
    holds = (
        held(problem, infer_s.values) * (infer_w.values <= 34.0).mean(axis=0) * (train_w.values <= 34.0).mean(axis=0)
    )

    def fit(steps: int) -> np.ndarray:
        return (steps * train_s.values + infer_s.values <= SIZES / 50.0).mean(axis=0)

    expected = sum(fit(2 + more) / (2 + more) for more in range(1, MAX_EXTRA_STEPS + 1))
    expected = expected + TIE_WEIGHT * fit(2) * improved(0.1, infer_s.values)

    found = expected_gain_both(problem, SIZES, (train_s.spread, train_w.spread), (infer_s.spread, infer_w.spread), top)

    assert (holds * expected).max() > 0.2
    np.testing.assert_allclose(found, holds * expected, atol=0.02)


def test_until_a_trial_holds_the_most_promising_is_one_that_probably_holds_and_trains_most():
    problem = ServingProblem("concurrent", 31.0, 0.5, 50.0)
    jobs = [seconds_of_training(), watts(5, 1), seconds_of_inference(), watts(6, 2)]
    sure = [LogNormalSpread(job.spread.mean, np.full_like(job.spread.sd, 0.02)) for job in jobs]

    found = expected_gain_both(problem, SIZES, (sure[0], sure[1]), (sure[2], sure[3]), None)

    assert found.shape == (2, 4)
    assert found[:, 0].max() < 0.01
    assert np.unravel_index(int(found.argmax()), found.shape) == (1, 1)
    assert (found <= 1.0 + FEASIBILITY_WEIGHT).all()


@pytest.mark.parametrize("limit", [0.0, -0.3])
def test_nothing_is_below_a_limit_that_is_not_above_nothing(limit):
    assert (seconds_of_training().spread.probability_below(limit) == 0.0).all()
