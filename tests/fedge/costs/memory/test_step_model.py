"""Memory and time models, and the robust fit of relative errors behind them."""

from __future__ import annotations

import numpy as np
import pytest

from fedge.costs.memory.step_model import (
    MEMORY_PRIOR,
    MemoryModel,
    TimeModel,
    balance_weights,
    fit_memory_model,
    fit_relative,
    fit_time_model,
)


def test_memory_is_seen_between_the_floor_and_the_full_board():
    model = MemoryModel(np.array([1.0]), 1600.0, 6200.0)
    need_mb = model.need_mb(np.array([[100.0], [3000.0], [9000.0]]))
    assert need_mb.tolist() == [100.0, 3000.0, 9000.0]
    assert model.clip_to_board_mb(need_mb).tolist() == [1600.0, 3000.0, 6200.0]


def test_steps_at_the_floor_and_of_a_full_board_are_not_fitted_to():
    rng = np.random.default_rng(0)
    terms = np.column_stack([np.ones(60), *(rng.uniform(10.0, 900.0, (5, 60)))])
    truth = np.array([1350.0, 3.0, 1.4, 0.5, 5.0, 2.0])
    memory_mb = np.clip(terms @ truth, 1600.0, 6200.0)
    networks = np.repeat(["a", "b"], 30)
    model = fit_memory_model(terms, memory_mb, networks, 6200.0)
    shows = memory_mb < 6000
    assert model.need_mb(terms)[shows] == pytest.approx(memory_mb[shows], rel=0.05)


def test_without_a_telling_step_the_prior_stands():
    model = fit_memory_model(np.ones((4, 6)), np.full(4, 1600.0), np.array(["a"] * 4), 6200.0)
    assert model.coefficients == pytest.approx(MEMORY_PRIOR)


def test_a_step_takes_what_launching_or_computing_takes_whichever_is_more():
    model = TimeModel(np.array([1.0]), 2.0)
    step_ms = model.step_ms(np.array([[1.0], [1000.0], [20.0]]), np.full(3, 10.0))
    assert step_ms[0] == pytest.approx(20.0, rel=0.01)
    assert step_ms[1] == pytest.approx(1000.0, rel=0.01)
    assert 20.0 < step_ms[2] < 40.0


def test_time_is_found_beside_steps_that_only_launch():
    rng = np.random.default_rng(0)
    terms = rng.uniform(1.0, 500.0, (80, 2))
    terms[:20] *= 0.01
    truth = TimeModel(np.array([2.0, 0.5]), 2.0)
    layers = np.full(80, 10.0)
    step_ms = truth.step_ms(terms, layers)
    found = fit_time_model(terms, step_ms, layers, np.tile(["a", "b"], 40))
    assert found.launch_ms == pytest.approx(2.0, rel=0.02)
    assert found.step_ms(terms, layers) == pytest.approx(step_ms, rel=0.03)


def test_without_noise_the_coefficients_are_found_and_outliers_are_not_followed():
    rng = np.random.default_rng(1)
    terms = rng.uniform(0.5, 2.0, (60, 3)) * np.array([1.0, 1e3, 1e-3])
    truth = np.array([5.0, 0.02, 300.0])
    target = terms @ truth
    target[:3] *= 6.0
    found = fit_relative(terms, target, np.ones(60), 0.03, pull=1e-8)
    assert found == pytest.approx(truth, rel=0.05)


def test_a_term_that_the_rows_do_not_show_keeps_its_prior():
    terms = np.column_stack([np.linspace(1.0, 2.0, 20), np.zeros(20)])
    found = fit_relative(terms, 3.0 * terms[:, 0], np.ones(20), 0.05, np.array([2.0, 7.0]), 1e-4)
    assert found == pytest.approx([3.0, 7.0], rel=1e-2)


def test_every_group_weighs_the_same():
    weights = balance_weights(np.array(["a", "b", "b", "b"]))
    assert weights[0] == pytest.approx(weights[1:].sum())
    assert weights.mean() == pytest.approx(1.0)
