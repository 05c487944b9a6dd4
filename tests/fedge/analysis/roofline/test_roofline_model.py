"""The rooflines of a mode in closed form, and times and energies of a batch over many modes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from contracts.roofline_boards import HEAVY, LIGHT, NETWORKS, TRUTH, modes
from hypothesis import given
from hypothesis import strategies as st

from fedge.analysis.roofline.board_constants import compute_rooflines
from fedge.analysis.roofline.board_constants_fit import activation_intensity
from fedge.analysis.roofline.roofline_model import (
    ModeRooflines,
    Roofline,
    batch_energy_j,
    batch_to_work,
    build_roofline_batch,
    compute_batch_times,
    describe_balance_side,
    describe_implication,
)
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
def test_the_closed_form_is_the_energy_of_flop_bytes_and_constant_power(line, work):
    summed = line.eps_f * work.flop + line.eps_m * work.bytes + line.pi_0_w * line.time_s(work)
    assert line.energy_j(work) == pytest.approx(summed)
    assert work.flop / line.flop_per_j(work.intensity) == pytest.approx(summed, rel=1e-9)


@given(lines, st.floats(0.01, 1e4))
def test_the_closed_form_is_that_of_choi_where_a_flop_has_an_energy_of_its_own(line, at):
    line = replace(line, eps_f=line.eps_f + 1e-15)
    e, eta, b_eps = line.flop_j, line.eps_f / line.flop_j, line.eps_m / line.eps_f
    weight = eta * b_eps + (1 - eta) * max(0.0, line.balance - at)
    assert 1.0 / line.flop_per_j(at) == pytest.approx(e * (1 + weight / at))


@given(lines, works)
def test_the_time_roofline_is_the_slower_of_arithmetic_and_memory(line, work):
    assert work.flop / line.flop_per_s(work.intensity) == pytest.approx(line.time_s(work))
    assert line.time_s(work) == pytest.approx(
        (work.flop * line.tau_f) if work.intensity >= line.balance else (work.bytes * line.tau_m)
    )


@given(lines)
def test_at_the_energy_balance_a_flop_costs_twice_the_least(line):
    if line.energy_balance > 0:
        assert 1.0 / line.flop_per_j(line.energy_balance) == pytest.approx(2 * line.flop_j, rel=1e-9)


@given(lines, st.floats(1e-3, 1e5))
def test_time_efficient_implies_energy_efficient_exactly_where_the_condition_holds(line, more):
    assert line.time_implies_energy == (line.energy_balance <= line.balance * (1 + 1e-12))
    at = line.balance * (1 + more)
    if line.time_implies_energy:
        assert 1.0 / line.flop_per_j(at) <= 2 * line.flop_j * (1 + 1e-9)
    elif line.balance < line.energy_balance * (1 - 1e-9):
        between = (line.balance * line.energy_balance) ** 0.5
        assert 1.0 / line.flop_per_j(between) > 2 * line.flop_j


def test_words_say_which_side_and_why():
    said = describe_balance_side(BOARD, BatchWork(5e9, 1e9))
    assert "bound by memory in time (balance 40)" in said
    assert "bytes" in said
    assert "arithmetic" in describe_balance_side(BOARD, BatchWork(1e12, 1e9))
    assert "implies" in describe_implication(BOARD)
    dear_bytes = replace(BOARD, eps_m=1e-8)
    assert not dear_bytes.time_implies_energy
    assert "does not imply" in describe_implication(dear_bytes)


BOARD_ROOFLINES = compute_rooflines(TRUTH, modes(), activation_intensity(HEAVY))
BARE = ModeRooflines(
    BOARD_ROOFLINES.tau_f,
    BOARD_ROOFLINES.tau_m,
    BOARD_ROOFLINES.eps_f,
    BOARD_ROOFLINES.eps_m,
    BOARD_ROOFLINES.pi_0_w,
    BOARD_ROOFLINES.label,
)


@pytest.mark.parametrize("name", NETWORKS)
def test_without_overheads_every_mode_has_its_own_rooflines_time_and_energy(name):
    batch = build_roofline_batch(NETWORKS[name], 16)
    seconds = compute_batch_times(BARE, batch).total_s
    joules = batch_energy_j(BARE, batch, seconds)
    for row in range(len(seconds)):
        assert seconds[row] == pytest.approx(BARE.mode_roofline(row).time_s(batch_to_work(batch)))
        assert joules[row] == pytest.approx(BARE.mode_roofline(row).energy_j(batch_to_work(batch)))


@given(st.integers(1, 256), st.sampled_from([LIGHT, HEAVY]))
def test_overheads_only_ever_add(size, network):
    batch = build_roofline_batch(network, size)
    seconds = compute_batch_times(BOARD_ROOFLINES, batch)
    assert (seconds.total_s >= compute_batch_times(BARE, batch).total_s).all()
    assert (seconds.total_s >= np.maximum(seconds.gpu_s, seconds.launch_s)).all()
    assert (
        batch_energy_j(BOARD_ROOFLINES, batch, seconds.total_s)
        >= batch_energy_j(BARE, batch, compute_batch_times(BARE, batch).total_s)
    ).all()


def test_a_small_batch_is_bound_by_launches_and_a_large_one_by_the_gpu():
    top = int(np.argmax(modes().knobs.sum(axis=1)))
    small, large = (compute_batch_times(BOARD_ROOFLINES, build_roofline_batch(HEAVY, size)) for size in (1, 64))
    assert small.launch_s[top] > small.gpu_s[top]
    assert large.gpu_s[top] > large.launch_s[top]


def test_a_training_step_has_three_times_the_work_and_the_launches_of_a_forward_pass():
    one, three = build_roofline_batch(LIGHT, 8), build_roofline_batch(LIGHT, 8, "train")
    assert (three.flop, three.bytes, three.launches) == (3 * one.flop, 3 * one.bytes, 3 * one.launches)
    assert three.samples == one.samples
