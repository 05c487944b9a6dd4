"""An update by own rows is the Gaussian conditional of all rows at the same curves."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from contracts.boards import MAXN, coefficients, grid

from fedge.physics.log_derivatives import linearize_log_time
from fedge.physics.misfit_process import QuantityPosterior, QuantityRows, fit_quantity, misfit_correlation
from fedge.physics.model_fit import (
    KIND_CORRELATION,
    MISFIT_TIME_SD,
    NOISE_TIME_SD,
    build_prior,
    build_time_prior,
    pool_measurements,
)
from fedge.physics.posterior_update import SharedPosterior
from fedge.physics.robust_fit import GaussianPrior, student_weights
from fedge.physics.time_power_model import compute_step_s, knob_shares, tabulate_shares
from fedge.types import Floats, Measurement

MODES = grid()
X = knob_shares(MAXN, MODES)
TABLE = tabulate_shares(X)


def measure(rows: list[int], rng: np.random.Generator, board: str | None, factor: float = 1.0) -> list[Measurement]:
    step_s = factor * compute_step_s(coefficients(), MAXN, MODES) * np.exp(0.02 * rng.standard_normal(len(MODES)))
    return [Measurement(MODES[row], 10, float(step_s[row]), 10.0, board=board) for row in rows]


def fit_peers(rng: np.random.Generator, count: int) -> QuantityPosterior:
    """Two candidates fitted to peers' rows."""
    rows = rng.permutation(len(MODES))[:count].tolist()
    half = count // 2
    peers = measure(rows[:half], rng, "a", 1.05) + measure(rows[half:], rng, "b", 0.97)
    seen = pool_measurements(peers, MAXN)
    prior = build_time_prior(build_prior(coefficients()))
    both = GaussianPrior(np.stack([prior.mean, prior.mean + 0.1]), np.stack([prior.precision, prior.precision / 4.0]))
    sd = np.array([MISFIT_TIME_SD, 0.7 * MISFIT_TIME_SD])
    return fit_quantity(linearize_log_time, seen.time, both, sd, NOISE_TIME_SD, seen.correlation)


def condition(posterior: QuantityPosterior, member: int, own: QuantityRows) -> tuple[Floats, Floats]:
    """Mean and variance of every mode by the dense formula, given the peers' rows and the own ones."""
    peers, best = posterior.rows, posterior.best[member]
    x = np.concatenate([peers.x, own.x, X])
    ours = np.arange(len(x)) >= len(peers.log)
    curve = linearize_log_time(best, x)
    slopes = curve.stack_slopes()
    kind = np.where(ours[:, None] == ours, 1.0, KIND_CORRELATION)
    count = len(peers.log)
    same = np.zeros_like(kind)
    same[:count, :count], same[count:, count:] = peers.offset, peers.offset_sd**2
    alike = misfit_correlation(x, x).astype(np.float64) * kind
    alike[:count, :count] *= np.where(peers.offset > 0, 1.0, KIND_CORRELATION)
    covariance = slopes.T @ posterior.prior_cov[member] @ slopes + posterior.misfit_sd[member] ** 2 * alike + same
    inverse = np.linalg.inv(posterior.whitener[member])
    mean = curve.values + slopes.T @ posterior.shift[member]
    gain = covariance[count:, :count] @ np.linalg.inv(inverse @ inverse.T)
    mean = mean[count:] + gain @ (peers.log - mean[:count])
    covariance = covariance[count:, count:] - gain @ covariance[:count, count:]
    few = len(own.log)
    spread = np.diagonal(covariance)[:few]
    off = own.log - mean[:few]
    weights = np.minimum(student_weights(off / np.sqrt(spread + own.noise_sd**2)), 1.0)
    noise = np.diag((own.noise_sd**2 + spread) / weights - spread)
    gain = covariance[few:, :few] @ np.linalg.inv(covariance[:few, :few] + noise)
    return mean[few:] + gain @ off, np.diagonal(covariance[few:, few:] - gain @ covariance[:few, few:])


@pytest.mark.parametrize("few", [0, 1, 6])
@pytest.mark.parametrize("seed", range(3))
def test_an_update_is_the_gaussian_conditional(seed, few):
    rng = np.random.default_rng(seed)
    posterior = fit_peers(rng, 24)
    pooled = pool_measurements(measure(rng.permutation(len(MODES))[:few].tolist(), rng, None, 1.1), MAXN)
    shared = SharedPosterior(posterior, linearize_log_time)
    alike = misfit_correlation(TABLE, shared.x).T * np.float32(KIND_CORRELATION)
    own_alike = misfit_correlation(pooled.time.x, shared.x) * np.float32(KIND_CORRELATION)

    [own] = shared.add_rows([pooled.time], [pooled.correlation], [own_alike])
    modes, near = shared.tabulate(TABLE, alike), np.ascontiguousarray(misfit_correlation(TABLE, pooled.time.x).T)

    means = shared.update_means(own, range(2), modes, near)
    for member in range(2):
        mean, variance = condition(posterior, member, pooled.time)
        moved = shared.project(own, member, modes, near)
        np.testing.assert_allclose(means[member], mean, atol=2e-4)
        left = shared.predict_variance(modes, member) - np.square(moved).sum(axis=0)
        np.testing.assert_allclose(left, variance, rtol=0.02, atol=2e-6)


def test_evidence_is_lower_the_further_the_rows_are_from_what_others_foretell():
    rng = np.random.default_rng(5)
    posterior = fit_peers(rng, 24)
    shared = SharedPosterior(posterior, linearize_log_time)
    rows = rng.permutation(len(MODES))[:5].tolist()
    evidence = []
    for factor in (1.0, 1.1, 1.5):
        own = pool_measurements(measure(rows, np.random.default_rng(1), None, factor), MAXN)
        alike = misfit_correlation(own.time.x, shared.x) * np.float32(KIND_CORRELATION)
        evidence.append(shared.add_rows([own.time], [own.correlation], [alike])[0].log_evidence)

    assert (np.diff(np.array(evidence), axis=0) < 0).all()


def test_an_outlier_among_own_rows_moves_the_level_less_than_the_others_do():
    rng = np.random.default_rng(6)
    posterior = fit_peers(rng, 24)
    shared = SharedPosterior(posterior, linearize_log_time)
    rows = rng.permutation(len(MODES))[:6].tolist()
    near = np.ascontiguousarray(misfit_correlation(TABLE, X[rows]).T)
    alike = misfit_correlation(X[rows], shared.x) * np.float32(KIND_CORRELATION)
    modes = shared.tabulate(TABLE, misfit_correlation(TABLE, shared.x).T * np.float32(KIND_CORRELATION))
    clean = measure(rows, np.random.default_rng(1), None)
    wrong = [dataclasses.replace(clean[0], step_s=3.0 * clean[0].step_s), *clean[1:]]

    means = []
    for measurements in (clean, wrong):
        pooled = pool_measurements(measurements, MAXN)
        [own] = shared.add_rows([pooled.time], [pooled.correlation], [alike])
        means.append(shared.update_means(own, [0], modes, near)[0])

    assert np.abs(means[1] - means[0]).mean() < 0.02
