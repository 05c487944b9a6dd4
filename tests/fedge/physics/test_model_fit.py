"""Fits recover a made-up board, from a whole table and from few, repeated and wrong measurements."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from contracts.boards import MAXN, another_workload, coefficients, grid

from fedge.physics.model_fit import (
    NOISE_TIME_SD,
    OFFSET_POWER_SD,
    OFFSET_TIME_SD,
    Prior,
    build_prior,
    fit_measurements,
    fit_table,
    idle_w_at_maxn,
    log_evidence,
    pool_measurements,
    predict,
    with_idle_w,
)
from fedge.physics.time_power_model import Coefficients, compute_power_w, compute_step_s
from fedge.types import Floats, Measurement, Modes

MODES = grid()


def _truth(coefficients: Coefficients) -> tuple[Floats, Floats]:
    return compute_step_s(coefficients, MAXN, MODES), compute_power_w(coefficients, MAXN, MODES)


def _measured(truth: tuple[Floats, Floats], rows: list[int], slower: float = 1.0) -> list[Measurement]:
    return [Measurement(MODES[i], 40, float(truth[0][i]) * slower, float(truth[1][i])) for i in rows]


def _mape(predicted: Floats, true: Floats) -> float:
    return float(np.mean(np.abs(predicted - true) / true))


def test_a_table_made_by_the_model_is_recovered_through_noise_and_bad_rows():
    rng = np.random.default_rng(2)
    seconds, watts = _truth(another_workload(rng))
    noisy_s = seconds * np.exp(0.01 * rng.standard_normal(len(MODES)))
    noisy_w = watts * np.exp(0.01 * rng.standard_normal(len(MODES)))
    noisy_s[::40] /= 3.0

    fitted = fit_table(MODES, MAXN, noisy_s, noisy_w)

    assert _mape(compute_step_s(fitted, MAXN, MODES), seconds) < 0.005
    assert _mape(compute_power_w(fitted, MAXN, MODES), watts) < 0.005


def test_a_table_of_one_core_count_and_three_rows_can_be_fitted():
    seconds, watts = _truth(coefficients())
    rows = [-1, -2, -3]

    fitted = fit_table(Modes(MODES.knobs[rows]), MAXN, seconds[rows], watts[rows])

    assert _mape(compute_step_s(fitted, MAXN, Modes(MODES.knobs[rows])), seconds[rows]) < 0.05


def test_without_measurements_the_prior_predicts():
    seconds, watts = _truth(coefficients())

    predictions = predict(fit_measurements(build_prior(coefficients()), MAXN, []), MODES)

    np.testing.assert_allclose(predictions.step_s, seconds)
    np.testing.assert_allclose(predictions.power_w, watts)
    assert 0.25 < np.median(predictions.step_s_sd_log) < 0.6
    assert 0.08 < np.median(predictions.power_w_sd_log) < 0.25


def test_measurements_reduce_the_error_on_modes_not_measured():
    errors = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        truth = _truth(another_workload(rng))
        rows = rng.permutation(len(MODES))
        held_out = rows[50:]
        posteriors = [
            fit_measurements(build_prior(coefficients()), MAXN, _measured(truth, list(rows[:n])))
            for n in (0, 3, 10, 50)
        ]
        predictions = [predict(p, Modes(MODES.knobs[held_out])) for p in posteriors]
        errors.append(
            [(_mape(p.step_s, truth[0][held_out]), _mape(p.power_w, truth[1][held_out])) for p in predictions]
        )
    median = np.median(errors, axis=0)

    assert (np.diff(median, axis=0) < 0).all()
    assert median[2, 0] < 0.05
    assert median[2, 1] < 0.03
    assert median[3].max() < 0.015


def test_nine_intervals_in_ten_hold_the_truth():
    inside = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        truth = _truth(another_workload(rng))
        predictions = predict(
            fit_measurements(build_prior(coefficients()), MAXN, _measured(truth, list(range(0, 600, 90)))), MODES
        )
        inside.append(np.mean(np.abs(np.log(truth[0] / predictions.step_s)) < 1.645 * predictions.step_s_sd_log))

    assert np.mean(inside) > 0.85


def test_one_wrong_measurement_among_ten_is_mostly_ignored():
    truth = _truth(another_workload(np.random.default_rng(5)))
    rows = list(range(5, 600, 60))
    good = _measured(truth, rows)
    wrong = [*good[:4], *_measured(truth, [rows[4]], slower=1.8), *good[5:]]

    clean, spoilt = (
        predict(fit_measurements(build_prior(coefficients()), MAXN, seen), MODES) for seen in (good, wrong)
    )

    assert _mape(spoilt.step_s, truth[0]) < _mape(clean.step_s, truth[0]) + 0.03


def test_a_throttled_measurement_hardly_moves_a_mode_that_was_measured_unthrottled():
    truth = _truth(coefficients())
    plain = _measured(truth, [600])
    hot = Measurement(MODES[600], 40, 1.25 * plain[0].step_s, 0.8 * plain[0].power_w, throttled=True)

    predictions = predict(fit_measurements(build_prior(coefficients()), MAXN, [*plain, hot]), Modes(MODES.knobs[[600]]))

    assert predictions.step_s[0] == pytest.approx(plain[0].step_s, rel=0.01)


def test_repeating_a_mode_counts_for_that_mode_and_not_for_the_whole_board():
    truth = _truth(another_workload(np.random.default_rng(6)))
    once = predict(fit_measurements(build_prior(coefficients()), MAXN, _measured(truth, [300])), MODES)

    often = predict(fit_measurements(build_prior(coefficients()), MAXN, _measured(truth, [300] * 50)), MODES)

    assert often.step_s_sd_log[300] <= once.step_s_sd_log[300]
    assert np.median(often.step_s_sd_log) > 0.8 * np.median(once.step_s_sd_log)


BY_BOARD = [("a", 5), (None, 5), ("a", 90), ("b", 300), (None, 401)]


def test_rows_of_one_board_share_its_offset_and_rows_of_two_do_not():
    truth = _truth(coefficients())
    seen = [replace(_measured(truth, [row])[0], board=board) for board, row in BY_BOARD]

    rows = pool_measurements(seen, MAXN)

    for quantity, sd in ((rows.time, OFFSET_TIME_SD), (rows.power, OFFSET_POWER_SD)):
        for (i, (a, _)), (j, (b, _)) in itertools.product(enumerate(BY_BOARD), repeat=2):
            assert quantity.offset[i, j] == (pytest.approx(sd**2) if a == b else 0.0)
        np.testing.assert_allclose(quantity.offset_here, [0.0, sd**2, 0.0, 0.0, sd**2])
        assert quantity.offset_sd == sd


def test_a_mode_that_two_boards_measured_is_two_rows_and_repeats_of_one_board_one():
    truth = _truth(coefficients())
    own = _measured(truth, [7, 7, 7])
    other = [replace(measurement, board="b", step_s=2 * measurement.step_s) for measurement in own[:2]]

    rows = pool_measurements([*own, *other], MAXN).time

    np.testing.assert_allclose(rows.log, np.log([truth[0][7], 2 * truth[0][7]]))
    np.testing.assert_allclose(rows.noise_sd, NOISE_TIME_SD / np.sqrt([3, 2]))


def test_a_board_that_measures_alone_has_no_offset():
    rows = pool_measurements(_measured(_truth(coefficients()), [1, 5, 9]), MAXN)

    for quantity in (rows.time, rows.power):
        assert quantity.offset_sd == 0.0
        assert not quantity.offset.any()
        assert not quantity.offset_here.any()


def test_a_loose_scale_lets_one_measurement_move_every_mode():
    base = coefficients()
    tight = Prior(base, np.full(11, 0.01), np.full(13, 0.01), time_scale_sd=1.0, power_scale_sd=0.3)
    truth = _truth(base)
    seen = _measured((2.0 * truth[0], 1.2 * truth[1]), [10])

    predictions = predict(fit_measurements(tight, MAXN, seen), MODES)

    np.testing.assert_allclose(predictions.step_s, 2.0 * truth[0], rtol=0.03)
    np.testing.assert_allclose(predictions.power_w, 1.2 * truth[1], rtol=0.03)


def test_the_true_prior_has_more_evidence_than_a_wrong_one():
    base = coefficients()
    wrong = Coefficients(base.time + 1.0, base.power)
    seen = _measured(_truth(base), list(range(0, 600, 60)))

    true_evidence, wrong_evidence = (log_evidence(fit_measurements(build_prior(c), MAXN, seen)) for c in (base, wrong))

    assert true_evidence > wrong_evidence
    assert log_evidence(fit_measurements(build_prior(base), MAXN, [])) == 0.0


def test_static_watts_make_up_the_idle_power_that_was_asked():
    raised = with_idle_w(coefficients(), 20.0)

    assert idle_w_at_maxn(coefficients()) == pytest.approx(12.0)
    assert idle_w_at_maxn(raised) == pytest.approx(20.0)
    assert np.exp(with_idle_w(coefficients(), 0.5).power[0]) > 0
