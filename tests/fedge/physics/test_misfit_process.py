"""A linearised curve with misfit and offsets predicts what brute-force Gaussian conditioning says, and its evidence."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from contracts.boards import MAXN, grid
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.physics.misfit_process import (
    LENGTH_SCALES,
    OUTLIER_SD,
    SINGLE_KNOB_SHARE,
    SPREAD_PRIOR_ROWS,
    QuantityPosterior,
    QuantityRows,
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


def line(th: Floats, x: Floats) -> tuple[Floats, Floats]:
    """A curve that is straight in its parameters, so that linearising it changes nothing."""
    by = np.stack([np.ones(len(x)), np.log(x[:, 1]), np.log(x[:, 2])])
    return th @ by, by


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

    def settled(self, log: Floats) -> QuantityPosterior:
        x = X[list(self.modes)]
        return fit_quantity(
            line,
            self.rows(log),
            PRIOR,
            MISFIT_SD,
            NOISE_SD,
            misfit_correlation(x, x) * np.where(self.same, 1.0, KIND_CORRELATION).astype(np.float32),
        )


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
    mean, by = line(PRIOR.mean, X[modes])
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
    return predicted_from(side, *line(side.best, X[ASKED]))


def predicted_from(side: QuantityPosterior, values: Floats, slopes: Floats) -> tuple[Floats, Floats]:
    alike = correlate_with_rows(side.rows, X[ASKED])
    return predict_mean_log(side, values, slopes, alike), predict_sd_log(side, slopes, alike)


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
    values, _ = line(side.best, side.rows.x)
    loose = np.square(case.noise_sd) + MISFIT_SD**2 + (OFFSET_SD**2 if case.shared else 0.0)
    weights = np.minimum(student_weights((side.rows.log - values) / np.sqrt(loose)), 1.0)
    widened: Floats = np.square(case.noise_sd) + loose * (1.0 / weights - 1.0)
    return widened


@given(case=CASES, seed=st.integers(0, 99), loudness=st.sampled_from([1.0, 8.0]))
@settings(max_examples=60)
def test_predictions_are_those_of_brute_force_conditioning(case: Case, seed: int, loudness: float) -> None:
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


def test_rows_on_the_curve_keep_their_own_noise() -> None:
    case = Case([3, 90, 400, 611], [None] * 4, np.array([0.01, 0.02, 0.03, 0.04]))
    log = line(PRIOR.mean + 0.1, X[[3, 90, 400, 611]])[0]

    mean, sd = predicted(case.settled(log))

    true_mean, true_var = conditioned(joint(case), np.square(case.noise_sd), log)
    scale = sd / np.sqrt(true_var + NOISE_SD**2)
    np.testing.assert_allclose(mean, true_mean, atol=1e-5)
    np.testing.assert_allclose(scale, scale[0], rtol=1e-3)
    assert scale[0] < 1


@pytest.mark.parametrize("shared", [False, True])
def test_without_rows_the_prior_is_the_prediction(shared: bool) -> None:
    none = np.empty(0)
    apart = OFFSET_SD if shared else 0.0
    rows = QuantityRows(np.empty((0, 4)), none, none, np.empty((0, 0)), none, apart, none)

    side = fit_quantity(line, rows, PRIOR, MISFIT_SD, NOISE_SD, misfit_correlation(rows.x, rows.x))
    mean, sd = predicted(side)

    values, by = line(PRIOR.mean, X[ASKED])
    variance = np.diag(by.T @ np.linalg.inv(PRIOR.precision) @ by) + MISFIT_SD**2 + apart**2 + NOISE_SD**2
    np.testing.assert_allclose(mean, values, atol=1e-6)
    np.testing.assert_allclose(sd, np.sqrt(variance), rtol=1e-4)
    assert side.log_evidence == 0.0
    assert side.scale == 1.0


@given(case=CASES)
def test_the_evidence_of_rows_on_the_curve_is_their_normal_density_but_for_a_constant(case: Case) -> None:
    log = line(PRIOR.mean, X[list(case.modes)])[0]
    whole = joint(case)
    n = whole.rows

    evidence = case.settled(log).log_evidence

    _, log_det = np.linalg.slogdet(whole.covariance[:n, :n] + np.diag(np.square(case.noise_sd)))
    assert evidence == pytest.approx(-0.5 * log_det, abs=1e-3)


@given(case=CASES.filter(lambda case: len(case.modes) > 0), move=st.floats(-0.06, 0.06))
def test_moving_the_prior_changes_the_evidence_as_the_normal_density_says(case: Case, move: float) -> None:
    log = line(PRIOR.mean + move, X[list(case.modes)])[0]
    whole, noise_var = joint(case), np.square(case.noise_sd)

    difference = case.settled(log).log_evidence - case.settled(line(PRIOR.mean, X[list(case.modes)])[0]).log_evidence

    assert difference == pytest.approx(-0.5 * whitened_square(whole, noise_var, log), abs=1e-3, rel=1e-3)


def test_a_prior_that_explains_rows_has_more_evidence_than_one_that_does_not() -> None:
    case = Case([0, 77, 300, 500, 629], [None] * 5, np.full(5, 0.01))
    near, far = (case.settled(line(PRIOR.mean + move, X[list(case.modes)])[0]).log_evidence for move in (0.05, 2.0))

    assert near > far + 2


def test_the_further_rows_lie_off_the_wider_is_the_spread() -> None:
    case = Case([0, 77, 300, 500, 629], [None] * 5, np.full(5, 0.01))
    log = line(PRIOR.mean, X[list(case.modes)])[0]
    zigzag = np.array([1.0, -1.0, 1.0, -1.0, 1.0])

    scales = [case.settled(log + size * zigzag).scale for size in (0.0, 0.03, 0.06)]

    assert scales[0] == pytest.approx(np.sqrt(SPREAD_PRIOR_ROWS / (SPREAD_PRIOR_ROWS + 5)), rel=1e-3)
    assert scales[0] < scales[1] < scales[2]


def test_a_wild_row_hardly_moves_the_others() -> None:
    modes = [*range(0, 630, 40)]
    case = Case(modes, [None] * len(modes), np.full(len(modes), 0.012))
    log = line(PRIOR.mean + 0.05, X[modes])[0]
    wild = log.copy()
    wild[7] += 1.0

    moved = np.abs(predicted(case.settled(wild))[0] - predicted(case.settled(log))[0])

    assert moved.max() < 0.03
    assert np.median(moved) < 0.01


MODE_PAIRS = st.lists(st.tuples(*[st.floats(0.05, 1.0)] * 4), min_size=1, max_size=12)


@given(MODE_PAIRS)
def test_likeness_is_one_with_itself_symmetric_and_a_covariance(knobs: list[tuple[float, ...]]) -> None:
    x = np.array(knobs)

    alike = np.asarray(misfit_correlation(x, x), dtype=np.float64)

    np.testing.assert_allclose(np.diag(alike), 1.0, rtol=1e-6)
    np.testing.assert_allclose(alike, alike.T, atol=1e-6)
    assert np.linalg.eigvalsh(alike).min() > -1e-5
    assert alike.min() >= 0.0
    assert alike.max() <= 1.0 + 1e-6


@given(MODE_PAIRS, MODE_PAIRS)
def test_likeness_is_the_matern_formula(some: list[tuple[float, ...]], others: list[tuple[float, ...]]) -> None:
    x, seen = np.array(some), np.array(others)

    by_hand = [[alike_by_hand(a, b) for b in seen] for a in x]

    np.testing.assert_allclose(misfit_correlation(x, seen), by_hand, atol=1e-5)


@pytest.mark.parametrize("knob", range(4))
def test_likeness_falls_with_the_distance_along_every_knob(knob: int) -> None:
    x = np.ones((20, 4))
    x[:, knob] = np.geomspace(1.0, 0.05, 20)

    alike = misfit_correlation(x, np.ones((1, 4)))[:, 0]

    assert (np.diff(alike) < 0).all()


def test_modes_that_share_a_knob_stay_a_little_alike_however_far_the_others_are() -> None:
    same_gpu = np.array([[0.01, 0.01, 1.0, 0.01]])
    nothing_shared = np.full((1, 4), 0.01)

    assert misfit_correlation(same_gpu, np.ones((1, 4)))[0, 0] == pytest.approx(SINGLE_KNOB_SHARE / 4, abs=0.01)
    assert misfit_correlation(nothing_shared, np.ones((1, 4)))[0, 0] < 0.01


@given(case=CASES, seed=st.integers(0, 99))
@settings(max_examples=20)
def test_several_priors_at_once_give_what_each_gives_alone(case: Case, seed: int) -> None:
    rows, alike = case.rows(drawn(case, seed)), misfit_correlation(X[list(case.modes)], X[list(case.modes)])
    widths, misfits = np.array([1.0, 2.0, 4.0]), np.array([0.04, 0.04, 0.02])
    priors = GaussianPrior(np.tile(PRIOR.mean, (3, 1)), PRIOR.precision / widths[:, None, None] ** 2)

    def straight(th: Floats, x: Floats) -> tuple[Floats, Floats]:
        by = line(PRIOR.mean, x)[1]
        return th @ by, np.broadcast_to(by, (*th.shape[:-1], *by.shape))

    together = fit_quantity(straight, rows, priors, misfits, NOISE_SD, alike)
    values, slopes = straight(together.best, X[ASKED])
    means, sds = predicted_from(together, values, slopes)

    for i, misfit_sd in enumerate(misfits):
        prior = GaussianPrior(priors.mean[i], priors.precision[i])
        alone = fit_quantity(straight, rows, prior, misfit_sd, NOISE_SD, alike)
        mean, sd = predicted_from(alone, *straight(alone.best, X[ASKED]))
        np.testing.assert_allclose(together.log_evidence[i], alone.log_evidence, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(means[i], mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(sds[i], sd, rtol=1e-3)
        np.testing.assert_array_equal(together.select(np.array([i])).gain[0], together.gain[i])
