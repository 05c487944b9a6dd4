"""The physical model behaves like a board: faster clocks never slow it down, and cost power."""

from __future__ import annotations

import numpy as np
import pytest
from contracts.boards import MAXN, coefficients, grid
from hypothesis import given
from hypothesis import strategies as st

from fedge.physics.time_power_model import (
    POWER_NAMES,
    TIME_NAMES,
    Coefficients,
    compute_idle_ratio,
    compute_power_w,
    compute_step_s,
    q_norm,
)
from fedge.types import Modes

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
def test_raising_a_knob_never_makes_a_step_slower(knob: int, coefficients: Coefficients) -> None:
    low = grid()
    high = low.knobs.copy()
    high[:, knob] = np.minimum(high[:, knob] * 1.3, high[:, knob].max())

    slower, faster = compute_step_s(coefficients, MAXN, low), compute_step_s(coefficients, MAXN, Modes(high))

    assert (faster <= slower * (1 + 1e-9)).all()


@given(coefficients=ANY)
def test_idle_power_falls_with_every_knob_and_is_one_at_maxn(coefficients: Coefficients) -> None:
    modes = grid()
    shape = compute_idle_ratio(coefficients, MAXN, modes)

    assert shape[-1] == pytest.approx(1.0)
    for knob in range(4):
        high = modes.knobs.copy()
        high[:, knob] = high[:, knob].max()
        assert (shape <= compute_idle_ratio(coefficients, MAXN, Modes(high)) + 1e-12).all()


@given(coefficients=ANY)
def test_power_is_positive_and_above_the_static_part(coefficients: Coefficients) -> None:
    assert (compute_power_w(coefficients, MAXN, grid()) > np.exp(coefficients.power[0])).all()


def test_raising_the_gpu_clock_of_a_gpu_bound_step_costs_power() -> None:
    modes = Modes(np.array([[8, 2000, gpu, 3000] for gpu in (200, 500, 800, 1200)], dtype=np.float64))

    assert (np.diff(compute_power_w(coefficients(), MAXN, modes)) > 0).all()


def test_halving_all_clocks_doubles_a_step_without_fixed_time() -> None:
    base = coefficients()
    time = base.time.copy()
    time[TIME_NAMES.index("fixed_s")] = -40.0
    time[TIME_NAMES.index("prep_crowding")] = -40.0
    modes = Modes(np.array([[8, 2000, 1200, 3000], [8, 1000, 600, 1500]], dtype=np.float64))

    full, half = compute_step_s(Coefficients(time, base.power), MAXN, modes)

    assert half == pytest.approx(2 * full)


def test_the_norm_lies_between_the_sum_and_the_largest_term() -> None:
    a, b = np.array([3.0]), np.array([4.0])

    assert q_norm(1.0, a, b)[0] == pytest.approx(7.0)
    assert q_norm(2.0, a, b)[0] == pytest.approx(5.0)
    assert q_norm(500.0, a, b)[0] == pytest.approx(4.0)
