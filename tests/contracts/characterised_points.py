"""Made-up points of a sweep: minibatches that take what a test says, with noise that hangs together as it says."""

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from fedge.characterisation.point_measurement import (
    PART_FIELDS,
    EpochSummary,
    MinibatchTimes,
    PointMeasurement,
    SensorTrace,
)
from fedge.characterisation.point_statistics import PointStats, compute_point_stats
from fedge.characterisation.sweep_plan import (
    CharacterisationPlan,
    Images,
    MeasurementSchedule,
    StoragePlan,
    SweepPoint,
    WorkloadPlan,
)
from fedge.types import Floats, Label

COURSE = MeasurementSchedule(epochs=3, discard=1)
NET = WorkloadPlan(
    name="net",
    model="mobilenet_v3_small",
    input=(3, 224, 224),
    classes=10,
    images=Images(count=1600, width=320, height=240),
)
PLAN = CharacterisationPlan(
    "made-up", ("here",), {"net": NET}, {"default": StoragePlan(name="default", path="somewhere")}, COURSE, ()
)


@dataclass(frozen=True)
class Truth:
    """Mean seconds per minibatch and watts; ``first_stall_s`` is that of the first epoch."""

    stall_s: float = 0.004
    compute_s: float = 0.007
    copy_s: float = 0.0005
    overhead_s: float = 0.0005
    fetch_s: float = 0.001
    preprocess_s: float = 0.003
    power_w: float = 15.0
    first_stall_s: float | None = None

    @property
    def step_s(self) -> float:
        return self.stall_s + self.compute_s + self.copy_s + self.overhead_s


@dataclass(frozen=True)
class Noise:
    """Relative standard deviations: of a minibatch's part, of an epoch as a whole, of a sample of watts."""

    step: float = 0.05
    epoch: float = 0.0
    power: float = 0.02
    phi: float = 0.0
    """Correlation of neighbouring minibatches."""
    start: int = 0
    """So many minibatches at an epoch's start take ``start_factor`` times as long."""
    start_factor: float = 3.0


def series(rng: np.random.Generator, n: int, sd: float, phi: float = 0.0) -> Floats:
    """Relative factors around 1: a first-order autoregressive series in its steady state, shape (n,)."""
    shocks = rng.normal(size=n)
    if phi == 0.0:
        return np.maximum(1.0 + sd * shocks, 0.05)
    values = np.empty(n)
    last = rng.normal()
    for i in range(n):
        last = phi * last + (1.0 - phi * phi) ** 0.5 * shocks[i]
        values[i] = last
    return np.maximum(1.0 + sd * values, 0.05)


def finished(
    point: SweepPoint,
    truth: Truth,
    noise: Noise | None = None,
    *,
    seed: int = 0,
    steps: int = 100,
    epochs: int = 3,
    label: Label = "measured",
    metered: bool = True,
) -> PointMeasurement:
    """A point as a rig would have seen it; the same for the same arguments."""
    noise = noise or Noise()
    rng = np.random.default_rng([seed, zlib.crc32(point.key.encode())])
    rows = [_epoch(rng, e, truth, noise, steps) for e in range(epochs)]
    columns = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    step_s = columns["stall_s"] + columns["copy_s"] + columns["compute_s"] + columns["overhead_s"]
    start_s = np.concatenate([[0.0], np.cumsum(step_s)[:-1]])
    minibatches = MinibatchTimes(
        epoch=np.repeat(np.arange(epochs), steps),
        step=np.tile(np.arange(steps), epochs),
        start_s=start_s,
        step_s=step_s,
        **columns,
    )
    count = max(10 * epochs, 2)
    power_w = truth.power_w * series(rng, count, noise.power)
    gone = np.full(count, np.nan)
    at_s = np.linspace(0.0, float(step_s.sum()), count)
    strip = SensorTrace(at_s, gone, gone, gone, gone, power_w if metered else gone, gone)
    return PointMeasurement(
        point=point,
        read_minibatches=lambda: minibatches,
        epochs=tuple(_summed(minibatches, e, strip if metered else None) for e in range(epochs)),
        read_sensor_trace=lambda: strip,
        label=label,
        source="made up",
        seconds=float(step_s.sum()),
        power_label=label if metered else None,
    )


def _epoch(rng: np.random.Generator, epoch: int, truth: Truth, noise: Noise, steps: int) -> dict[str, Floats]:
    stall_s = truth.first_stall_s if epoch == 0 and truth.first_stall_s is not None else truth.stall_s
    whole = 1.0 + noise.epoch * rng.normal()
    means = {
        "fetch_s": truth.fetch_s,
        "preprocess_s": truth.preprocess_s,
        "stall_s": stall_s,
        "copy_s": truth.copy_s,
        "compute_s": truth.compute_s,
        "overhead_s": truth.overhead_s,
    }
    columns = {name: whole * mean * series(rng, steps, noise.step, noise.phi) for name, mean in means.items()}
    for column in columns.values():
        column[: noise.start] *= noise.start_factor
    return columns


def _summed(minibatches: MinibatchTimes, epoch: int, strip: SensorTrace | None) -> EpochSummary:
    own = minibatches.select(minibatches.epoch == epoch)
    e2e_s = float(own.step_s.sum())
    watts = None
    if strip is not None:
        inside = (strip.at_s >= own.start_s[0]) & (strip.at_s <= own.start_s[-1] + own.step_s[-1])
        watts = float(strip.power_w[inside].mean())
    parts = {name: float(getattr(own, name).sum()) for name in PART_FIELDS}
    return EpochSummary(
        epoch, len(own), e2e_s, **parts, energy_j=None if watts is None else watts * e2e_s, power_w=watts
    )


def stats(point: SweepPoint, truth: Truth, noise: Noise | None = None, **given: object) -> PointStats:
    """The figures of a made-up point."""
    return compute_point_stats(finished(point, truth, noise, **given), COURSE)


def sweep(
    points: Iterable[SweepPoint], truth: Callable[[SweepPoint], Truth], noise: Noise | None = None, **given: object
) -> tuple[PointStats, ...]:
    """The figures of a made-up sweep."""
    return tuple(stats(point, truth(point), noise, **given) for point in points)


def varied(point: SweepPoint, knob: str, values: Iterable[object]) -> list[SweepPoint]:
    """The point with the knob at each of the values."""
    return [replace(point, **{knob: value}) for value in values]
