"""By which power of a knob a figure goes: from the settings most like the one in question."""

from __future__ import annotations

from dataclasses import replace

import pytest
from contracts.characterised_points import Noise, Truth, sweep, varied
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.characterisation.pooled_settings import pool_repeats
from fedge.characterisation.setting_model import estimate_slope, mean_power_w, scale_by_slope, step_compute_s
from fedge.characterisation.sweep_plan import SweepPoint
from fedge.types import PowerMode

POINT = SweepPoint("nano-1", "net", mode=PowerMode(4, 1479.0, 921.6, 1600.0))
EXACT = Noise(step=0.0, power=0.0)


@settings(max_examples=10)
@given(st.floats(-2.0, 2.0), st.floats(1.1, 4.0))
def test_the_power_that_was_put_in_comes_out(slope: float, ratio: float) -> None:
    sizes = varied(POINT, "batch_size", [4, int(4 * ratio) + 1])
    made = sweep(sizes, lambda p: Truth(power_w=10.0 * (p.batch_size / 4) ** slope), EXACT, steps=20)
    group = pool_repeats(made)
    found = estimate_slope(group[0], group, "batch_size", mean_power_w)
    assert found == pytest.approx(slope, abs=1e-6)


def test_the_nearest_settings_speak_and_those_with_all_else_alike_first() -> None:
    assert POINT.mode is not None
    clocks = [replace(POINT, mode=replace(POINT.mode, gpu_mhz=mhz)) for mhz in (100.0, 460.8, 921.6)]
    other = [replace(one, workers=2) for one in clocks]

    def truth(point: SweepPoint) -> Truth:
        assert point.mode is not None
        return Truth(compute_s=1.0 / point.mode.gpu_mhz if point.workers or point.mode.gpu_mhz > 400 else 0.05)

    group = pool_repeats(sweep([*clocks, *other], truth, EXACT, steps=20))
    assert estimate_slope(group[2], group, "gpu_mhz", step_compute_s) == pytest.approx(-1.0, abs=1e-6)
    assert estimate_slope(group[5], group[:3], "gpu_mhz", step_compute_s) == pytest.approx(-1.0, abs=1e-6)
    assert estimate_slope(group[2], group[2:3], "gpu_mhz", step_compute_s) is None
    assert estimate_slope(group[2], group, "mem_mhz", step_compute_s) is None


def test_half_and_one_and_a_half_of_the_slope_are_its_interval() -> None:
    found = scale_by_slope(1.0, 2.0)
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2.0**0.5, 2.0**1.5))
    falling = scale_by_slope(1.0, 0.5)
    assert falling.low < falling.value < falling.high < 1.0
