"""Times and energies of a batch over many modes: Pagoda's own without overheads, more than it with them."""

from __future__ import annotations

import numpy as np
import pytest
from contracts.roofline_boards import HEAVY, LIGHT, NETWORKS, TRUTH, modes
from hypothesis import given
from hypothesis import strategies as st

from fedge.roofline.board import rooflines
from fedge.roofline.fit import intensity_of
from fedge.roofline.surface import Rooflines, batch_of, energy_j, times, work_of

BOARD = rooflines(TRUTH, modes(), intensity_of(HEAVY))
BARE = Rooflines(BOARD.tau_f, BOARD.tau_m, BOARD.eps_f, BOARD.eps_m, BOARD.pi_0_w, BOARD.label)


@pytest.mark.parametrize("name", NETWORKS)
def test_without_overheads_every_mode_has_its_own_rooflines_time_and_energy(name: str) -> None:
    batch = batch_of(NETWORKS[name], 16)
    seconds = times(BARE, batch).total_s
    joules = energy_j(BARE, batch, seconds)
    for row in range(len(seconds)):
        assert seconds[row] == pytest.approx(BARE.at(row).time_s(work_of(batch)))
        assert joules[row] == pytest.approx(BARE.at(row).energy_j(work_of(batch)))


@given(st.integers(1, 256), st.sampled_from([LIGHT, HEAVY]))
def test_overheads_only_ever_add(size: int, network: object) -> None:
    batch = batch_of(network, size)  # type: ignore[arg-type]
    seconds = times(BOARD, batch)
    assert (seconds.total_s >= times(BARE, batch).total_s).all()
    assert (seconds.total_s >= np.maximum(seconds.gpu_s, seconds.launch_s)).all()
    assert (energy_j(BOARD, batch, seconds.total_s) >= energy_j(BARE, batch, times(BARE, batch).total_s)).all()


def test_a_small_batch_is_bound_by_launches_and_a_large_one_by_the_gpu() -> None:
    top = int(np.argmax(modes().knobs.sum(axis=1)))
    small, large = (times(BOARD, batch_of(HEAVY, size)) for size in (1, 64))
    assert small.launch_s[top] > small.gpu_s[top]
    assert large.gpu_s[top] > large.launch_s[top]


def test_a_training_step_has_three_times_the_work_and_the_launches_of_a_forward_pass() -> None:
    one, three = batch_of(LIGHT, 8), batch_of(LIGHT, 8, "train")
    assert (three.flop, three.bytes, three.launches) == (3 * one.flop, 3 * one.bytes, 3 * one.launches)  # type: ignore[operator]
    assert three.samples == one.samples
