"""The rooflines of a mode: closed form and sum agree, balances divide, and time implies energy where it must."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.analysis.roofline.roofline_model import Roofline, describe_balance_side, describe_implication
from fedge.costs.layers.network_cost import BatchWork

lines = st.builds(
    Roofline,
    st.floats(1e-13, 1e-9),
    st.floats(1e-12, 1e-8),
    st.floats(0.0, 1e-10),
    st.floats(0.0, 1e-8),
    st.floats(0.1, 60.0),
    st.just("measured"),
)
works = st.builds(BatchWork, st.floats(1e3, 1e13), st.floats(1e3, 1e11))
BOARD = Roofline(2.5e-13, 1e-11, 7.5e-12, 1.3e-10, 18.0, "calibrated")


@given(lines, works)
def test_the_closed_form_is_the_energy_of_flop_bytes_and_constant_power(line: Roofline, work: BatchWork) -> None:
    summed = line.eps_f * work.flop + line.eps_m * work.bytes + line.pi_0_w * line.time_s(work)
    assert line.energy_j(work) == pytest.approx(summed)
    assert work.flop / line.flop_per_j(work.intensity) == pytest.approx(summed, rel=1e-9)


@given(lines, st.floats(0.01, 1e4))
def test_the_closed_form_is_that_of_choi_where_a_flop_has_an_energy_of_its_own(line: Roofline, at: float) -> None:
    line = replace(line, eps_f=line.eps_f + 1e-15)
    e, eta, b_eps = line.flop_j, line.eps_f / line.flop_j, line.eps_m / line.eps_f
    weight = eta * b_eps + (1 - eta) * max(0.0, line.balance - at)
    assert 1.0 / line.flop_per_j(at) == pytest.approx(e * (1 + weight / at))


@given(lines, works)
def test_the_time_roofline_is_the_slower_of_arithmetic_and_memory(line: Roofline, work: BatchWork) -> None:
    assert work.flop / line.flop_per_s(work.intensity) == pytest.approx(line.time_s(work))
    assert line.time_s(work) == pytest.approx(
        (work.flop * line.tau_f) if work.intensity >= line.balance else (work.bytes * line.tau_m)
    )


@given(lines)
def test_at_the_energy_balance_a_flop_costs_twice_the_least(line: Roofline) -> None:
    if line.energy_balance > 0:
        assert 1.0 / line.flop_per_j(line.energy_balance) == pytest.approx(2 * line.flop_j, rel=1e-9)


@given(lines, st.floats(1e-3, 1e5))
def test_time_efficient_implies_energy_efficient_exactly_where_the_condition_holds(line: Roofline, more: float) -> None:
    assert line.time_implies_energy == (line.energy_balance <= line.balance * (1 + 1e-12))
    at = line.balance * (1 + more)
    if line.time_implies_energy:
        assert 1.0 / line.flop_per_j(at) <= 2 * line.flop_j * (1 + 1e-9)
    elif line.balance < line.energy_balance * (1 - 1e-9):
        between = (line.balance * line.energy_balance) ** 0.5
        assert 1.0 / line.flop_per_j(between) > 2 * line.flop_j


def test_no_kernel_is_less_frugal_for_being_more_intense() -> None:
    reached = [BOARD.flop_per_j(0.1 * 1.3**i) for i in range(40)]
    assert reached == sorted(reached)


def test_words_say_which_side_and_why() -> None:
    said = describe_balance_side(BOARD, BatchWork(5e9, 1e9))
    assert "bound by memory in time (balance 40)" in said
    assert "bytes" in said
    assert "arithmetic" in describe_balance_side(BOARD, BatchWork(1e12, 1e9))
    assert "implies" in describe_implication(BOARD)
    dear_bytes = replace(BOARD, eps_m=1e-8)
    assert not dear_bytes.time_implies_energy
    assert "does not imply" in describe_implication(dear_bytes)
