"""A table of knob combinations gives the curves of plain shares, and looks every mode up in its own combination."""

from __future__ import annotations

import numpy as np
import pytest
from contracts.boards import MAXN, another_workload, grid
from hypothesis import given
from hypothesis import strategies as st

from fedge.physics.knob_table import CORES, CPU, GPU, MEM, as_knob_table, tabulate_shares
from fedge.physics.log_derivatives import LinearizedCurve, linearize_log_power, linearize_log_time
from fedge.physics.time_power_model import compute_time_parts, knob_shares, tabulate_modes
from fedge.types import Floats, Modes

X = knob_shares(MAXN, grid())
MODES = st.lists(st.integers(0, len(X) - 1), max_size=60)
"""Rows of modes, also the same one several times."""


def assert_same_curve(table: LinearizedCurve, plain: LinearizedCurve) -> None:
    np.testing.assert_allclose(table.values, plain.values, rtol=1e-12)
    np.testing.assert_allclose(table.stack_slopes(), plain.stack_slopes(), rtol=1e-12)


def some_parameters(seed: int, members: int) -> tuple[Floats, Floats]:
    """Log time and log power parameters of one workload, or of some with a leading axis."""
    workloads = [another_workload(np.random.default_rng((seed, place))) for place in range(max(members, 1))]
    time, power = np.stack([one.time for one in workloads]), np.stack([one.power for one in workloads])
    return (time, power) if members else (time[0], power[0])


@given(rows=MODES, seed=st.integers(0, 999), members=st.integers(0, 3))
def test_the_time_of_a_table_is_that_of_its_shares(rows: list[int], seed: int, members: int) -> None:
    x, (time, _) = X[rows], some_parameters(seed, members)

    assert_same_curve(linearize_log_time(time, tabulate_shares(x)), linearize_log_time(time, x))


@given(rows=MODES, seed=st.integers(0, 999), members=st.integers(0, 3))
def test_the_power_of_a_table_is_that_of_its_shares(rows: list[int], seed: int, members: int) -> None:
    x, (_, power) = X[rows], some_parameters(seed, members)
    time = some_parameters(seed + 1, 0)[0]

    by_table, plain = (linearize_log_power(power, compute_time_parts(time, knobs)) for knobs in (tabulate_shares(x), x))

    assert_same_curve(by_table, plain)


@given(rows=MODES)
def test_every_mode_is_looked_up_in_its_own_combination_and_none_occurs_twice(rows: list[int]) -> None:
    table = tabulate_shares(X[rows])

    for combined, knobs in ((table.host, (CORES, CPU, MEM)), (table.gpu, (GPU, MEM))):
        columns = list(knobs)
        np.testing.assert_array_equal(combined.expand(combined.x[:, columns].T), X[rows][:, columns].T)
        assert len(np.unique(combined.x[:, columns], axis=0)) == len(combined.x)


def test_a_grid_has_far_fewer_combinations_than_modes() -> None:
    table = tabulate_shares(X)

    assert (len(table.x), len(table.host.x), len(table.gpu.x)) == (630, 7 * 5 * 3, 6 * 3)


def test_of_plain_shares_every_mode_is_its_own_combination() -> None:
    x = np.stack([X[:5], X[5:10]])
    table = as_knob_table(x)

    assert table.host.expand(x) is table.gpu.expand(x) is x
    assert as_knob_table(table) is table


@pytest.mark.parametrize("count", [0, 1, 40])
def test_the_table_of_modes_is_the_table_of_their_shares_and_kept(count: int) -> None:
    modes = Modes(grid().knobs[:count])

    table = tabulate_modes(MAXN, modes)

    np.testing.assert_array_equal(table.x, knob_shares(MAXN, modes))
    assert tabulate_modes(MAXN, modes) is table
