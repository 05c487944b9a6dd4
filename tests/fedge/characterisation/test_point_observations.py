"""Looks at points: which minibatches are the steady state, which epochs count, what the page cache answered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedge.characterisation.point_measurement import EpochSummary, MinibatchTimes, PointMeasurement, SensorTrace
from fedge.characterisation.point_observations import PointObservation, extract_observations
from fedge.characterisation.sweep_plan import (
    CharacterisationPlan,
    Images,
    MeasurementSchedule,
    StoragePlan,
    SweepPoint,
    WorkloadPlan,
)
from fedge.characterisation.sweep_store import SweepResult, to_finished_point
from fedge.types import PowerMode

STEPS = 40
MODE = PowerMode(8, 2265.6, 1377, 2133)
NONE = SensorTrace(*(np.zeros(0) for _ in range(7)))
PLAN = CharacterisationPlan(
    "made-up",
    ("agx-xavier-1",),
    {"net": WorkloadPlan("net", "resnet18", (3, 224, 224), 10, Images(640, 800, 600, kb=100.0))},
    {"ssd": StoragePlan("ssd", model="ssd")},
    MeasurementSchedule(epochs=2, discard=1),
    (),
)
POINT = SweepPoint("agx-xavier-1", "net", MODE, workers=2, storage="ssd")


def _result(
    point: SweepPoint = POINT, read_mb: float | None = 64.0, source: str = "files", epochs: int = 2
) -> SweepResult:
    """An epoch from the disk and others from the cache, each with a slow beginning."""
    number = np.tile(np.arange(STEPS), epochs)
    epoch = np.repeat(np.arange(epochs), STEPS)
    slow = np.where(number < 4, 10.0, 1.0)
    ones = np.ones(len(number))
    minibatches = MinibatchTimes(
        epoch,
        number,
        np.cumsum(ones),
        0.03 * ones,
        0.02 * ones,
        0.01 * slow,
        0.002 * ones,
        0.1 * slow,
        0.003 * ones,
        ones,
    )
    rows = tuple(
        EpochSummary(
            i, STEPS, 7.0, 1.2, 0.8, 0.9, 0.1, 4.5, 0.1, 70.0, 10.0, disk_read_mb=read_mb if i == 0 else read_mb and 0.0
        )
        for i in range(epochs)
    )
    seen = to_finished_point(
        PointMeasurement(point, minibatches, rows, NONE, "measured", "made up", 14.0, power_label="measured")
    )
    images = replace(PLAN.workloads["net"].images, source=source)
    plan = replace(PLAN, workloads={"net": replace(PLAN.workloads["net"], images=images)})
    return SweepResult(plan, Path(), (seen,), (), ())


def _looks(result: SweepResult) -> tuple[PointObservation, ...]:
    return extract_observations(result, "agx-xavier-1", "net")


def test_the_steady_state_is_without_an_epochs_beginning_and_sums_are_whole():
    *_, look = _looks(_result())

    assert look.means.stall_s == pytest.approx(0.01)
    assert look.means.compute_s == pytest.approx(0.1)
    assert look.first_s == pytest.approx(0.1)
    assert (look.e2e_s, look.stall_s, look.energy_j) == pytest.approx((7.0, 0.9, 70.0))


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
