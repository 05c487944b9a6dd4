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
    build_prior,
    fit_pooled,
    fit_table,
    idle_w_at_maxn,
    log_evidence,
    pool_measurements,
    predict_many,
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


def test_measurements_reduce_the_error_on_modes_not_measured():
    errors = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        truth = _truth(another_workload(rng))
        rows = rng.permutation(len(MODES))
        held_out = rows[50:]
        seen = [pool_measurements(_measured(truth, list(rows[:n])), MAXN) for n in (0, 3, 10, 50)]
        posteriors = [fit_pooled(build_prior(coefficients()), MAXN, one) for one in seen]
        predictions = [predict_many([one], Modes(MODES.knobs[held_out]))[0] for one in posteriors]
        errors.append(
            [(_mape(p.step_s, truth[0][held_out]), _mape(p.power_w, truth[1][held_out])) for p in predictions]
        )
        assert log_evidence(posteriors[0]) == 0.0

    median = np.median(errors, axis=0)
    assert (np.diff(median, axis=0) < 0).all()
    assert median[2, 0] < 0.05
    assert median[2, 1] < 0.03
    assert median[3].max() < 0.015


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


def test_a_row_counts_as_noisy_as_it_scatters_once_that_is_more_than_usual():
    rows = [Measurement(MAXN, 9, 0.1, 9.0, time_se_log=se, power_se_log=se) for se in (0.0, 0.03, 0.2)]
    noise = [pool_measurements([row], MAXN).time.noise_sd[0] for row in rows]

    assert noise == [NOISE_TIME_SD, NOISE_TIME_SD, 0.2]


def test_a_board_that_measures_alone_has_no_offset():
    rows = pool_measurements(_measured(_truth(coefficients()), [1, 5, 9]), MAXN)

    for quantity in (rows.time, rows.power):
        assert quantity.offset_sd == 0.0
        assert not quantity.offset.any()
        assert not quantity.offset_here.any()


def test_static_watts_make_up_the_idle_power_that_was_asked():
    raised = with_idle_w(coefficients(), 20.0)

    assert idle_w_at_maxn(coefficients()) == pytest.approx(12.0)
    assert idle_w_at_maxn(raised) == pytest.approx(20.0)
    assert np.exp(with_idle_w(coefficients(), 0.5).power[0]) > 0
