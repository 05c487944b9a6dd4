"""Looks at points: which minibatches are the steady state, which epochs count, what the page cache answered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from contracts.characterised_points import Noise, Truth, finished

from fedge.characterisation.observed_pipeline import PointObservation, extract_observations
from fedge.characterisation.sweep_plan import (
    CharacterisationPlan,
    Images,
    MeasurementSchedule,
    StoragePlan,
    SweepPoint,
    WorkloadPlan,
)
from fedge.characterisation.sweep_store import SweepResult
from fedge.types import PowerMode

STEPS = 40
MODE = PowerMode(8, 2265.6, 1377, 2133)
PLAN = CharacterisationPlan(
    "made-up",
    ("agx-xavier-1",),
    {"net": WorkloadPlan("net", "resnet18", (3, 224, 224), 10, Images(640, 800, 600, kb=100.0))},
    {"ssd": StoragePlan("ssd", model="ssd")},
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
    images = replace(PLAN.workloads["net"].images, source=source)
    plan = replace(PLAN, workloads={"net": replace(PLAN.workloads["net"], images=images)})
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
