"""Batch sizes fitted together follow each table, and lend one another what a table does not tell."""

from __future__ import annotations

import numpy as np
import pytest
from contracts.boards import MAXN, coefficients, grid

from fedge.physics.batch_series import DRIFT, fit_series
from fedge.physics.time_power_model import Coefficients, compute_power_w, compute_step_s
from fedge.types import Modes, ProfileTable

SIZES = (1, 4, 16)


def _truth(batch_size: int) -> Coefficients:
    base = coefficients()
    return Coefficients(base.time + np.log(batch_size) * DRIFT, base.power)


def _table(batch_size: int, noise: float = 0.01, modes: Modes | None = None, bad_rows: int = 0) -> ProfileTable:
    rng = np.random.default_rng(batch_size)
    modes, truth = modes or grid(), _truth(batch_size)
    seconds, watts = (
        f(truth, MAXN, modes) * np.exp(noise * rng.standard_normal(len(modes)))
        for f in (compute_step_s, compute_power_w)
    )
    watts[rng.permutation(len(modes))[:bad_rows]] /= 3.0
    return ProfileTable("board", "net", batch_size, modes, seconds, watts, "0" * 64, "folder/net.csv")


def _off(fitted: Coefficients, batch_size: int) -> tuple[float, float]:
    modes, truth = grid(), _truth(batch_size)
    return (
        float(np.mean(np.abs(compute_step_s(fitted, MAXN, modes) / compute_step_s(truth, MAXN, modes) - 1))),
        float(np.mean(np.abs(compute_power_w(fitted, MAXN, modes) / compute_power_w(truth, MAXN, modes) - 1))),
    )


def test_every_size_is_met_within_the_noise():
    for size, fitted in zip(SIZES, fit_series([_table(size) for size in SIZES], MAXN), strict=True):
        assert max(_off(fitted, size)) < 0.005


def test_implausible_rows_of_one_size_do_not_bend_it():
    tables = [_table(1), _table(4, bad_rows=50), _table(16)]

    assert max(_off(fit_series(tables, MAXN)[1], 4)) < 0.01


def test_a_size_with_few_modes_is_completed_by_its_neighbours():
    few = Modes(grid().knobs[:: len(grid()) // 6])

    fitted = fit_series([_table(1), _table(4, modes=few), _table(16)], MAXN)[1]

    assert max(_off(fitted, 4)) < 0.02


def test_between_two_sizes_the_logarithms_are_linear_enough_to_meet_a_size_left_out():
    one, _, sixteen = SIZES
    a, b = fit_series([_table(one), _table(sixteen)], MAXN)

    assert max(_off(Coefficients((a.time + b.time) / 2, (a.power + b.power) / 2), 4)) < 0.01


def test_only_seconds_that_grow_with_the_batch_drift():
    assert DRIFT.sum() == 3
    assert _truth(4).time - _truth(1).time == pytest.approx(np.log(4) * DRIFT)
