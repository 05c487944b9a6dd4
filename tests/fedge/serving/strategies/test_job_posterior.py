"""Beliefs begin with what other workloads taught, follow what is measured, and carry it to other batch sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from contracts.boards import MAXN, another_workload, coefficients
from contracts.strategy import made_up_pair

from fedge.errors import BadInput
from fedge.physics import time_power_model
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.serving.strategies.job_posterior import JobModel, build_job_model, compute_posteriors, compute_priors
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
def test_before_anything_is_measured_the_prior_is_believed(infers: bool) -> None:
    of = job(infers=infers)
    prior = coefficients()
    for belief, expected in zip(
        compute_priors(of),
        (time_power_model.compute_step_s(prior, MAXN, MODES), time_power_model.compute_power_w(prior, MAXN, MODES)),
        strict=True,
    ):
        np.testing.assert_allclose(belief.mean, np.tile(np.log(expected), len(of.knowledge)), atol=1e-6)


@pytest.mark.parametrize("infers", [False, True])
def test_without_measurements_the_prior_is_believed(infers: bool) -> None:
    of = job(infers=infers)
    for before, after in zip(compute_priors(of), compute_posteriors(of, *NOTHING), strict=True):
        np.testing.assert_allclose(after.mean, before.mean, atol=1e-6)
        assert (np.diag(after.covariance) > 0.0).all()


def test_what_was_measured_is_met_and_is_surer_than_before() -> None:
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


def test_what_was_measured_at_one_batch_size_tells_of_the_other_less_than_of_its_own() -> None:
    of, (log_s, log_w) = job(), truth()
    rows = np.arange(0, N, 9, dtype=np.intp)
    seconds, _ = compute_posteriors(of, rows, log_s[rows] + 1.0, log_w[rows])
    before, _ = compute_priors(of)

    moved = (seconds.mean - before.mean).reshape(2, N).mean(axis=1)
    sd = np.sqrt(np.diag(seconds.covariance)).reshape(2, N).mean(axis=1)
    sd_before = np.sqrt(np.diag(before.covariance)).reshape(2, N).mean(axis=1)

    assert 0.2 * moved[0] < moved[1] < moved[0]
    assert sd[0] < sd[1] < sd_before[1]


def test_a_covariance_is_one() -> None:
    of, (log_s, log_w) = job(), truth()
    rows = np.arange(0, N, 5, dtype=np.intp)
    for belief in (*compute_posteriors(of, rows + N, log_s[rows], log_w[rows]), *compute_priors(of)):
        np.testing.assert_allclose(belief.covariance, belief.covariance.T, atol=1e-5)
        assert np.linalg.eigvalsh(belief.covariance).min() > -1e-4


def test_without_a_prior_there_is_nothing_to_believe() -> None:
    known = PriorKnowledge(MAXN, (coefficients(),))
    with pytest.raises(BadInput, match="at least one calibrated workload"):
        build_job_model([known, replace(known, priors=())], SIZES, Modes(MODES.knobs), infers=True)
