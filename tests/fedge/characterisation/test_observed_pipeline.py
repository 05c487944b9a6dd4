"""The input pipeline behind a sweep: its samples, its cores and its storages are found again from what they did."""

from __future__ import annotations

from dataclasses import replace

import pytest
from contracts.epoch_looks import FILE_MB, MODES, PLANS, SPEC, TOP, TRUTH, look, pipeline, sweep

from fedge.characterisation.observed_pipeline import fit_input_pipeline
from fedge.characterisation.point_observations import PointObservation
from fedge.characterisation.sweep_plan import StoragePlan
from fedge.costs.input_pipeline.emulated_pipeline import find_storage
from fedge.costs.input_pipeline.pipeline_fit import UNKNOWN_CROWDING, FittedPipeline
from fedge.costs.input_pipeline.pipeline_model import file_read_s
from fedge.errors import BadInput, UnknownName
from fedge.modes import stack_modes
from fedge.physics.time_power_model import compute_time_parts, knob_shares
from fedge.types import PowerMode


def _host_share(mode: PowerMode) -> float:
    parts = compute_time_parts(TRUTH.time, knob_shares(SPEC.maxn, stack_modes([mode])))
    return float((parts.launch_s + parts.host_s)[0] / parts.total_s[0])


def _feeding(looks: list[PointObservation], plans: dict[str, StoragePlan] = PLANS) -> FittedPipeline:
    return fit_input_pipeline(looks, TOP, _host_share, plans)


def test_what_a_sample_takes_is_found_again_whatever_shared_the_cores():
    found = _feeding(sweep())

    assert found.top.samples.preprocess_s == pytest.approx(pipeline().samples.preprocess_s, rel=0.1)
    assert found.top.step.handover_s == pytest.approx(pipeline().step.handover_s, rel=0.3)
    assert found.top.start_s == pytest.approx(pipeline().start_s, rel=0.3)
    assert found.top.host.background > 0
    assert found.top.host.crowding > UNKNOWN_CROWDING
    assert found.sd_log < 0.05


def test_a_storage_is_as_fast_as_it_was_seen_to_be():
    cold = [look(name="sd", cached=0.0), look(name="hdd", cached=0.0), look()]
    named = {"card": StoragePlan("card", path="somewhere"), "ssd": PLANS["ssd"]}
    own = [replace(one, point=replace(one.point, storage="card")) for one in cold[:1]]

    found, of_a_user = _feeding(cold), _feeding([*own, look()], named)

    for name in ("sd", "hdd"):
        assert file_read_s(found.storages[name], FILE_MB) == pytest.approx(
            file_read_s(find_storage(name), FILE_MB), rel=0.05
        )
    assert file_read_s(of_a_user.storages["card"], FILE_MB) == pytest.approx(
        file_read_s(find_storage("sd"), FILE_MB), rel=0.05
    )
    assert found.storages["sd"].label == "calibrated"


def test_a_storage_that_was_not_read_is_its_models_and_none_at_all_is_an_error():
    found = _feeding([look(), look(MODES[1], 4)])

    assert found.pipeline_at(16, 1, 2, "hdd", 0.0).storage.latency_s == find_storage("hdd").latency_s
    assert found.pipeline_at(16, 1, 2, "floppy", 1.0).cached == 1.0
    with pytest.raises(UnknownName, match="floppy"):
        found.pipeline_at(16, 1, 2, "floppy", 0.0)


def test_nothing_seen_is_told():
    with pytest.raises(BadInput, match="no finished point"):
        _feeding([])
