"""The measurement of a point: its minibatches, its epochs, its sensor trace, and their source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedge.characterisation.sweep_plan import MeasurementSchedule, SweepPoint, WorkloadPlan
from fedge.errors import BoardError
from fedge.types import Floats, Label, PowerMode

Ints = NDArray[np.int64]
PART_FIELDS = ("stall_s", "compute_s", "copy_s", "overhead_s", "fetch_s", "preprocess_s")
"""Quantities that ``EpochSummary`` and ``MinibatchTimes`` have in common."""
DISTURBED_CORES = 0.2
"""Number of cores kept busy by other programs above which a point counts as disturbed. A default above what an idle
desktop uses: a lower limit marks every point there, a higher one misses a background build."""


@dataclass(frozen=True, slots=True, eq=False)
class MinibatchTimes:
    """The times of every minibatch of a point; arrays of shape (n,) in execution order, times in seconds.

    ``fetch_s`` (reading the files) and ``preprocess_s`` (decoding, transforming) are the costs of making the batch in
    whichever process made it, overlapped with training or not. ``stall_s`` is how long training waits for the batch;
    without workers that is the time of making it. ``compute_s`` is measured by CUDA events on a GPU, else by the
    monotonic clock. ``overhead_s`` is collating (without workers), receiving the batch and the loop's own work, each
    timed separately. ``step_s`` runs from the start of a minibatch to the start of the next, or to the epoch's end, on
    one clock, so that it exceeds the sum of the parts only by what no timer covers.
    """

    epoch: Ints
    step: Ints
    start_s: Floats
    """Time since the point began."""
    fetch_s: Floats
    preprocess_s: Floats
    stall_s: Floats
    copy_s: Floats
    compute_s: Floats
    overhead_s: Floats
    step_s: Floats

    def __len__(self) -> int:
        return len(self.epoch)

    def select(self, keep: NDArray[np.bool_]) -> MinibatchTimes:
        return MinibatchTimes(**{one.name: getattr(self, one.name)[keep] for one in fields(self)})


@dataclass(frozen=True, slots=True)
class EpochSummary:
    """One epoch from end to end, including start and shutdown of its data loader; times are sums over its minibatches.

    Quantities without a sensor are None. Loads range from 0 to 1, relative to all online cores or to the GPU.
    """

    epoch: int
    steps: int
    e2e_s: float
    fetch_s: float
    preprocess_s: float
    stall_s: float
    copy_s: float
    compute_s: float
    overhead_s: float
    energy_j: float | None = None
    power_w: float | None = None
    cpu_load: float | None = None
    gpu_load: float | None = None
    memory_mb: float | None = None
    """Peak resident memory of the training process and its workers."""
    disk_read_mb: float | None = None
    """Read from block devices, not from the page cache."""
    resident_before: float | None = None
    """Share of the data set's pages in the page cache at the start of the epoch."""
    resident_after: float | None = None
    temperature_c: float | None = None
    """Peak temperature during the epoch."""
    throttled: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class SensorTrace:
    """Loads, power and temperature during a point; arrays of shape (n,), NaN where there is no sensor."""

    at_s: Floats
    """Sample times on the clock of ``MinibatchTimes.start_s``."""
    cpu_load: Floats
    gpu_load: Floats
    memory_mb: Floats
    disk_mb_per_s: Floats
    power_w: Floats
    temperature_c: Floats


@dataclass(frozen=True, slots=True, eq=False)
class PointMeasurement:
    """A finished point. ``label`` is ``measured`` for a real machine, else the label of the model behind the values.

    Of a point read from a sweep's folder, the arrays are read on demand, which raises ``BadInput`` if a file is missing
    or damaged.
    """

    point: SweepPoint
    read_minibatches: Callable[[], MinibatchTimes] = field(repr=False)
    epochs: tuple[EpochSummary, ...]
    read_sensor_trace: Callable[[], SensorTrace] = field(repr=False)
    label: Label
    source: str
    """Description of the machine, clock and sensors, or of the model."""
    seconds: float
    """Duration of the whole measurement on the board's clock, including preparation."""
    notes: tuple[str, ...] = ()
    """Deviations from the plan, such as a cache that could not be dropped or a mode that was not held."""
    power_label: Label | None = None
    """None if the power was not metered."""
    parameters: dict[str, float] = field(default_factory=dict)
    """Further values for models and checks; on emulated boards, the inputs of the emulation."""


ProgressCallback = Callable[[str], None]


class MeasurementRig(Protocol):
    """A machine or emulated board that can be characterised, created for one board of a plan."""

    @property
    def maxn(self) -> PowerMode | None:
        """The top power mode; None where modes cannot be set."""
        ...

    @property
    def software(self) -> dict[str, str]:
        """Versions that the measurements depend on, name -> version; a sweep continues only where they are equal."""
        ...

    def refusal_reason(self, point: SweepPoint, workload: WorkloadPlan) -> str | None:
        """Return why the point cannot be measured here, in words for the user, or None if it can."""
        ...

    def measure(
        self, point: SweepPoint, workload: WorkloadPlan, course: MeasurementSchedule, report: ProgressCallback
    ) -> PointMeasurement:
        """Measure a point, independently of any earlier measurement of it.

        Raises:
            BoardError: The measurement failed; the point is then recorded as failed with this reason.
        """
        ...

    def idle(self, seconds: float) -> None:
        """Leave the board idle for the given time, in seconds."""
        ...


TRIAL_STEPS = 50
"""Minibatches of an emulated point that are simulated to estimate its duration. A default: more steps average the
jitter better and delay the estimate."""


def count_epoch_steps(images: int, batch_size: int, course: MeasurementSchedule) -> int:
    """Return the minibatches per epoch without an incomplete last one, at most the plan's ``minibatches``."""
    whole = images // batch_size
    return whole if course.minibatches is None else min(whole, course.minibatches)


def select_counted_epochs(epochs: Sequence[EpochSummary], course: MeasurementSchedule) -> tuple[EpochSummary, ...]:
    """Return the epochs without the first ones that the plan discards, unless none would remain."""
    return tuple(one for one in epochs if one.epoch >= course.discard) or tuple(epochs)


def estimate_remaining_s(done_s: Sequence[float], left: Sequence[SweepPoint], course: MeasurementSchedule) -> float:
    """Estimate the remaining duration of a sweep in seconds, by the mean of at least one finished point's."""
    mean_s = sum(done_s) / len(done_s)
    repeats = len({point.repeat for point in left})
    within_s = len(left) * mean_s
    return max(within_s, (repeats - 1) * course.every_s + within_s / max(repeats, 1))


def estimate_point_s(
    rig: MeasurementRig, point: SweepPoint, workload: WorkloadPlan, course: MeasurementSchedule
) -> float | None:
    """Estimate a point's board time in seconds by simulating a part of one epoch; None if the rig cannot measure it."""
    steps = count_epoch_steps(workload.images.count, point.batch_size, course)
    some = min(TRIAL_STEPS, steps)
    try:
        measurement = rig.measure(
            point, workload, course.model_copy(update={"epochs": 1, "discard": 0, "minibatches": some}), lambda _: None
        )
    except BoardError:
        return None
    return course.epochs * measurement.epochs[0].e2e_s * steps / some
