"""Calibration finds a made-up board's coefficients, and the measured boards within the promised errors."""

import dataclasses

import numpy as np
import pytest
from contracts.boards import MAXN, another_workload, grid

from fedge.costs.table_calibration import calibrate_tables_jointly, compute_fit_errors
from fedge.physics.time_power_model import compute_power_w, compute_step_s
from fedge.types import ProfileTable


def _table(noise: float) -> ProfileTable:
    rng = np.random.default_rng(1)
    truth, modes = another_workload(rng), grid()
    seconds = compute_step_s(truth, MAXN, modes) * np.exp(noise * rng.standard_normal(len(modes)))
    watts = compute_power_w(truth, MAXN, modes) * np.exp(noise * rng.standard_normal(len(modes)))
    return ProfileTable("board", "net", 16, modes, seconds, watts, "0" * 64, "folder/net.csv")


def test_the_error_of_a_model_made_table_is_its_noise():
    (profile,) = calibrate_tables_jointly([_table(noise=0.02)])

    assert (profile.time_mape, profile.power_mape) == pytest.approx((0.016, 0.016), abs=0.002)
    assert profile.residual_time_sd_log == pytest.approx(0.02, abs=0.003)
    assert (profile.evidence.table, profile.evidence.sha256, profile.evidence.rows) == (
        "net.csv",
        "0" * 64,
        len(grid()),
    )


def test_errors_count_every_row():
    errors = compute_fit_errors(np.array([1.0, 1.0, 1.0, 2.0]), np.array([1.0, 1.0, 1.0, 1.0]))

    assert errors.mape == pytest.approx(0.25)
    assert errors.p95_ape > 0.8
    assert errors.residual_sd_log == 0.0
    assert errors.rows_off == 1


def test_sizes_fitted_together_are_each_judged_on_their_own_table():
    small = _table(noise=0.02)
    large = dataclasses.replace(small, batch_size=32, step_s=2 * small.step_s, sha256="1" * 64)

    fits = calibrate_tables_jointly([small, large])

    assert [(done.batch_size, done.evidence.sha256) for done in fits] == [(16, "0" * 64), (32, "1" * 64)]
    assert [done.time_mape for done in fits] == pytest.approx([0.016, 0.016], abs=0.003)
