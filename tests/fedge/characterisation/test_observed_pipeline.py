"""The input pipeline behind a sweep: its samples, its cores and its storages are found again from what they did."""

from dataclasses import replace
from pathlib import Path

import pytest
from contracts.characterised_points import Noise, Truth, finished
from contracts.epoch_looks import FILE_MB, MODES, PLANS, SPEC, TOP, TRUTH, look, pipeline, sweep

from fedge.characterisation.observed_pipeline import PointObservation, extract_observations, fit_input_pipeline
from fedge.characterisation.sweep_plan import (
    CharacterisationPlan,
    Images,
    MeasurementSchedule,
    StoragePlan,
    SweepPoint,
    WorkloadPlan,
)
from fedge.characterisation.sweep_store import SweepResult
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
    named = {"card": StoragePlan(name="card", path="somewhere"), "ssd": PLANS["ssd"]}
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


STEPS = 40
MODE = PowerMode(8, 2265.6, 1377, 2133)
PLAN = CharacterisationPlan(
    "made-up",
    ("agx-xavier-1",),
    {
        "net": WorkloadPlan(
            name="net",
            model="resnet18",
            input=(3, 224, 224),
            classes=10,
            images=Images(count=640, width=800, height=600, kb=100.0),
        )
    },
    {"ssd": StoragePlan(name="ssd", model="ssd")},
    MeasurementSchedule(epochs=2, discard=1),
    (),
)
POINT = SweepPoint("agx-xavier-1", "net", MODE, workers=2, storage="ssd")


def _result(point: SweepPoint = POINT, read_mb: float | None = 64.0, source: str = "files") -> SweepResult:
    """An epoch from the disk and one from the cache, each with a slow beginning."""
    truth = Truth(stall_s=0.01, compute_s=0.1, copy_s=0.002, overhead_s=0.003, fetch_s=0.03, preprocess_s=0.02)
    seen = finished(point, truth, Noise(step=0.0, start=4, start_factor=10.0), steps=STEPS, epochs=2)
    first, second = seen.epochs
    epochs = (replace(first, disk_read_mb=read_mb), replace(second, disk_read_mb=read_mb and 0.0))
    images = PLAN.workloads["net"].images.model_copy(update={"source": source})
    plan = replace(PLAN, workloads={"net": PLAN.workloads["net"].model_copy(update={"images": images})})
    return SweepResult(plan, Path(), (replace(seen, epochs=epochs),), (), ())


def _looks(result: SweepResult) -> tuple[PointObservation, ...]:
    return extract_observations(result, "agx-xavier-1", "net")


def test_the_steady_state_is_without_an_epochs_beginning_and_sums_are_whole():
    result = _result()
    (look,), epoch = _looks(result)[1:], result.points[0].epochs[1]

    assert look.means.stall_s == pytest.approx(0.01)
    assert look.means.compute_s == pytest.approx(0.1)
    assert look.first_s == pytest.approx(0.1)
    assert (look.e2e_s, look.stall_s, look.energy_j) == pytest.approx((epoch.e2e_s, epoch.stall_s, epoch.energy_j))


def test_a_discarded_epoch_from_the_disk_tells_of_loading_alone():
    first, second = _looks(_result())

    assert (first.is_counted, first.cached) == (False, pytest.approx(0.0))
    assert (second.is_counted, second.cached) == (True, pytest.approx(1.0))


def test_a_discarded_epoch_from_the_cache_tells_nothing_new():
    assert [look.is_counted for look in _looks(_result(read_mb=0.0))] == [True]


def test_without_a_disk_counter_a_dropped_cache_answers_nothing_at_first():
    assert [look.cached for look in _looks(_result(read_mb=None))] == [0.0, 1.0]
    assert [look.cached for look in _looks(_result(replace(POINT, cache="warm"), read_mb=None))] == [1.0]


def test_data_in_memory_is_never_read():
    (look,) = _looks(_result(source="memory"))

    assert (look.file_mb, look.cached) == (0.0, 1.0)


def test_other_boards_workloads_and_unknown_modes_are_left_out():
    result = _result()

    assert extract_observations(result, "agx-xavier-2", "net") == ()
    assert extract_observations(result, "agx-xavier-1", "net", "infer") == ()
    assert _looks(_result(replace(POINT, mode=None))) == ()
