"""What was seen of a point: its minibatches, its epochs, the strip of loads and watts over time, and who says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedge.characterisation.sweep_plan import MeasurementSchedule, SweepPoint, WorkloadPlan
from fedge.errors import BoardError
from fedge.types import Floats, Label, PowerMode

Ints = NDArray[np.int64]
DISTURBED_CORES = 0.2
"""Others' work, in cores, from which on a point counts as disturbed; chosen by us, above a desktop's at rest."""


@dataclass(frozen=True, slots=True, eq=False)
class MinibatchTimes:
    """Every minibatch of a point; arrays of shape (n,), seconds, in the order in which they were done.

    ``fetch_s`` (reading the files) and ``preprocess_s`` (decoding, transforming) are what making the batch took whoever
    made it, overlapped with training or not. ``stall_s`` is how long the training waited for the batch; without workers
    that is the making itself. ``compute_s`` is by CUDA events on a GPU, by the monotonic clock otherwise.
    ``overhead_s`` is collating (without workers), taking the batch over and the loop's own work, timed for themselves.
    ``step_s`` runs from the start of a minibatch to the start of the next, or to the epoch's end, on one clock: the
    parts add up to it as far as nothing was missed.
    """

    epoch: Ints
    step: Ints
    start_s: Floats
    """On a clock that begins with the point."""
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
        """Those that ``keep`` marks."""
        return MinibatchTimes(**{one.name: getattr(self, one.name)[keep] for one in fields(self)})


@dataclass(frozen=True, slots=True)
class EpochSummary:
    """One epoch from end to end, with its data loader made and thrown away; sums over its minibatches in seconds.

    What a machine has no sensor for is None. Loads are from 0 to 1, of all cores that are online.
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
    """Largest resident memory of the training and its workers."""
    disk_read_mb: float | None = None
    """Read from the block devices, not from the page cache."""
    resident_before: float | None = None
    """Share of the data set's pages in the page cache when the epoch began."""
    resident_after: float | None = None
    temperature_c: float | None = None
    """The highest of the epoch."""
    throttled: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class SensorTrace:
    """Loads, watts and temperature over a point's time; arrays of shape (n,), NaN where there is no sensor."""

    at_s: Floats
    """On the clock of ``MinibatchTimes.start_s``."""
    cpu_load: Floats
    gpu_load: Floats
    memory_mb: Floats
    disk_mb_per_s: Floats
    power_w: Floats
    temperature_c: Floats


@dataclass(frozen=True, slots=True, eq=False)
class PointMeasurement:
    """A finished point. ``label`` is ``measured`` for a real machine, else that of the model behind the figures."""

    point: SweepPoint
    minibatches: MinibatchTimes
    epochs: tuple[EpochSummary, ...]
    sensor_trace: SensorTrace
    label: Label
    source: str
    """In words: which machine, clock and sensors, or which model."""
    seconds: float
    """What measuring it took, of the board's own time, with everything around it."""
    notes: tuple[str, ...] = ()
    """What was odd: a cache that could not be dropped, a mode that could not be held."""
    power_label: Label | None = None
    """None where nobody metered the power."""
    parameters: dict[str, float] = field(default_factory=dict)
    """Emulated boards: what the model was told, for whoever wants to check it."""


ProgressCallback = Callable[[str], None]


class MeasurementRig(Protocol):
    """What can be characterised. Made for one board of a plan."""

    @property
    def maxn(self) -> PowerMode | None:
        """The top power mode; None where modes cannot be set."""
        ...

    @property
    def software(self) -> dict[str, str]:
        """What the figures depend on, name -> version; a sweep goes on only where it is the same."""
        ...

    def refusal_reason(self, point: SweepPoint, workload: WorkloadPlan) -> str | None:
        """Why the point cannot be measured here, in words for the user; None where it can."""
        ...

    def measure(
        self, point: SweepPoint, workload: WorkloadPlan, course: MeasurementSchedule, told: ProgressCallback
    ) -> PointMeasurement:
        """Measure it, whatever was measured before; ``told`` hears how far it is.

        Raises ``BoardError`` when it cannot be done after all: the point is then a row with its reason.
        """
        ...

    def idle(self, seconds: float) -> None:
        """Let the board do nothing for so long."""
        ...


TRIAL_STEPS = 50
"""So many minibatches of an emulated point are looked at; chosen by us."""


def count_epoch_steps(images: int, batch_size: int, course: MeasurementSchedule) -> int:
    """Minibatches of an epoch: whole ones alone, as many as the plan's course has at most."""
    whole = images // batch_size
    return whole if course.minibatches is None else min(whole, course.minibatches)


def estimate_remaining_s(done_s: Sequence[float], left: Sequence[SweepPoint], course: MeasurementSchedule) -> float:
    """Seconds that the points ``left`` will take, at the mean of those done, with the rests before further repeats."""
    mean_s = sum(done_s) / len(done_s)
    repeats = len({point.repeat for point in left})
    within_s = len(left) * mean_s
    return max(within_s, (repeats - 1) * course.every_s + within_s / max(repeats, 1))


def estimate_point_s(
    rig: MeasurementRig, point: SweepPoint, workload: WorkloadPlan, course: MeasurementSchedule
) -> float | None:
    """About how many seconds of the board's own time a point takes; None where nobody can say."""
    steps = count_epoch_steps(workload.images.count, point.batch_size, course)
    some = min(TRIAL_STEPS, steps)
    try:
        seen = rig.measure(point, workload, replace(course, epochs=1, discard=0, minibatches=some), lambda _: None)
    except BoardError:
        return None
    return course.epochs * seen.epochs[0].e2e_s * steps / some
