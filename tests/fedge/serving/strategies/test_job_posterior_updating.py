"""A belief told measurements one by one is the Gaussian one conditioned on all of them, but for wild ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.serving.strategies.job_posterior import JobBelief, SequentialBelief


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
def test_small_surprises_are_learnt_exactly_as_a_gaussian_belief_learns_them(
    seed: int, surprises: list[tuple[int, float]]
) -> None:
    """A surprise of less than one standard deviation has the full weight; points may be measured again."""
    before = belief(seed)
    updated, told = SequentialBelief(before), []
    for point, z in surprises:
        told.append((point, float(updated.mean[point] + z * updated.sd[point])))
        updated.tell(*told[-1])

    mean, var = conditioned(before, told)

    np.testing.assert_allclose(updated.mean, mean, atol=1e-9)
    np.testing.assert_allclose(updated.sd, np.sqrt(np.maximum(var, 1e-8) + before.noise_sd**2), rtol=1e-6)


def test_what_is_told_at_the_start_is_what_is_told_later() -> None:
    before, told = belief(1), [(0, 0.3), (4, -0.2), (0, 0.1)]
    later = SequentialBelief(before)
    for point, log in told:
        later.tell(point, log)

    np.testing.assert_array_equal(SequentialBelief(before, told).mean, later.mean)
    np.testing.assert_array_equal(SequentialBelief(before, told).sd, later.sd)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_wild_measurement_moves_the_belief_less_than_a_plain_one_would(sign: float) -> None:
    before = belief(2)
    wild = (3, float(before.mean[3] + sign * 20.0 * SequentialBelief(before).sd[3]))
    exact, _ = conditioned(before, [wild])

    updated = SequentialBelief(before, [wild])

    moved, would = abs(updated.mean[3] - before.mean[3]), abs(exact[3] - before.mean[3])
    assert 0.0 < moved < 0.1 * would
    assert updated.sd[3] > np.sqrt(before.noise_sd**2 + conditioned(before, [wild])[1][3])


def test_the_belief_that_it_began_with_stays_as_it_was() -> None:
    before = belief(3)
    mean, covariance = before.mean.copy(), before.covariance.copy()
    SequentialBelief(before).tell(2, 5.0)

    np.testing.assert_array_equal(before.mean, mean)
    np.testing.assert_array_equal(before.covariance, covariance)
