"""A rig whose figures are a function of the point alone, and a plan for it; what it measured is counted in a file."""

import os
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedge.characterisation.point_measurement import EpochSummary, MinibatchTimes, PointMeasurement, SensorTrace
from fedge.characterisation.sweep_plan import (
    CharacterisationPlan,
    Images,
    MeasurementSchedule,
    StoragePlan,
    SweepPoint,
    WorkloadPlan,
    cross_knobs,
    order_points,
)
from fedge.errors import BoardError
from fedge.types import PowerMode

STEPS = 4


def fake_plan(workers=(0, 1, 2), batches=(8, 16), repeats=2, seed=0, **changes) -> CharacterisationPlan:
    """A plan of one fake board."""
    points = cross_knobs("fake-1", {"workload": "net"}, [{"workers": workers, "batch_size": batches}])
    given = {
        "name": "fake",
        "boards": ("fake-1",),
        "workloads": {
            "net": WorkloadPlan(
                name="net",
                model="lenet5",
                input=(1, 28, 28),
                classes=10,
                images=Images(count=64, width=28, height=28, channels=1, source="memory"),
            )
        },
        "storages": {"default": StoragePlan(name="default")},
        "course": MeasurementSchedule(epochs=2, repeats=repeats),
        "points": order_points(points, repeats, seed),
        "seed": seed,
        "base": {"workload": "net", "workers": 0},
        "swept": (("batch_size", "workers"),),
    }
    return CharacterisationPlan(**{**given, **changes})


def fake_seen(point: SweepPoint, epochs: int = 2, seconds: float = 10.0) -> PointMeasurement:
    """What the rig sees of a point: always the same."""
    rng = np.random.default_rng(zlib.crc32(point.key.encode()))
    n = epochs * STEPS
    parts = {name: rng.uniform(0.01, 0.1, n) for name in ("stall_s", "copy_s", "compute_s", "overhead_s")}
    step_s = sum(parts.values())
    minibatches = MinibatchTimes(
        epoch=np.repeat(np.arange(epochs), STEPS),
        step=np.tile(np.arange(STEPS), epochs),
        start_s=np.concatenate([[0.0], np.cumsum(step_s)[:-1]]),
        fetch_s=rng.uniform(0.01, 0.1, n),
        preprocess_s=rng.uniform(0.01, 0.1, n),
        step_s=step_s,
        **parts,
    )
    times = np.arange(5.0)
    blind = np.full(5, np.nan)
    strip = SensorTrace(times, rng.uniform(0, 1, 5), blind, times, blind, rng.uniform(5, 9, 5), blind)
    return PointMeasurement(
        point, lambda: minibatches, tuple(_epoch(minibatches, e) for e in range(epochs)), lambda: strip, "estimated",
        "a fake", seconds, ("odd",), "estimated", {"x": 1.5},
    )  # fmt: skip


def _epoch(minibatches: MinibatchTimes, epoch: int) -> EpochSummary:
    own = minibatches.select(minibatches.epoch == epoch)
    names = ("fetch_s", "preprocess_s", "stall_s", "copy_s", "compute_s", "overhead_s")
    sums = {name: float(getattr(own, name).sum()) for name in names}
    return EpochSummary(epoch=epoch, steps=len(own), e2e_s=float(own.step_s.sum()), energy_j=12.5, power_w=None, **sums)


@dataclass
class FakeRig:
    """``log`` gets a line for every point that is measured, when that begins."""

    log: Path | None = None
    seconds: float = 0.0
    refused: dict[str, str] = field(default_factory=dict)
    failing: dict[str, int] = field(default_factory=dict)
    """Point's key -> how often it fails before it works."""
    rested: list[float] = field(default_factory=list)
    measured: list[SweepPoint] = field(default_factory=list)
    took_s: float = 10.0
    maxn: PowerMode | None = None
    software: dict[str, str] = field(default_factory=lambda: {"fake": "1"})

    def refusal_reason(self, point, workload):
        return self.refused.get(point.key)

    def measure(self, point, workload, course, told):
        if self.log is not None:
            file = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(file, f"{point.key}\n".encode())
            os.close(file)
        self.measured.append(point)
        told("measuring")
        if self.failing.get(point.key, 0) > 0:
            self.failing[point.key] -= 1
            raise BoardError("it fell over")
        time.sleep(self.seconds)
        return fake_seen(point, course.epochs, self.took_s)

    def idle(self, seconds):
        self.rested.append(seconds)
