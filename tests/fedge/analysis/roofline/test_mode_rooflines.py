"""Times and energies of a batch over many modes: Pagoda's own without overheads, more than it with them."""

from __future__ import annotations

import numpy as np
import pytest
from contracts.roofline_boards import HEAVY, LIGHT, NETWORKS, TRUTH, modes
from hypothesis import given
from hypothesis import strategies as st

from fedge.analysis.roofline.board_constants import compute_rooflines
from fedge.analysis.roofline.board_constants_fit import activation_intensity
from fedge.analysis.roofline.mode_rooflines import (
    ModeRooflines,
    batch_energy_j,
    batch_to_work,
    build_roofline_batch,
    compute_batch_times,
)

BOARD = compute_rooflines(TRUTH, modes(), activation_intensity(HEAVY))
BARE = ModeRooflines(BOARD.tau_f, BOARD.tau_m, BOARD.eps_f, BOARD.eps_m, BOARD.pi_0_w, BOARD.label)


@pytest.mark.parametrize("name", NETWORKS)
def test_without_overheads_every_mode_has_its_own_rooflines_time_and_energy(name: str) -> None:
    batch = build_roofline_batch(NETWORKS[name], 16)
    seconds = compute_batch_times(BARE, batch).total_s
    joules = batch_energy_j(BARE, batch, seconds)
    for row in range(len(seconds)):
        assert seconds[row] == pytest.approx(BARE.mode_roofline(row).time_s(batch_to_work(batch)))
        assert joules[row] == pytest.approx(BARE.mode_roofline(row).energy_j(batch_to_work(batch)))


@given(st.integers(1, 256), st.sampled_from([LIGHT, HEAVY]))
def test_overheads_only_ever_add(size: int, network: object) -> None:
    batch = build_roofline_batch(network, size)  # type: ignore[arg-type]
    seconds = compute_batch_times(BOARD, batch)
    assert (seconds.total_s >= compute_batch_times(BARE, batch).total_s).all()
    assert (seconds.total_s >= np.maximum(seconds.gpu_s, seconds.launch_s)).all()
    assert (
        batch_energy_j(BOARD, batch, seconds.total_s)
        >= batch_energy_j(BARE, batch, compute_batch_times(BARE, batch).total_s)
    ).all()


def test_a_small_batch_is_bound_by_launches_and_a_large_one_by_the_gpu() -> None:
    top = int(np.argmax(modes().knobs.sum(axis=1)))
    small, large = (compute_batch_times(BOARD, build_roofline_batch(HEAVY, size)) for size in (1, 64))
    assert small.launch_s[top] > small.gpu_s[top]
    assert large.gpu_s[top] > large.launch_s[top]


def test_a_training_step_has_three_times_the_work_and_the_launches_of_a_forward_pass() -> None:
    one, three = build_roofline_batch(LIGHT, 8), build_roofline_batch(LIGHT, 8, "train")
    assert (three.flop, three.bytes, three.launches) == (3 * one.flop, 3 * one.bytes, 3 * one.launches)  # type: ignore[operator]
    assert three.samples == one.samples
