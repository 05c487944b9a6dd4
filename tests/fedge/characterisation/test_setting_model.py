"""A setting's pipeline by what was measured around it, its error, and joules by the time."""

from dataclasses import replace

import pytest
from contracts.characterised_points import Noise, Truth, finished, sweep, varied
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.characterisation.point_statistics import PointStats, compute_point_stats, pool_repeats
from fedge.characterisation.setting_model import (
    MIN_ERROR,
    UNCHECKED_ERROR,
    UNKNOWN_CORES,
    count_online_cores,
    estimate_slope,
    fit_setting_model,
    minibatch_means,
    scale_by_slope,
    waiting_power_w,
)
from fedge.characterisation.sweep_plan import MeasurementSchedule, SweepPoint
from fedge.confidence_interval import Estimate
from fedge.costs.input_pipeline.pipeline_fit import with_loader
from fedge.costs.input_pipeline.pipeline_model import solve_steady_state
from fedge.types import PowerMode

POINT = SweepPoint("nano-1", "net", mode=PowerMode(8, 1479.0, 921.6, 1600.0))
EXACT = Noise(step=0.001, power=0.0)


def _loading(point: SweepPoint) -> Truth:
    """12 ms to load beside 8 ms of training on many cores; waiting draws 5 W, the rest 10 J a minibatch."""
    stall_s = 0.012 if point.workers == 0 else max(0.012 / point.workers - 0.008, 0.0)
    step_s = stall_s + 0.008
    return Truth(stall_s=stall_s, compute_s=0.007, fetch_s=0.002, preprocess_s=0.01, power_w=5.0 + 0.1 / step_s)


def test_a_pipeline_fitted_to_one_setting_foretells_the_others_and_says_that_nobody_checked():
    (now,) = pool_repeats(sweep([POINT], _loading, EXACT))
    model = fit_setting_model(now, [now])
    assert model.error == UNCHECKED_ERROR
    for workers in (1, 2):
        expected = model.predict_e2e_s(with_loader(model.pipeline, workers))
        truth = _loading(varied(POINT, "workers", [workers])[0]).step_s * 100
        assert expected.low <= truth <= expected.high
        assert expected.n == 0


def test_its_error_is_the_largest_by_which_it_misses_a_setting_with_another_loader():
    settings = pool_repeats(sweep(varied(POINT, "workers", [0, 1, 2]), _loading, EXACT))
    model = fit_setting_model(settings[0], settings)
    assert len(model.loaders) == 3
    assert MIN_ERROR <= model.error < 0.1
    for one in settings[1:]:
        seen_s = minibatch_means(one.stats).step_s
        foretold = solve_steady_state(with_loader(model.pipeline, one.point.workers)).step_s
        assert foretold == pytest.approx(seen_s, rel=1.01 * model.error)


def test_what_waiting_draws_comes_from_settings_that_waited_differently():
    settings = sweep(varied(POINT, "workers", [0, 1, 2]), _loading, EXACT)
    assert waiting_power_w(settings) == pytest.approx(5.0, rel=0.05)
    assert waiting_power_w(settings[:1]) is None
    assert waiting_power_w([settings[0], settings[0]]) is None


def test_joules_follow_the_time_and_their_interval_is_wide_where_nobody_knows_what_waiting_draws():
    settings = pool_repeats(sweep(varied(POINT, "workers", [0, 1, 2]), _loading, EXACT))
    truth_j = settings[2].stats.energy_j
    then_s = settings[2].stats.e2e_s
    known = fit_setting_model(settings[0], settings).predict_energy_j(
        Estimate(then_s.value, then_s.value, then_s.value, 0)
    )
    unknown = fit_setting_model(settings[0], settings[:1]).predict_energy_j(
        Estimate(then_s.value, then_s.value, then_s.value, 0)
    )
    assert known.value == pytest.approx(truth_j.value, rel=0.03)
    assert unknown.low <= truth_j.value <= unknown.high


def test_cores_are_those_of_the_mode_or_of_the_rig():
    here = compute_point_stats(finished(SweepPoint("here", "net"), Truth()), MeasurementSchedule())
    assert count_online_cores(here) == UNKNOWN_CORES
    assert count_online_cores(sweep([POINT], _loading)[0]) == 8


NANO = SweepPoint("nano-1", "net", mode=PowerMode(4, 1479.0, 921.6, 1600.0))
NOISELESS = Noise(step=0.0, power=0.0)


@settings(max_examples=10)
@given(st.floats(-2.0, 2.0), st.floats(1.1, 4.0))
def test_the_power_that_was_put_in_comes_out(slope, ratio):
    sizes = varied(NANO, "batch_size", [4, int(4 * ratio) + 1])
    made = sweep(sizes, lambda p: Truth(power_w=10.0 * (p.batch_size / 4) ** slope), NOISELESS, steps=20)
    group = pool_repeats(made)
    found = estimate_slope(group[0].point, group, "batch_size", lambda one: one.power_w.value)
    assert found == pytest.approx(slope, abs=1e-6)


def test_the_nearest_settings_speak_and_those_with_all_else_alike_first():
    assert NANO.mode is not None
    clocks = [replace(NANO, mode=replace(NANO.mode, gpu_mhz=mhz)) for mhz in (100.0, 460.8, 921.6)]
    other = [replace(one, workers=2) for one in clocks]

    def truth(point: SweepPoint) -> Truth:
        assert point.mode is not None
        return Truth(compute_s=1.0 / point.mode.gpu_mhz if point.workers or point.mode.gpu_mhz > 400 else 0.05)

    group = pool_repeats(sweep([*clocks, *other], truth, NOISELESS, steps=20))

    def step_compute_s(stats: PointStats) -> float:
        return stats.compute_s.value / stats.steps

    assert estimate_slope(group[2].point, group, "gpu_mhz", step_compute_s) == pytest.approx(-1.0, abs=1e-6)
    assert estimate_slope(group[5].point, group[:3], "gpu_mhz", step_compute_s) == pytest.approx(-1.0, abs=1e-6)
    assert estimate_slope(group[2].point, group[2:3], "gpu_mhz", step_compute_s) is None
    assert estimate_slope(group[2].point, group, "mem_mhz", step_compute_s) is None


def test_half_and_one_and_a_half_of_the_slope_are_its_interval():
    found = scale_by_slope(1.0, 2.0)
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2.0**0.5, 2.0**1.5))
    falling = scale_by_slope(1.0, 0.5)
    assert falling.low < falling.value < falling.high < 1.0
