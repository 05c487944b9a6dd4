"""What was seen of a point: its minibatches, its epochs, the strip of loads and watts over time, and who says so."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from fedge.characterisation.point import Point
from fedge.types import Floats, Label

Ints = NDArray[np.int64]
DISTURBED_CORES = 0.2
"""Others' work, in cores, from which on a point counts as disturbed; chosen by us, above a desktop's at rest."""


@dataclass(frozen=True, slots=True, eq=False)
class Minibatches:
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

    def of(self, keep: NDArray[np.bool_]) -> Minibatches:
        """Those that ``keep`` marks."""
        return Minibatches(**{one.name: getattr(self, one.name)[keep] for one in fields(self)})


@dataclass(frozen=True, slots=True)
class Epoch:
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
class Strip:
    """Loads, watts and temperature over a point's time; arrays of shape (n,), NaN where there is no sensor."""

    at_s: Floats
    """On the clock of ``Minibatches.start_s``."""
    cpu_load: Floats
    gpu_load: Floats
    memory_mb: Floats
    disk_mb_per_s: Floats
    power_w: Floats
    temperature_c: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """A finished point. ``label`` is ``measured`` for a real machine, else that of the model behind the figures."""

    point: Point
    minibatches: Minibatches
    epochs: tuple[Epoch, ...]
    strip: Strip
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
