"""Beliefs begin with other workloads, follow what is measured, one by one as all at once."""

from dataclasses import replace

import numpy as np
import pytest
from contracts.boards import MAXN, another_workload, coefficients
from contracts.strategy import made_up_pair
from hypothesis import given
from hypothesis import strategies as st

from fedge.errors import BadInput
from fedge.physics import time_power_model
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.serving.strategies.job_posterior import (
    JobBelief,
    JobModel,
    SequentialBelief,
    build_job_model,
    compute_posteriors,
    compute_priors,
)
from fedge.types import Modes

SIZES = (1, 16)
MODES = made_up_pair(0, "train").modes
N = len(MODES)
NOTHING = np.array([], dtype=np.intp), np.empty(0), np.empty(0)


def job(*, infers: bool = True) -> JobModel:
    known = PriorKnowledge(MAXN, (coefficients(),), idle_w=6.0)
    sizes = SIZES if infers else (1,)
    return build_job_model([known] * len(sizes), sizes, MODES, infers=infers)


def truth() -> tuple[np.ndarray, np.ndarray]:
    """ln seconds and ln watts of a workload that is not the prior's, (n,)."""
    own = another_workload(np.random.default_rng(4))
    return np.log(time_power_model.compute_step_s(own, MAXN, MODES)), np.log(
        time_power_model.compute_power_w(own, MAXN, MODES)
    )


@pytest.mark.parametrize("infers", [False, True])
def test_before_anything_is_measured_the_prior_is_believed(infers):
    of = job(infers=infers)
    prior = coefficients()
    for belief, expected in zip(
        compute_priors(of),
        (time_power_model.compute_step_s(prior, MAXN, MODES), time_power_model.compute_power_w(prior, MAXN, MODES)),
        strict=True,
    ):
        np.testing.assert_allclose(belief.mean, np.tile(np.log(expected), len(of.knowledge)), atol=1e-6)


@pytest.mark.parametrize("infers", [False, True])
def test_without_measurements_the_prior_is_believed(infers):
    of = job(infers=infers)
    lower = 0.4 if infers else 1e-6  # inference whose next batch is late, the other candidate, takes less power
    for before, after, less in zip(compute_priors(of), compute_posteriors(of, *NOTHING), (1e-6, lower), strict=True):
        assert (after.mean <= before.mean + 1e-6).all()
        assert (after.mean >= before.mean - less).all()
        assert (np.diag(after.covariance) > 0.0).all()


def test_what_was_measured_is_met_and_is_surer_than_before():
    of, (log_s, log_w) = job(), truth()
    rows = np.arange(0, N, 9, dtype=np.intp)

    for after, before, logs in zip(
        compute_posteriors(of, rows, log_s[rows], log_w[rows]), compute_priors(of), (log_s, log_w), strict=True
    ):
        assert np.abs(before.mean[rows] - logs[rows]).max() > 0.1
        assert np.abs(after.mean[rows] - logs[rows]).max() < 0.02
        assert (np.diag(after.covariance)[rows] < 0.1 * np.diag(before.covariance)[rows]).all()
        others = np.setdiff1d(np.arange(N), rows)
        assert (
            np.abs(after.mean[others] - logs[others]).mean() < 0.3 * np.abs(before.mean[others] - logs[others]).mean()
        )


def test_what_was_measured_at_one_batch_size_tells_of_the_other_less_than_of_its_own():
    of, (log_s, log_w) = job(), truth()
    rows = np.arange(0, N, 9, dtype=np.intp)
    seconds, _ = compute_posteriors(of, rows, log_s[rows] + 1.0, log_w[rows])
    before, _ = compute_priors(of)

    moved = (seconds.mean - before.mean).reshape(2, N).mean(axis=1)
    sd = np.sqrt(np.diag(seconds.covariance)).reshape(2, N).mean(axis=1)
    sd_before = np.sqrt(np.diag(before.covariance)).reshape(2, N).mean(axis=1)

    assert 0.2 * moved[0] < moved[1] < moved[0]
    assert sd[0] < sd[1] < sd_before[1]


def test_a_covariance_is_one():
    of, (log_s, log_w) = job(), truth()
    rows = np.arange(0, N, 5, dtype=np.intp)
    for belief in (*compute_posteriors(of, rows + N, log_s[rows], log_w[rows]), *compute_priors(of)):
        np.testing.assert_allclose(belief.covariance, belief.covariance.T, atol=1e-5)
        assert np.linalg.eigvalsh(belief.covariance).min() > -1e-4


def test_without_a_prior_there_is_nothing_to_believe():
    known = PriorKnowledge(MAXN, (coefficients(),))
    with pytest.raises(BadInput, match="at least one calibrated workload"):
        build_job_model([known, replace(known, priors=())], SIZES, Modes(MODES.knobs), infers=True)


def belief(seed: int, points: int = 6, noise_sd: float = 0.05) -> JobBelief:
    rng = np.random.default_rng(seed)
    factor = rng.standard_normal((points, points))
    return JobBelief(rng.standard_normal(points), factor @ factor.T / points + 0.01 * np.eye(points), noise_sd)


def conditioned(before: JobBelief, told: list[tuple[int, float]]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance by the textbook, all measurements at once."""
    at, logs = [point for point, _ in told], np.array([log for _, log in told])
    gain = before.covariance[:, at] @ np.linalg.inv(
        before.covariance[np.ix_(at, at)] + before.noise_sd**2 * np.eye(len(at))
    )
    return before.mean + gain @ (logs - before.mean[at]), np.diag(before.covariance - gain @ before.covariance[at])


@given(
    seed=st.integers(0, 10**6),
    surprises=st.lists(st.tuples(st.integers(0, 5), st.floats(-0.9, 0.9)), min_size=1, max_size=8),
)
def test_small_surprises_are_learnt_exactly_as_a_gaussian_belief_learns_them(seed, surprises):
    """A surprise of less than one standard deviation has the full weight; points may be measured again."""
    before = belief(seed)
    updated, told = SequentialBelief(before), []
    for point, z in surprises:
        told.append((point, float(updated.mean[point] + z * updated.sd[point])))
        updated.tell(*told[-1])

    mean, var = conditioned(before, told)

    np.testing.assert_allclose(updated.mean, mean, atol=1e-9)
    np.testing.assert_allclose(updated.sd, np.sqrt(np.maximum(var, 1e-8) + before.noise_sd**2), rtol=1e-6)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_wild_measurement_moves_the_belief_less_than_a_plain_one_would(sign):
    before = belief(2)
    wild = (3, float(before.mean[3] + sign * 20.0 * SequentialBelief(before).sd[3]))
    exact, _ = conditioned(before, [wild])

    updated = SequentialBelief(before)
    updated.tell(*wild)

    moved, would = abs(updated.mean[3] - before.mean[3]), abs(exact[3] - before.mean[3])
    assert 0.0 < moved < 0.1 * would
    assert updated.sd[3] > np.sqrt(before.noise_sd**2 + conditioned(before, [wild])[1][3])


def test_the_belief_that_it_began_with_stays_as_it_was():
    before = belief(3)
    mean, covariance = before.mean.copy(), before.covariance.copy()
    SequentialBelief(before).tell(2, 5.0)

    np.testing.assert_array_equal(before.mean, mean)
    np.testing.assert_array_equal(before.covariance, covariance)
