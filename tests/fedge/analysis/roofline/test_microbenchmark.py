"""A sweep of kernels gives the constants that made it; poor kernels do not lower the roof.

The micro-benchmark runs every kernel on this processor, counts its work, and meters it where there is a meter.
"""

import itertools
import time
from dataclasses import replace

import numpy as np
import pytest
from contracts.roofline_boards import NETWORKS, SPEC, TRUTH, table, tables
from hypothesis import given
from hypothesis import strategies as st

from fedge.analysis.roofline.board_constants import compute_rooflines
from fedge.analysis.roofline.kernel_timing import FEWEST, KernelPoint, KernelTimer
from fedge.analysis.roofline.microbenchmark import (
    PRODUCT_COLUMNS,
    emulate_microbenchmark,
    fit_per_mode,
    fit_sweep,
    open_timer,
    run_microbenchmark,
)
from fedge.errors import BadInput, RunFailed
from fedge.modes import stack_modes


def sweep(tau_f: float, tau_m: float, watts: float | None = None) -> list[KernelPoint]:
    points = []
    for intensity in (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0):
        flop, size = 1e9 * intensity, 1e9
        seconds = max(flop * tau_f, size * tau_m)
        joules = None if watts is None else 2e-12 * flop + 6e-11 * size + watts * seconds
        points.append(KernelPoint(f"{intensity:g}", flop, size, seconds, joules))
    return points


@given(st.floats(1e-12, 1e-9), st.floats(1e-11, 1e-9))
def test_both_paces_are_found_exactly(tau_f, tau_m):
    balance = tau_m / tau_f
    if 0.2 < balance < 200:
        found = fit_sweep("cpu", "", sweep(tau_f, tau_m), "measured", "no meter")
        assert (found.tau_f, found.tau_m) == (pytest.approx(tau_f), pytest.approx(tau_m))
        assert found.reached == pytest.approx(1.0)


def test_energies_are_found_where_every_kernel_was_metered():
    found = fit_sweep("cpu", "", sweep(1e-12, 1e-11, 15.0), "measured", "a meter")
    line = found.roofline
    assert (line.eps_f, line.eps_m, line.pi_0_w) == pytest.approx((2e-12, 6e-11, 15.0), rel=0.05)
    assert found.energy_mape < 0.01


def test_without_a_meter_energy_stays_unknown():
    some = [*sweep(1e-12, 1e-11, 15.0)[:-1], sweep(1e-12, 1e-11)[-1]]
    for points in (sweep(1e-12, 1e-11), some):
        found = fit_sweep("cpu", "", points, "measured", "no meter")
        assert (found.eps_f, found.eps_m, found.pi_0_w, found.roofline) == (None, None, None, None)


def test_poor_kernels_do_not_lower_the_roof():
    points = sweep(1e-12, 1e-11)
    poor = [replace(point, seconds=3 * point.seconds) if i in (2, 3, 5) else point for i, point in enumerate(points)]
    found = fit_sweep("cpu", "", poor, "measured", "")
    assert (found.tau_f, found.tau_m) == (pytest.approx(1e-12), pytest.approx(1e-11))


def test_too_few_kernels_are_refused():
    with pytest.raises(RunFailed, match="gave 2 points"):
        fit_sweep("cpu", "", sweep(1e-12, 1e-11)[:2], "measured", "")


def test_an_emulated_boards_sweep_gives_its_own_constants_back():
    lines = compute_rooflines(TRUTH, stack_modes([SPEC.maxn]))
    points = emulate_microbenchmark(lines, 0, np.random.default_rng(3))
    found = fit_sweep("board", "MAXN", points, "calibrated", "").roofline
    assert (found.tau_f, found.tau_m) == pytest.approx((lines.tau_f[0], lines.tau_m[0]), rel=0.03)
    assert found.pi_0_w == pytest.approx(lines.pi_0_w[0], rel=0.3)
    for point in points:
        assert point.joules is not None
        assert found.energy_j(point.work) == pytest.approx(point.joules, rel=0.06)


def test_pagodas_own_fit_has_five_constants_per_mode_and_no_overheads():
    fitted = fit_per_mode(tables(sizes=(1, 16, 64)), NETWORKS)
    assert fitted.overheads is None
    assert (fitted.tau_f > 0).all()
    five = np.stack([fitted.tau_f, fitted.tau_m, fitted.eps_f, fitted.eps_m, fitted.pi_0_w])
    assert (five >= 0).all()
    assert np.isfinite(five).all()


def test_pagodas_own_fit_needs_the_same_modes_in_every_table():
    one = table("light", 1)
    fewer = replace(one, modes=stack_modes(list(one.modes)[:-1]))
    with pytest.raises(BadInput, match="same modes"):
        fit_per_mode([one, fewer], NETWORKS)


pytest.importorskip("torch")
TIMER = KernelTimer(time.perf_counter, lambda: None, lambda: None)


def test_every_kernel_is_timed_on_this_processor():
    points = run_microbenchmark(TIMER, "cpu", 0.1, array_mb=1.0)
    assert [point.kernel for point in points] == ["add", "scale", *(f"product {n}" for n in PRODUCT_COLUMNS)]
    assert all(point.seconds > 0 and point.joules is None for point in points)
    intensities = [point.work.intensity for point in points]
    assert intensities == sorted(intensities)
    found = fit_sweep("cpu", "", points, "measured", "no meter")
    assert found.tau_f > 0
    assert found.tau_m > 0


def test_a_meter_is_read_around_every_kernels_repeats():
    joules = itertools.count(0.0, 6.0)
    points = run_microbenchmark(replace(TIMER, meter=lambda: next(joules)), "cpu", 1e-9, array_mb=0.1)
    assert {point.joules for point in points} == {6.0 / FEWEST}


def test_cuda_where_there_is_none_is_a_clear_error(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadInput, match="torch sees a CUDA device"):
        open_timer("cuda", time.perf_counter, lambda: None)


@pytest.mark.gpu
def test_every_kernel_is_timed_on_a_gpu():
    points = run_microbenchmark(open_timer("cuda", time.perf_counter, lambda: None), "cuda", 1.0)
    assert len(points) == len(PRODUCT_COLUMNS) + 2
