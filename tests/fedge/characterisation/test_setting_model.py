"""A setting's pipeline by what was measured around it, its error, and joules by the time."""

from __future__ import annotations

import pytest
from contracts.characterised_points import Noise, Truth, finished, sweep, varied

from fedge.characterisation.confidence_interval import Estimate
from fedge.characterisation.point_statistics import compute_point_stats
from fedge.characterisation.pooled_settings import pool_repeats
from fedge.characterisation.setting_model import (
    MIN_ERROR,
    UNCHECKED_ERROR,
    UNKNOWN_CORES,
    count_online_cores,
    fit_setting_model,
    minibatch_means,
    waiting_power_w,
)
from fedge.characterisation.sweep_plan import MeasurementSchedule, SweepPoint
from fedge.costs.input_pipeline.pipeline_fit import with_loader
from fedge.costs.input_pipeline.steady_state import solve_steady_state
from fedge.types import PowerMode

POINT = SweepPoint("nano-1", "net", mode=PowerMode(8, 1479.0, 921.6, 1600.0))
EXACT = Noise(step=0.001, power=0.0)


def _loading(point: SweepPoint) -> Truth:
    """12 ms to load beside 8 ms of training on many cores; waiting draws 5 W, the rest 10 J a minibatch."""
    stall_s = 0.012 if point.workers == 0 else max(0.012 / point.workers - 0.008, 0.0)
    step_s = stall_s + 0.008
    return Truth(stall_s=stall_s, compute_s=0.007, fetch_s=0.002, preprocess_s=0.01, power_w=5.0 + 0.1 / step_s)


def test_a_pipeline_fitted_to_one_setting_foretells_the_others_and_says_that_nobody_checked() -> None:
    (now,) = pool_repeats(sweep([POINT], _loading, EXACT))
    model = fit_setting_model(now, [now])
    assert (model.error, model.check_count) == (UNCHECKED_ERROR, 0)
    for workers in (1, 2):
        expected = model.predict_e2e_s(with_loader(model.pipeline, workers))
        truth = _loading(varied(POINT, "workers", [workers])[0]).step_s * 100
        assert expected.low <= truth <= expected.high
        assert expected.n == 0


def test_its_error_is_the_largest_by_which_it_misses_a_setting_with_another_loader() -> None:
    settings = pool_repeats(sweep(varied(POINT, "workers", [0, 1, 2]), _loading, EXACT))
    model = fit_setting_model(settings[0], settings)
    assert model.check_count == 2
    assert MIN_ERROR <= model.error < 0.1
    for one in settings[1:]:
        seen_s = minibatch_means(one.stats).step_s
        foretold = solve_steady_state(with_loader(model.pipeline, one.point.workers)).step_s
        assert foretold == pytest.approx(seen_s, rel=1.01 * model.error)


def test_what_waiting_draws_comes_from_settings_that_waited_differently() -> None:
    settings = sweep(varied(POINT, "workers", [0, 1, 2]), _loading, EXACT)
    assert waiting_power_w(settings) == pytest.approx(5.0, rel=0.05)
    assert waiting_power_w(settings[:1]) is None
    assert waiting_power_w([settings[0], settings[0]]) is None


def test_joules_follow_the_time_and_their_interval_is_wide_where_nobody_knows_what_waiting_draws() -> None:
    settings = pool_repeats(sweep(varied(POINT, "workers", [0, 1, 2]), _loading, EXACT))
    truth_j = settings[2].stats.energy_j
    assert truth_j is not None
    then_s = settings[2].stats.e2e_s
    known = fit_setting_model(settings[0], settings).predict_energy_j(
        Estimate(then_s.value, then_s.value, then_s.value, 0)
    )
    unknown = fit_setting_model(settings[0], settings[:1]).predict_energy_j(
        Estimate(then_s.value, then_s.value, then_s.value, 0)
    )
    assert known is not None
    assert unknown is not None
    assert known.value == pytest.approx(truth_j.value, rel=0.03)
    assert unknown.low <= truth_j.value <= unknown.high


def test_without_a_meter_there_are_no_joules() -> None:
    (now,) = pool_repeats(sweep([POINT], _loading, metered=False))
    assert fit_setting_model(now, [now]).predict_energy_j(Estimate(1.0, 1.0, 1.0, 0)) is None


def test_cores_are_those_of_the_mode_or_of_the_rig() -> None:
    here = compute_point_stats(finished(SweepPoint("here", "net"), Truth()), MeasurementSchedule())
    assert count_online_cores(here) == UNKNOWN_CORES
    assert count_online_cores(sweep([POINT], _loading)[0]) == 8
