"""A reference's residuals are its own at its own modes, fade away from them, and a bad table is believed less."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from contracts.boards import MAXN, another_workload, grid, made_up_table
from hypothesis import given
from hypothesis import strategies as st

from fedge.physics.prior_candidates import LARGEST_RESIDUAL, RESIDUAL_REACH, fit_reference
from fedge.physics.time_power_model import compute_power_w, compute_step_s, knob_shares
from fedge.types import Floats, Modes, ProfileTable

SMOOTH = made_up_table(another_workload(np.random.default_rng(4)))
X = knob_shares(MAXN, SMOOTH.modes)


def changed(table: ProfileTable, log_s: Floats | float, log_w: Floats | float = 0.0) -> ProfileTable:
    return dataclasses.replace(table, step_s=table.step_s * np.exp(log_s), power_w=table.power_w * np.exp(log_w))


def noisy(sd: float, seed: int = 0) -> ProfileTable:
    rng = np.random.default_rng(seed)
    return changed(SMOOTH, sd * rng.standard_normal(len(X)), sd * rng.standard_normal(len(X)))


def left_over(table: ProfileTable) -> Floats:
    """Log measured minus log modelled by the table's own fit, time and power (2, n)."""
    fitted = fit_reference(table, MAXN).coefficients
    time = np.log(table.step_s) - np.log(compute_step_s(fitted, MAXN, table.modes))
    power = np.log(table.power_w) - np.log(compute_power_w(fitted, MAXN, table.modes))
    return np.stack([time, power])


ROUGH = noisy(0.05)


def test_at_the_tables_own_modes_the_residuals_are_its_own():
    at = fit_reference(ROUGH, MAXN).residuals(X)

    np.testing.assert_allclose(at, np.clip(left_over(ROUGH), -LARGEST_RESIDUAL, LARGEST_RESIDUAL), atol=1e-12)
    assert 0.04 < at.std() < 0.06


def test_a_table_made_by_the_model_leaves_nothing_over():
    assert np.abs(fit_reference(SMOOTH, MAXN).residuals(X)).max() < 0.01
    assert fit_reference(SMOOTH, MAXN).log_credibility == pytest.approx(0.0, abs=1e-9)


@given(st.lists(st.tuples(*[st.floats(0.05, 2.0)] * 4), min_size=1, max_size=8))
def test_elsewhere_they_are_those_of_the_nearest_values_damped_by_the_distance(knobs):
    own = np.clip(left_over(ROUGH), -LARGEST_RESIDUAL, LARGEST_RESIDUAL)
    by_hand = []
    for mode in np.array(knobs):
        nearest = [
            min(np.unique(axis), key=lambda value: abs(np.log(value / wanted)))
            for axis, wanted in zip(X.T, mode, strict=True)
        ]
        row = int(np.flatnonzero(np.isclose(X, nearest).all(axis=1))[0])
        by_hand.append(own[:, row] * np.exp(-np.square(np.log(mode / X[row])).sum() / RESIDUAL_REACH**2))

    np.testing.assert_allclose(fit_reference(ROUGH, MAXN).residuals(np.array(knobs)).T, by_hand, atol=1e-9)


def test_a_combination_that_the_table_does_not_have_gets_no_residual():
    kept = np.ones(len(X), dtype=np.bool_)
    kept[300] = False
    table = dataclasses.replace(
        ROUGH, modes=Modes(grid().knobs[kept]), step_s=ROUGH.step_s[kept], power_w=ROUGH.power_w[kept]
    )

    np.testing.assert_array_equal(fit_reference(table, MAXN).residuals(X[[300]]), [[0.0], [0.0]])
    assert (fit_reference(table, MAXN).residuals(X[[299]]) != 0).all()


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_table_of_few_rows_can_be_studied(rows):
    table = dataclasses.replace(
        SMOOTH, modes=Modes(grid().knobs[:rows]), step_s=SMOOTH.step_s[:rows], power_w=SMOOTH.power_w[:rows]
    )

    reference = fit_reference(table, MAXN)

    assert np.isfinite(reference.residuals(X)).all()
    assert np.isfinite(reference.coefficients.time).all()
    assert reference.log_credibility <= 0


def test_one_core_count_and_one_memory_clock_are_enough():
    some = (grid().knobs[:, 0] == 8) & (grid().knobs[:, 3] == 3000.0)
    table = dataclasses.replace(
        ROUGH, modes=Modes(grid().knobs[some]), step_s=ROUGH.step_s[some], power_w=ROUGH.power_w[some]
    )

    at = fit_reference(table, MAXN).residuals(knob_shares(MAXN, table.modes))

    np.testing.assert_allclose(at, left_over(table), atol=1e-12)


def test_bad_rows_are_cut():
    wild = np.zeros(len(X))
    wild[[50, 300]] = np.log(3.0), -np.log(3.0)

    at = fit_reference(changed(ROUGH, wild), MAXN).residuals(X)

    np.testing.assert_allclose(at[0, [50, 300]], [LARGEST_RESIDUAL, -LARGEST_RESIDUAL])
    assert np.abs(at).max() <= LARGEST_RESIDUAL


def test_the_rougher_a_table_the_less_it_is_believed():
    credible = [fit_reference(noisy(sd), MAXN).log_credibility for sd in (0.03, 0.1, 0.2, 0.4)]

    assert credible[0] == pytest.approx(0.0, abs=1e-9)
    assert (np.diff(credible) < -0.5).all()


def test_a_table_is_studied_once():
    assert fit_reference(SMOOTH, MAXN) is fit_reference(SMOOTH, MAXN)


@pytest.mark.parametrize("knob", [1, 2, 3])
def test_a_table_of_a_board_with_other_top_clocks_is_of_another_kind(knob):
    knobs = grid().knobs.copy()
    knobs[:, knob] *= 0.6
    elsewhere = dataclasses.replace(ROUGH, modes=Modes(knobs))

    reference = fit_reference(elsewhere, MAXN)

    assert fit_reference(ROUGH, MAXN).is_same_kind
    assert not reference.is_same_kind
    np.testing.assert_allclose(reference.coefficients.time, fit_reference(ROUGH, MAXN).coefficients.time)


def test_clocks_that_are_rounded_otherwise_are_of_the_same_kind():
    knobs = grid().knobs * np.array([1.0, 1.01, 0.98, 1.0])

    assert fit_reference(dataclasses.replace(ROUGH, modes=Modes(knobs)), MAXN).is_same_kind
