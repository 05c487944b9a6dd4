"""A linearised curve with misfit and offsets predicts what brute-force Gaussian conditioning says, and its evidence."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from contracts.boards import MAXN, another_workload, grid
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.physics.log_derivatives import LinearizedCurve, linearize_log_time
from fedge.physics.matern import Float32Array
from fedge.physics.misfit_process import (
    LENGTH_SCALES,
    OUTLIER_SD,
    SINGLE_KNOB_SHARE,
    SPREAD_PRIOR_ROWS,
    QuantityPosterior,
    QuantityProblem,
    QuantityRows,
    bind_curve,
    fit_quantities,
    fit_quantity,
    misfit_correlation,
    predict_mean_log,
    predict_sd_log,
)
from fedge.physics.model_fit import KIND_CORRELATION, correlate_with_rows
from fedge.physics.robust_fit import GaussianPrior, student_weights
from fedge.physics.time_power_model import knob_shares
from fedge.types import Floats

X = knob_shares(MAXN, grid())
ASKED = np.arange(0, len(X), 70)
"""Modes that are predicted."""
MISFIT_SD, NOISE_SD, OFFSET_SD = 0.04, 0.012, 0.05
PRIOR = GaussianPrior(np.array([-2.0, -0.7, 0.3]), np.diag([4.0, 9.0, 6.25]) + 0.5)


def line(th: Floats, x: Floats) -> LinearizedCurve:
    """A curve that is straight in its parameters, so that linearising it changes nothing."""
    by = np.ones(x.shape[:-1]), np.log(x[..., 1]), np.log(x[..., 2])
    values = th[..., :1] * by[0] + th[..., 1:2] * by[1] + th[..., 2:] * by[2]
    return LinearizedCurve(values, len(by), lambda: iter(by))


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """Modes that were measured, by which board (None: the one that is predicted), and the noise of each row."""

    modes: Sequence[int]
    boards: Sequence[str | None]
    noise_sd: Floats

    @property
    def shared(self) -> bool:
        return any(board is not None for board in self.boards)

    def rows(self, log: Floats) -> QuantityRows:
        apart = OFFSET_SD if self.shared else 0.0
        here = np.array([board is None for board in self.boards], dtype=np.float64)
        return QuantityRows(X[list(self.modes)], log, self.noise_sd, apart**2 * self.same, apart**2 * here, apart, here)

    @property
    def same(self) -> Floats:
        """1 where two rows are of one board, shape (n, n)."""
        n = len(self.modes)
        pairs = itertools.product(self.boards, repeat=2)
        return np.array([a == b for a, b in pairs], dtype=np.float64).reshape(n, n)

    @property
    def alike(self) -> Float32Array:
        x = X[list(self.modes)]
        return misfit_correlation(x, x) * np.where(self.same, 1.0, KIND_CORRELATION).astype(np.float32)

    def settled(self, log: Floats) -> QuantityPosterior:
        return fit_quantity(line, self.rows(log), prior=PRIOR, misfit_sd=MISFIT_SD, noise_sd=NOISE_SD, alike=self.alike)


@dataclass(frozen=True, slots=True, eq=False)
class Joint:
    """The Gaussian of rows and asked modes together, made step by step from what it is a sum of."""

    mean: Floats
    covariance: Floats
    rows: int


def joint(case: Case) -> Joint:
    """Parameters, a misfit per mode and an offset per board, all independent, joined by one matrix; no noise."""
    modes = [*case.modes, *ASKED]
    boards = [*case.boards, *[None] * len(ASKED)]
    linear = line(PRIOR.mean, X[modes])
    mean, by = linear.values, linear.stack_slopes()
    covariance = by.T @ np.linalg.inv(PRIOR.precision) @ by
    for i, j in itertools.product(range(len(modes)), repeat=2):
        kin = 1.0 if boards[i] == boards[j] else KIND_CORRELATION
        covariance[i, j] += MISFIT_SD**2 * kin * alike_of_modes(modes[i], modes[j])
        covariance[i, j] += OFFSET_SD**2 * (case.shared and boards[i] == boards[j])
    return Joint(mean, covariance, len(case.modes))


@cache
def alike_of_modes(i: int, j: int) -> float:
    return alike_by_hand(X[i], X[j])


def alike_by_hand(a: Floats, b: Floats) -> float:
    def matern(d: float) -> float:
        return float((1 + np.sqrt(5) * d + 5 * d * d / 3) * np.exp(-np.sqrt(5) * d))

    each = [abs(np.log(p / q)) / length for p, q, length in zip(a, b, LENGTH_SCALES, strict=True)]
    return (1 - SINGLE_KNOB_SHARE) * matern(float(np.hypot.reduce(each))) + SINGLE_KNOB_SHARE * float(
        np.mean([*map(matern, each)])
    )


def conditioned(whole: Joint, noise_var: Floats, log: Floats) -> tuple[Floats, Floats]:
    """Mean and variance of the asked modes, given the noisy rows."""
    n = whole.rows
    seen = whole.covariance[:n, :n] + np.diag(noise_var)
    across = whole.covariance[n:, :n]
    mean = whole.mean[n:] + across @ np.linalg.solve(seen, log - whole.mean[:n])
    covariance = whole.covariance[n:, n:] - across @ np.linalg.solve(seen, across.T)
    return mean, np.diag(covariance)


def predicted(side: QuantityPosterior) -> tuple[Floats, Floats]:
    linear, alike = line(side.best, X[ASKED]), correlate_with_rows(side.rows, X[ASKED])
    return predict_mean_log(side, linear, alike), predict_sd_log(side, linear, alike)


def whitened_square(whole: Joint, noise_var: Floats, log: Floats) -> float:
    n = whole.rows
    off = log - whole.mean[:n]
    return float(off @ np.linalg.solve(whole.covariance[:n, :n] + np.diag(noise_var), off))


BOARDS = st.sampled_from([None, "a", "b"])
CASES = st.lists(st.tuples(st.integers(0, len(X) - 1), BOARDS), max_size=9, unique=True).flatmap(
    lambda rows: st.builds(
        lambda noise: Case([m for m, _ in rows], [b for _, b in rows], np.array(noise, dtype=np.float64)),
        st.lists(st.floats(0.004, 0.2), min_size=len(rows), max_size=len(rows)),
    )
)


def drawn(case: Case, seed: int, loudness: float = 1.0) -> Floats:
    """Logs that the model itself might have given; a ``loudness`` above 1 makes outliers of some."""
    rng = np.random.default_rng(seed)
    whole = joint(case)
    n = whole.rows
    factor = np.linalg.cholesky(whole.covariance[:n, :n] + 1e-9 * np.eye(n))
    log: Floats = whole.mean[:n] + factor @ rng.standard_normal(n)
    return log + loudness * case.noise_sd * rng.standard_normal(n)


def robust_noise(case: Case, side: QuantityPosterior) -> Floats:
    """The noise variance of each row after the robust fit: larger the further it lies off the curve."""
    values = line(side.best, side.rows.x).values
    loose = np.square(case.noise_sd) + MISFIT_SD**2 + (OFFSET_SD**2 if case.shared else 0.0)
    weights = np.minimum(student_weights((side.rows.log - values) / np.sqrt(loose)), 1.0)
    widened: Floats = np.square(case.noise_sd) + loose * (1.0 / weights - 1.0)
    return widened


@given(case=CASES, seed=st.integers(0, 99), loudness=st.sampled_from([1.0, 8.0]))
@settings(max_examples=60)
def test_predictions_are_those_of_brute_force_conditioning(case, seed, loudness):
    log = drawn(case, seed, loudness)
    side = case.settled(log)
    noise_var, whole = robust_noise(case, side), joint(case)

    mean, sd = predicted(side)

    true_mean, true_var = conditioned(whole, noise_var, log)
    rows = whole.covariance[: len(log), : len(log)] + np.diag(np.square(case.noise_sd))
    plain = np.linalg.solve(np.linalg.cholesky(rows), log - whole.mean[: len(log)])
    scale = np.sqrt(
        (SPREAD_PRIOR_ROWS + np.minimum(np.square(plain), OUTLIER_SD**2).sum()) / (SPREAD_PRIOR_ROWS + len(log))
    )
    np.testing.assert_allclose(mean, true_mean, atol=2e-5 * (1 + np.abs(log - whole.mean[: len(log)]).sum()))
    np.testing.assert_allclose(sd, scale * np.sqrt(true_var + NOISE_SD**2), rtol=5e-3)


@pytest.mark.parametrize("shared", [False, True])
def test_without_rows_the_prior_is_the_prediction(shared):
    none = np.empty(0)
    apart = OFFSET_SD if shared else 0.0
    rows = QuantityRows(np.empty((0, 4)), none, none, np.empty((0, 0)), none, apart, none)

    side = fit_quantity(line, rows, PRIOR, MISFIT_SD, NOISE_SD, misfit_correlation(rows.x, rows.x))
    mean, sd = predicted(side)

    linear = line(PRIOR.mean, X[ASKED])
    by = linear.stack_slopes()
    variance = np.diag(by.T @ np.linalg.inv(PRIOR.precision) @ by) + MISFIT_SD**2 + apart**2 + NOISE_SD**2
    np.testing.assert_allclose(mean, linear.values, atol=1e-6)
    np.testing.assert_allclose(sd, np.sqrt(variance), rtol=1e-4)
    assert side.log_evidence == 0.0
    assert side.scale == 1.0


@given(case=CASES)
def test_the_evidence_of_rows_on_the_curve_is_their_normal_density_but_for_a_constant(case):
    log = line(PRIOR.mean, X[list(case.modes)]).values
    whole = joint(case)
    n = whole.rows

    evidence = case.settled(log).log_evidence

    _, log_det = np.linalg.slogdet(whole.covariance[:n, :n] + np.diag(np.square(case.noise_sd)))
    assert evidence == pytest.approx(-0.5 * log_det, abs=1e-3)


@given(case=CASES.filter(lambda case: len(case.modes) > 0), move=st.floats(-0.06, 0.06))
def test_moving_the_prior_changes_the_evidence_as_the_normal_density_says(case, move):
    log = line(PRIOR.mean + move, X[list(case.modes)]).values
    whole, noise_var = joint(case), np.square(case.noise_sd)

    difference = (
        case.settled(log).log_evidence - case.settled(line(PRIOR.mean, X[list(case.modes)]).values).log_evidence
    )

    assert difference == pytest.approx(-0.5 * whitened_square(whole, noise_var, log), abs=1e-3, rel=1e-3)


def test_a_wild_row_hardly_moves_the_others():
    modes = [*range(0, 630, 40)]
    case = Case(modes, [None] * len(modes), np.full(len(modes), 0.012))
    log = line(PRIOR.mean + 0.05, X[modes]).values
    wild = log.copy()
    wild[7] += 1.0

    moved = np.abs(predicted(case.settled(wild))[0] - predicted(case.settled(log))[0])

    assert moved.max() < 0.03
    assert np.median(moved) < 0.01


MODE_PAIRS = st.lists(st.tuples(*[st.floats(0.05, 1.0)] * 4), min_size=1, max_size=12)


@given(MODE_PAIRS)
def test_likeness_is_one_with_itself_symmetric_and_a_covariance(knobs):
    x = np.array(knobs)

    alike = np.asarray(misfit_correlation(x, x), dtype=np.float64)

    np.testing.assert_allclose(np.diag(alike), 1.0, rtol=1e-6)
    np.testing.assert_allclose(alike, alike.T, atol=1e-6)
    assert np.linalg.eigvalsh(alike).min() > -1e-5
    assert alike.min() >= 0.0
    assert alike.max() <= 1.0 + 1e-6


@given(MODE_PAIRS, MODE_PAIRS)
def test_likeness_is_the_matern_formula(some, others):
    x, seen = np.array(some), np.array(others)

    by_hand = [[alike_by_hand(a, b) for b in seen] for a in x]

    np.testing.assert_allclose(misfit_correlation(x, seen), by_hand, atol=1e-5)


@given(case=CASES, seed=st.integers(0, 99))
@settings(max_examples=20)
def test_several_priors_at_once_give_what_each_gives_alone(case, seed):
    rows, alike = case.rows(drawn(case, seed)), misfit_correlation(X[list(case.modes)], X[list(case.modes)])
    widths, misfits = np.array([1.0, 2.0, 4.0]), np.array([0.04, 0.04, 0.02])
    priors = GaussianPrior(np.tile(PRIOR.mean, (3, 1)), PRIOR.precision / widths[:, None, None] ** 2)

    together = fit_quantity(line, rows, priors, misfits, NOISE_SD, alike)
    means, sds = predicted(together)

    for i, misfit_sd in enumerate(misfits):
        prior = GaussianPrior(priors.mean[i], priors.precision[i])
        alone = fit_quantity(line, rows, prior, misfit_sd, NOISE_SD, alike)
        mean, sd = predicted(alone)
        np.testing.assert_allclose(together.log_evidence[i], alone.log_evidence, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(means[i], mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(sds[i], sd, rtol=1e-3)
        np.testing.assert_array_equal(together.select(np.array([i])).gain[0], together.gain[i])


# Several boards at once

POSTERIOR_FIELDS = (
    "best", "shift", "prior_cov", "slopes", "gain", "whitener", "misfit_sd", "log_evidence", "scale",
)  # fmt: skip


def nonlinear_problem(seed: int, count: int, shared: bool) -> QuantityProblem:
    """One board's log times in ``count`` modes under three priors, some of the rows of two other boards."""
    rng = np.random.default_rng(seed)
    truth = another_workload(rng)
    modes = rng.permutation(len(X))[:count]
    case = Case(modes.tolist(), [None] * count, rng.uniform(0.01, 0.05, count))
    if shared:
        case = dataclasses.replace(case, boards=[(None, "a", "b")[row % 3] for row in range(count)])
    log = linearize_log_time(truth.time, X[modes]).values + 0.05 * rng.standard_normal(count)
    log[rng.uniform(size=count) < 0.1] += 1.0
    means = np.stack([another_workload(rng).time for _ in range(3)])
    precision = np.eye(means.shape[1]) * np.array([4.0, 1.0, 0.25])[:, None, None]
    return QuantityProblem(
        case.rows(log),
        alike=case.alike,
        prior=GaussianPrior(means, precision),
        prior_cov=np.linalg.inv(precision),
        misfit_sd=np.array([0.04, 0.04, 0.02]),
    )


@given(
    seed=st.integers(0, 9999),
    counts=st.sampled_from([(0, 0, 0), (1, 7, 8), (8, 1, 5, 8), (9, 16, 12), (20, 17, 24, 18, 21)]),
    shared=st.booleans(),
    data=st.data(),
)
@settings(max_examples=40)
def test_boards_that_are_fitted_together_have_the_bits_of_each_alone(seed, counts, shared, data):
    order = data.draw(st.permutations(range(len(counts))))
    problems = [nonlinear_problem(seed + place, count, shared) for place, count in enumerate(counts)]
    bind = bind_curve(linearize_log_time)

    together = fit_quantities(bind, [problems[place] for place in order], NOISE_SD)

    for place, posterior in zip(order, together, strict=True):
        alone = fit_quantities(bind, [problems[place]], NOISE_SD)[0]
        assert posterior.rows is alone.rows is problems[place].rows
        for field in POSTERIOR_FIELDS:
            np.testing.assert_array_equal(getattr(posterior, field), getattr(alone, field), err_msg=field)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 20])
def test_rows_that_pad_a_fit_leave_no_trace_in_its_posterior(count):
    """The posterior has the sizes of its own rows, and its gain and whitener are those of the plain matrices."""
    problem = nonlinear_problem(count, count, shared=True)

    posterior = fit_quantities(bind_curve(linearize_log_time), [problem], NOISE_SD)[0]

    assert posterior.gain.shape == (3, count)
    assert posterior.whitener.shape == (3, count, count)
    assert posterior.slopes.shape == (3, 11, count)
    for member in range(3):
        linear = linearize_log_time(posterior.best[member], problem.rows.x)
        slopes, misfit = linear.stack_slopes(), problem.misfit_sd[member] ** 2
        kernel = slopes.T @ problem.prior_cov[member] @ slopes + misfit * problem.alike + problem.rows.offset
        loose = problem.rows.noise_sd**2 + misfit + np.diag(problem.rows.offset)
        weights = np.minimum(student_weights((problem.rows.log - linear.values) / np.sqrt(loose)), 1.0)
        noise = loose / weights - misfit - np.diag(problem.rows.offset)
        off = problem.rows.log - linear.values - posterior.shift[member] @ slopes
        gain = np.linalg.solve(kernel + np.diag(noise), off)
        np.testing.assert_allclose(posterior.slopes[member], slopes, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(posterior.gain[member], gain, rtol=1e-6, atol=1e-6)
        whitener = posterior.whitener[member]
        np.testing.assert_allclose(whitener.T @ whitener @ (kernel + np.diag(noise)), np.eye(count), atol=1e-6)
