"""Sweeps made up from a few formulas, so that pages can be tested without a board: plausible arrays, any points."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.report.characterisation.characterisation_summary import (
    CharacterisationSummary,
    SettingSummary,
    summarise_result,
    summarise_settings,
)
from fedge.characterisation.point_measurement import EpochSummary, MinibatchTimes, PointMeasurement, SensorTrace
from fedge.characterisation.point_statistics import compute_point_stats
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

MAXN = PowerMode(8, 2265.6, 1377.0, 2133.0)
"""Of an AGX Xavier."""
STORAGE_S = {"ssd": 0.4e-3, "sd": 1.6e-3, "hdd": 3.2e-3}
"""To read one file that is not cached."""


def seen_of(
    point: SweepPoint, steps: int = 60, epochs: int = 3, *, metered: bool = True, gpu: bool = True
) -> PointMeasurement:
    """A point by formulas: without workers the stall is making a batch, with them what computing does not hide."""
    noise = np.random.default_rng(int(point.key, 16))
    mode = point.mode or MAXN
    n = steps * epochs
    epoch, step = np.repeat(np.arange(epochs), steps), np.tile(np.arange(steps), epochs)
    slow = 1.0 + 0.03 * (sum(map(ord, point.board)) % 4) + 0.01 * noise.standard_normal()
    cold = ((epoch == 0) & (point.cache == "dropped")).astype(float)
    fetch = point.batch_size * (0.1e-3 + cold * STORAGE_S.get(point.storage, 0.4e-3)) * noise.lognormal(0, 0.1, n)
    preprocess = point.batch_size * 2e-3 * slow * (2265.6 / mode.cpu_mhz) * noise.lognormal(0, 0.05, n)
    images = {"resnet": 2.5e-3, "lenet": 0.2e-3}.get(point.workload, 1.2e-3)
    compute = (4e-3 + point.batch_size * images * slow * 1377.0 / mode.gpu_mhz) * noise.lognormal(0, 0.02, n)
    compute = compute / 3 if point.kind == "infer" else compute
    compute[0] *= 12
    compute[(step == steps // 2) & (epoch > 0)] *= 4
    making = fetch + preprocess
    stall = making if point.workers == 0 else np.maximum(making / min(point.workers, mode.cores) - compute, 0.0)
    copy, overhead = np.full(n, 0.3e-3), 1e-3 + 0.2e-3 * noise.random(n)
    lasted = stall + copy + compute + overhead
    arrays = (fetch, preprocess, stall, copy, compute, overhead, lasted)
    minibatches = MinibatchTimes(epoch, step, np.cumsum(lasted) - lasted, *arrays)
    watts = (8.0 + 0.6 * mode.cores + 14.0 * mode.gpu_mhz / 1377.0) * (1.0 + 0.002 * noise.standard_normal())
    trace = _strip(float(lasted.sum()), watts if metered else float("nan"), gpu=gpu, noise=noise)
    return PointMeasurement(
        point=point,
        read_minibatches=lambda: minibatches,
        epochs=tuple(_epoch(minibatches, i, watts if metered else None) for i in range(epochs)),
        read_sensor_trace=lambda: trace,
        label="estimated",
        source="formulas of a test",
        seconds=float(lasted.sum()) + 4.0,
        power_label="estimated" if metered else None,
    )


def _epoch(every: MinibatchTimes, i: int, watts: float | None) -> EpochSummary:
    own = every.select(every.epoch == i)
    parts = ("fetch_s", "preprocess_s", "stall_s", "copy_s", "compute_s", "overhead_s")
    e2e_s = float(own.step_s.sum()) + 0.05
    sums = {name: float(getattr(own, name).sum()) for name in parts}
    joules = None if watts is None else watts * e2e_s
    return EpochSummary(i, len(own), e2e_s, **sums, energy_j=joules, power_w=watts, cpu_load=0.4, temperature_c=51.0)


def _strip(lasted_s: float, watts: float, *, gpu: bool, noise: np.random.Generator) -> SensorTrace:
    at_s = np.arange(0.0, lasted_s, 0.2)
    n = len(at_s)
    none = np.full(n, np.nan)
    return SensorTrace(
        at_s=at_s,
        cpu_load=np.clip(0.4 + 0.1 * noise.standard_normal(n), 0, 1),
        gpu_load=np.clip(0.8 + 0.1 * noise.standard_normal(n), 0, 1) if gpu else none,
        memory_mb=1500 + np.minimum(np.arange(n), 20) * 10.0,
        disk_mb_per_s=np.maximum(30 - at_s, 0),
        power_w=watts + noise.standard_normal(n),
        temperature_c=45 + 6 * (1 - np.exp(-at_s / 10)),
    )


def sweep_of(
    folder: Path,
    points: Sequence[SweepPoint],
    failed: Sequence[tuple[SweepPoint, str]] = (),
    skipped: Sequence[tuple[SweepPoint, str]] = (),
    name: str = "made up",
    **seen: Any,
) -> SweepResult:
    """A result whose points are by ``seen_of``; failed and skipped ones are beside them."""
    every = (*points, *(one for one, _ in failed), *(one for one, _ in skipped))
    images = Images(count=960, width=256, height=256)
    workloads = {
        one: WorkloadPlan(name=one, model=one, input=(3, 224, 224), classes=10, images=images)
        for one in sorted({p.workload for p in every})
    }
    plan = CharacterisationPlan(
        name=name,
        boards=tuple(sorted({one.board for one in every})) or ("agx-xavier-1",),
        workloads=workloads,
        storages={one: StoragePlan(name=one, model=one) for one in sorted({p.storage for p in every})},
        course=MeasurementSchedule(repeats=1 + max((one.repeat for one in every), default=0)),
        points=tuple(every),
    )
    finished = tuple(seen_of(one, **seen) for one in points)
    return SweepResult(plan, folder, finished, tuple(skipped), tuple(failed))


def few_points() -> list[SweepPoint]:
    """Two boards, workers and clocks one at a time, three repeats of the base."""
    base = SweepPoint("agx-xavier-1", "mobilenet", MAXN, workers=1, storage="ssd")
    boards = [dataclasses.replace(base, board=board) for board in ("agx-xavier-1", "agx-xavier-2")]
    found = [dataclasses.replace(one, workers=workers) for one in boards for workers in (0, 1, 2, 4)]
    slow = dataclasses.replace(MAXN, gpu_mhz=675.75)
    found += [
        dataclasses.replace(one, mode=mode) for one in boards for mode in (slow, PowerMode(4, 1190.4, 675.75, 1331.2))
    ]
    found += [dataclasses.replace(one, repeat=repeat) for one in boards for repeat in (1, 2)]
    return list(dict.fromkeys(found))


@pytest.fixture
def sweep(tmp_path: Path) -> Callable[..., SweepResult]:
    """A result of the points given, in a folder of its own."""

    def made(points: Sequence[SweepPoint], **more: Any) -> SweepResult:
        return sweep_of(tmp_path, points, **more)

    return made


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    return sweep_of(tmp_path_factory.mktemp("few"), few_points())


@pytest.fixture
def base() -> SweepPoint:
    return SweepPoint("agx-xavier-1", "mobilenet", MAXN, workers=1, storage="ssd")


@pytest.fixture(scope="module")
def settings(few: SweepResult) -> tuple[SettingSummary, ...]:
    return summarise_settings([compute_point_stats(one, few.plan.course) for one in few.points], {})


@pytest.fixture(scope="module")
def told(few: SweepResult) -> CharacterisationSummary:
    return summarise_result(few)
