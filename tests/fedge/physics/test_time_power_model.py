"""The physical model behaves like a board: faster clocks never slow it down, and cost power."""

from __future__ import annotations

import numpy as np
import pytest
from contracts.boards import MAXN, another_workload, coefficients, grid
from hypothesis import given
from hypothesis import strategies as st

from fedge.physics.log_derivatives import LinearizedCurve, linearize_log_power, linearize_log_time
from fedge.physics.time_power_model import (
    CORES,
    CPU,
    GPU,
    MEM,
    POWER_NAMES,
    TIME_NAMES,
    Coefficients,
    as_knob_table,
    compute_idle_ratio,
    compute_power_w,
    compute_step_s,
    compute_time_parts,
    knob_shares,
    q_norm,
    tabulate_modes,
    tabulate_shares,
)
from fedge.types import Floats, Modes

KNOBS = ("cores", "cpu_mhz", "gpu_mhz", "mem_mhz")


def _coefficients(time: list[float], power: list[float]) -> Coefficients:
    base = coefficients()
    return Coefficients(base.time + np.array(time), base.power + np.array(power))


ANY = st.builds(
    _coefficients,
    st.lists(st.floats(-2, 2), min_size=len(TIME_NAMES), max_size=len(TIME_NAMES)),
    st.lists(st.floats(-2, 2), min_size=len(POWER_NAMES), max_size=len(POWER_NAMES)),
)


@pytest.mark.parametrize("knob", range(4), ids=KNOBS)
@given(coefficients=ANY)
def test_raising_a_knob_never_makes_a_step_slower(knob, coefficients):
    low = grid()
    high = low.knobs.copy()
    high[:, knob] = np.minimum(high[:, knob] * 1.3, high[:, knob].max())

    slower, faster = compute_step_s(coefficients, MAXN, low), compute_step_s(coefficients, MAXN, Modes(high))

    assert (faster <= slower * (1 + 1e-9)).all()


@given(coefficients=ANY)
def test_idle_power_falls_with_every_knob_and_is_one_at_maxn(coefficients):
    modes = grid()
    shape = compute_idle_ratio(coefficients, MAXN, modes)

    assert shape[-1] == pytest.approx(1.0)
    for knob in range(4):
        high = modes.knobs.copy()
        high[:, knob] = high[:, knob].max()
        assert (shape <= compute_idle_ratio(coefficients, MAXN, Modes(high)) + 1e-12).all()


@given(coefficients=ANY)
def test_power_is_positive_and_above_the_static_part(coefficients):
    assert (compute_power_w(coefficients, MAXN, grid()) > np.exp(coefficients.power[0])).all()


def test_raising_the_gpu_clock_of_a_gpu_bound_step_costs_power():
    modes = Modes(np.array([[8, 2000, gpu, 3000] for gpu in (200, 500, 800, 1200)], dtype=np.float64))

    assert (np.diff(compute_power_w(coefficients(), MAXN, modes)) > 0).all()


def test_halving_all_clocks_doubles_a_step_without_fixed_time():
    base = coefficients()
    time = base.time.copy()
    time[TIME_NAMES.index("fixed_s")] = -40.0
    time[TIME_NAMES.index("prep_crowding")] = -40.0
    modes = Modes(np.array([[8, 2000, 1200, 3000], [8, 1000, 600, 1500]], dtype=np.float64))

    full, half = compute_step_s(Coefficients(time, base.power), MAXN, modes)

    assert half == pytest.approx(2 * full)


def test_the_norm_lies_between_the_sum_and_the_largest_term():
    a, b = np.array([3.0]), np.array([4.0])

    assert q_norm(1.0, a, b)[0] == pytest.approx(7.0)
    assert q_norm(2.0, a, b)[0] == pytest.approx(5.0)
    assert q_norm(500.0, a, b)[0] == pytest.approx(4.0)


X = knob_shares(MAXN, grid())
MODES = st.lists(st.integers(0, len(X) - 1), max_size=60)
"""Rows of modes, also the same one several times."""


def assert_same_curve(table: LinearizedCurve, plain: LinearizedCurve) -> None:
    """Tables are in single precision."""
    assert table.values.dtype == np.float32
    np.testing.assert_allclose(table.values, plain.values, rtol=1e-6, atol=2e-6)
    np.testing.assert_allclose(table.stack_slopes(), plain.stack_slopes(), rtol=1e-4, atol=2e-6)


def some_parameters(seed: int, members: int) -> tuple[Floats, Floats]:
    """Log time and log power parameters of one workload, or of some with a leading axis."""
    workloads = [another_workload(np.random.default_rng((seed, place))) for place in range(max(members, 1))]
    time, power = np.stack([one.time for one in workloads]), np.stack([one.power for one in workloads])
    return (time, power) if members else (time[0], power[0])


@given(rows=MODES, seed=st.integers(0, 999), members=st.integers(0, 3))
def test_the_time_of_a_table_is_that_of_its_shares(rows, seed, members):
    x, (time, _) = X[rows], some_parameters(seed, members)

    assert_same_curve(linearize_log_time(time, tabulate_shares(x)), linearize_log_time(time, x))


@given(rows=MODES, seed=st.integers(0, 999), members=st.integers(0, 3))
def test_the_power_of_a_table_is_that_of_its_shares(rows, seed, members):
    x, (_, power) = X[rows], some_parameters(seed, members)
    time = some_parameters(seed + 1, 0)[0]

    by_table, plain = (linearize_log_power(power, compute_time_parts(time, knobs)) for knobs in (tabulate_shares(x), x))

    assert_same_curve(by_table, plain)


@given(rows=MODES)
def test_every_mode_is_looked_up_in_its_own_combination_and_none_occurs_twice(rows):
    table = tabulate_shares(X[rows])

    for combined, knobs in ((table.host, (CORES, CPU, MEM)), (table.gpu, (GPU, MEM))):
        columns = list(knobs)
        single = X[rows][:, columns].T.astype(np.float32)
        np.testing.assert_array_equal(combined.expand(combined.x[:, columns].T), single)
        assert len(np.unique(combined.x[:, columns], axis=0)) == len(combined.x)


def test_a_grid_has_far_fewer_combinations_than_modes():
    table = tabulate_shares(X)

    assert (len(table.x), len(table.host.x), len(table.gpu.x)) == (630, 7 * 5 * 3, 6 * 3)


def test_of_plain_shares_every_mode_is_its_own_combination():
    x = np.stack([X[:5], X[5:10]])
    table = as_knob_table(x)

    assert table.host.expand(x) is table.gpu.expand(x) is x
    assert as_knob_table(table) is table


@pytest.mark.parametrize("count", [0, 1, 40])
def test_the_table_of_modes_is_the_table_of_their_shares_and_kept(count):
    modes = Modes(grid().knobs[:count])

    table = tabulate_modes(MAXN, modes)

    np.testing.assert_array_equal(table.x, knob_shares(MAXN, modes))
    assert tabulate_modes(MAXN, modes) is table
