"""A board's constants follow its clocks, and a network gets the factors of those around it in intensity."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from contracts.roofline_boards import SPEC, TRUTH

from fedge.analysis.roofline.board_constants import compute_rooflines, interpolate_factors
from fedge.modes import stack_modes
from fedge.types import PowerMode

TOP = SPEC.maxn


def test_each_constant_follows_its_own_clock():
    gpu, mem, cpu = (replace(TOP, **{knob: 0.5 * getattr(TOP, knob)}) for knob in ("gpu_mhz", "mem_mhz", "cpu_mhz"))
    lines = compute_rooflines(TRUTH, stack_modes([TOP, gpu, mem, cpu]))
    extra = lines.overheads
    assert lines.tau_f / lines.tau_f[0] == pytest.approx([1, 2, 1, 1])
    assert lines.tau_m / lines.tau_m[0] == pytest.approx([1, 1, 2, 1])
    assert extra.copy_s / extra.copy_s[0] == pytest.approx([1, 1, 1, 2])
    assert extra.kernel_s / extra.kernel_s[0] == pytest.approx([1, 2, 1, 1])
    assert extra.launch_s[3] > 1.8 * extra.launch_s[0]
    assert (lines.pi_0_w[1:] < lines.pi_0_w[0]).all()


def test_fewer_cores_draw_less_and_launch_hardly_slower():
    lines = compute_rooflines(TRUTH, stack_modes([TOP, PowerMode(4, TOP.cpu_mhz, TOP.gpu_mhz, TOP.mem_mhz)]))
    extra = lines.overheads
    assert lines.pi_0_w[1] < lines.pi_0_w[0]
    assert extra.launch_s[0] < extra.launch_s[1] < 1.2 * extra.launch_s[0]


def test_an_unseen_network_gets_factors_between_its_neighbours_and_never_beyond_them():
    light, heavy = TRUTH.networks
    at = [interpolate_factors(TRUTH, i)["tau_f"] for i in (0.01, light.intensity, 12.0, heavy.intensity, 1e4)]
    assert at[0] == pytest.approx(light.factors["tau_f"]) == at[1]
    assert at[1] > at[2] > at[3]
    assert at[3] == pytest.approx(heavy.factors["tau_f"]) == at[4]


def test_a_board_without_networks_is_taken_as_it_is():
    bare = replace(TRUTH, networks=())
    assert np.array_equal(
        compute_rooflines(bare, stack_modes([TOP]), 10.0).tau_f, compute_rooflines(bare, stack_modes([TOP])).tau_f
    )
