"""The rooflines of a mode in closed form, and times and energies of a batch over many modes.

The chosen mode is the cheapest that is fast enough, lowers nothing for nothing, and says why it was chosen.
"""

import math

import numpy as np
import pytest
from contracts.roofline_boards import HEAVY, LIGHT, NETWORKS, SPEC, TRUTH, modes
from hypothesis import given
from hypothesis import strategies as st

from fedge.analysis.roofline.board_constants import activation_intensity, compute_rooflines
from fedge.analysis.roofline.roofline_model import (
    MIN_KNOB_SAVING,
    ModeRooflines,
    Roofline,
    batch_energy_j,
    batch_to_work,
    build_roofline_batch,
    choose_within_slowdown,
    compute_batch_times,
    explain_choice,
    parse_mode,
)
from fedge.costs import gpu_rates
from fedge.costs.gpu_rates import RateObservation
from fedge.costs.layers.network_cost import BatchWork, sum_layers
from fedge.devices.catalogue import find
from fedge.errors import BadInput
from fedge.modes import find_mode_index
from fedge.types import PowerMode

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


@given(lines, works)
def test_the_closed_form_is_the_energy_of_flop_bytes_and_constant_power(line, work):
    summed = line.eps_f * work.flop + line.eps_m * work.bytes + line.pi_0_w * line.time_s(work)
    assert line.energy_j(work) == pytest.approx(summed)
    assert work.flop / line.flop_per_j(work.intensity) == pytest.approx(summed, rel=1e-9)


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


MODES = modes()
MAXN = find_mode_index(MODES, SPEC.maxn)
assert MAXN is not None
COUNT = len(MODES)
random = st.integers(0, 10_000).map(np.random.default_rng)


@given(random, st.floats(1.0, 2.0), st.floats(0.0, 0.2))
def test_no_mode_that_is_fast_enough_is_cheaper_by_more_than_its_lowered_knobs_must_save(rng, allowed, margin):
    seconds, joules = rng.uniform(1.0, 3.0, COUNT), rng.uniform(1.0, 3.0, COUNT)
    found = choose_within_slowdown(MODES, seconds, joules, MAXN, allowed, margin)
    assert found.row == MAXN or seconds[found.row] * math.exp(margin) <= allowed * seconds[MAXN]
    for row in range(COUNT):
        if seconds[row] * math.exp(margin) <= allowed * seconds[MAXN]:
            assert joules[found.row] <= joules[row] * (1 + MIN_KNOB_SAVING) ** 4
    assert found.slowdown == pytest.approx(seconds[found.row] / seconds[MAXN])
    assert found.saving == pytest.approx(1 - joules[found.row] / joules[MAXN])


def test_a_knob_that_saves_next_to_nothing_stays_at_its_top():
    joules = np.full(COUNT, 1.0)
    joules[0] = 0.99  # every knob lowered, for one percent
    assert choose_within_slowdown(MODES, np.ones(COUNT), joules, MAXN).row == MAXN
    joules[0] = 0.9
    assert choose_within_slowdown(MODES, np.ones(COUNT), joules, MAXN).row == 0


@pytest.mark.parametrize("allowed", [0.95, 0.0, math.nan, math.inf])
def test_a_slowdown_that_cannot_be_meant_is_refused(allowed):
    with pytest.raises(BadInput, match="--max-slowdown"):
        choose_within_slowdown(MODES, np.ones(COUNT), np.ones(COUNT), MAXN, allowed)


def reason(batch_size: int, allowed: float = 1.05) -> str:
    lines, batch = compute_rooflines(TRUTH, MODES, activation_intensity(HEAVY)), build_roofline_batch(HEAVY, batch_size)
    spent = compute_batch_times(lines, batch)
    choice = choose_within_slowdown(MODES, spent.total_s, batch_energy_j(lines, batch, spent.total_s), MAXN, allowed)
    return explain_choice(choice, MODES, lines.mode_roofline(MAXN), batch, spent)


def test_the_reason_names_what_sets_the_pace_and_what_was_lowered():
    small, large = reason(1), reason(64)
    assert "launching on the CPU sets the pace" in small
    assert "as it does not set the pace: GPU clock from 1300.5 to 726.75 MHz" in small
    assert "the GPU sets the pace" in large
    assert "FLOP per byte" in large
    assert "% slower" in small
    assert "% less energy (predicted)" in small
    assert reason(64, 1.0).endswith("MAXN stays.")
    assert "as far as the slowdown allows" in reason(64, 1.9)


def test_a_mode_is_read_from_its_four_knobs():
    assert parse_mode("12/2201.6/1300.5/3199") == PowerMode(12, 2201.6, 1300.5, 3199.0)


WRONG = ("", "12", "12/2201.6/1300.5", "a/b/c/d", "1.5/1/1/1", "0/1/1/1", "1/inf/1/1", "1/2/3/4/5")


@pytest.mark.parametrize("text", WRONG)
def test_a_mode_that_is_none_is_refused(text):
    with pytest.raises(BadInput, match="cores/CPU/GPU/memory in MHz"):
        parse_mode(text)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("batch_size", [1, 16])
def test_a_training_step_moves_and_launches_what_its_layers_are_priced_for(name, batch_size):
    network, board = NETWORKS[name], find("agx-orin")
    batch = build_roofline_batch(network, batch_size, "train")
    step = RateObservation(
        "agx-orin", network=name, counted=sum_layers(network, training=True),
        batch_size=batch_size, training=True, seconds=1.0,
    )  # fmt: skip
    sizes, _ = gpu_rates._build_terms(step, board, len(gpu_rates.EFFICIENCIES))
    moved_s = sizes[3] + sizes[4] + sizes[5]
    assert batch.bytes == pytest.approx(1e9 * board.mem_gbps.value * moved_s)
    assert batch.launches == 3 * step.counted.operators
    assert batch.flop == pytest.approx(3 * batch_size * network.flop)
