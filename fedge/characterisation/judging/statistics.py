"""What a finished point says: means per epoch with confidence intervals, warm-up, steadiness, outliers, labels.

Within an epoch the interval is that of batch means over its minibatches after the start (``estimate``); several epochs
are joined, or are themselves the independent figures where they differ by more than their minibatches explain. Watts
come from the strip's samples in the same way; joules scatter as watts and seconds do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedge.characterisation.judging.estimate import Estimate, batch_mean, estimate, exactly, joined, together
from fedge.characterisation.judging.steadiness import Steadiness, drifts, steadiness
from fedge.characterisation.plans.plan import Course
from fedge.characterisation.point import Point
from fedge.characterisation.result import Finished
from fedge.characterisation.seen import Epoch, Minibatches, Strip
from fedge.types import Floats, Label

PARTS = ("stall_s", "compute_s", "copy_s", "overhead_s", "fetch_s", "preprocess_s")
"""The quantities of ``Epoch`` and ``Minibatches`` alike."""


@dataclass(frozen=True, slots=True)
class PointStats:
    """A point's figures: means per epoch over the epochs that count, seconds, joules and watts.

    ``stall_s`` .. ``preprocess_s`` are sums over an epoch's minibatches. stall + copy + compute + overhead is ``e2e_s``
    up to what nobody timed; ``fetch_s`` and ``preprocess_s`` overlap with it where there are workers. What nobody
    metered is None.
    """

    point: Point
    label: Label
    power_label: Label | None
    epochs: tuple[int, ...]
    """Those that count."""
    minibatches: int
    """Those of the epochs that count."""
    steps: float
    """Minibatches per epoch."""
    e2e_s: Estimate
    stall_s: Estimate
    compute_s: Estimate
    copy_s: Estimate
    overhead_s: Estimate
    fetch_s: Estimate
    preprocess_s: Estimate
    energy_j: Estimate | None
    power_w: Estimate | None
    first_e2e_s: Estimate
    """Of the first epoch, whether it counts or not: there the page cache may be empty."""
    first_stall_s: Estimate
    step_s: Estimate
    """One minibatch from end to end in the steady state: without warm-up, with outliers."""
    warm_up: int
    """So many minibatches at the start of the first epoch that counts are not like the others."""
    settled: bool
    unsettled: str
    """Why not; empty where it is."""
    outliers: int
    """Minibatches marked as such; they are in every sum."""
    by_epoch: Mapping[str, tuple[Estimate, ...]] = field(default_factory=dict)
    """Of every epoch that counts, by the name of the field; what its own minibatches and samples say."""
    cpu_load: float | None = None
    gpu_load: float | None = None
    memory_mb: float | None = None
    disk_read_mb: float | None = None
    first_disk_read_mb: float | None = None
    resident_before: float | None = None
    """Means over the epochs that count; memory is the largest."""
    throttled: bool = False
    notes: tuple[str, ...] = ()
    parameters: Mapping[str, float] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The point's."""
        return self.point.key

    @property
    def samples(self) -> float:
        """Per epoch; a last minibatch that is not full counts as full."""
        return self.steps * self.point.batch_size

    @property
    def untimed_s(self) -> float:
        """What of an epoch nobody timed: making the loader and throwing it away, gaps."""
        parts = (self.stall_s, self.copy_s, self.compute_s, self.overhead_s)
        return self.e2e_s.value - sum(part.value for part in parts)


def stats_of(finished: Finished, course: Course) -> PointStats:
    """The figures of a finished point. ``course.discard`` first epochs do not count, unless none would be left.

    Raises ``ValueError`` for a point without epochs.
    """
    if not finished.epochs:
        raise ValueError(f"point {finished.point.key} has no epochs")
    counted = finished.epochs[course.discard :] or finished.epochs
    every = _cut(finished.minibatches(), finished.epochs)
    pieces = [every[epoch.epoch] for epoch in counted]
    first = (finished.epochs[:1], [every[finished.epochs[0].epoch]])
    by_epoch = _by_epoch(counted, pieces, finished.strip())
    means: dict[str, Any] = {name: together(own) if own else None for name, own in by_epoch.items()}
    judged = _judged(pieces)
    return PointStats(
        point=finished.point,
        label=finished.label,
        power_label=finished.power_label,
        epochs=tuple(epoch.epoch for epoch in counted),
        minibatches=sum(epoch.steps for epoch in counted),
        steps=_mean([epoch.steps for epoch in counted]) or 0.0,
        **means,
        by_epoch=by_epoch,
        first_e2e_s=together(_per_epoch(*first, "e2e_s", "step_s")),
        first_stall_s=together(_per_epoch(*first, "stall_s", "stall_s")),
        warm_up=judged.warm_up,
        settled=judged.settled,
        unsettled=judged.why,
        outliers=int(judged.outliers.sum()),
        cpu_load=_mean([epoch.cpu_load for epoch in counted]),
        gpu_load=_mean([epoch.gpu_load for epoch in counted]),
        memory_mb=max((e.memory_mb for e in counted if e.memory_mb is not None), default=None),
        disk_read_mb=_mean([epoch.disk_read_mb for epoch in counted]),
        first_disk_read_mb=finished.epochs[0].disk_read_mb,
        resident_before=_mean([epoch.resident_before for epoch in counted]),
        throttled=any(epoch.throttled for epoch in finished.epochs),
        notes=finished.notes,
        parameters=finished.parameters,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """An epoch's minibatches, and how many of them are its start."""

    minibatches: Minibatches
    judged: Steadiness


def _cut(minibatches: Minibatches, epochs: Sequence[Epoch]) -> dict[int, _Piece | None]:
    """By epoch; None for one of which no minibatch is there."""
    pieces: dict[int, _Piece | None] = {}
    for epoch in epochs:
        own = minibatches.of(minibatches.epoch == epoch.epoch)
        pieces[epoch.epoch] = _Piece(own, steadiness(own.step_s)) if len(own) else None
    return pieces


def _by_epoch(
    epochs: Sequence[Epoch], pieces: Sequence[_Piece | None], strip: Strip
) -> dict[str, tuple[Estimate, ...]]:
    """By the name of a field of ``PointStats``; empty where it was not metered."""
    found = {name: _per_epoch(epochs, pieces, name, name) for name in PARTS}
    found["e2e_s"] = _per_epoch(epochs, pieces, "e2e_s", "step_s")
    found["step_s"] = tuple(_step(epoch, piece) for epoch, piece in zip(epochs, pieces, strict=True))
    watts = [_power(epoch, piece, strip) for epoch, piece in zip(epochs, pieces, strict=True)]
    joules = [_energy(epoch, w, s) for epoch, w, s in zip(epochs, watts, found["e2e_s"], strict=True)]
    found["power_w"] = tuple(one for one in watts if one is not None)
    found["energy_j"] = tuple(one for one in joules if one is not None)
    return found


def _per_epoch(
    epochs: Sequence[Epoch], pieces: Sequence[_Piece | None], name: str, column: str
) -> tuple[Estimate, ...]:
    """A field of ``Epoch``, whose minibatches' figures are ``column``."""
    own: list[Estimate] = []
    for epoch, piece in zip(epochs, pieces, strict=True):
        value = float(getattr(epoch, name))
        rest = getattr(piece.minibatches, column)[piece.judged.warm_up :] if piece else np.empty(0)
        spread = batch_mean(rest) if len(rest) > 1 else None
        own.append(estimate(value, spread.se * len(rest), spread.n) if spread else exactly(value))
    return tuple(own)


def _step(epoch: Epoch, piece: _Piece | None) -> Estimate:
    """Seconds of a minibatch after the start."""
    if piece is None:
        return exactly(epoch.e2e_s / max(epoch.steps, 1))
    return batch_mean(piece.minibatches.step_s[piece.judged.warm_up :])


def _power(epoch: Epoch, piece: _Piece | None, strip: Strip) -> Estimate | None:
    if epoch.power_w is None:
        return None
    watts = _watts(piece.minibatches, strip) if piece else np.empty(0)
    spread = batch_mean(watts) if len(watts) > 1 else None
    return estimate(epoch.power_w, spread.se, spread.n) if spread else exactly(epoch.power_w)


def _energy(epoch: Epoch, power_w: Estimate | None, e2e_s: Estimate) -> Estimate | None:
    """It scatters as watts and seconds do."""
    if epoch.energy_j is None:
        return None
    if power_w is None or not (power_w.bounded and e2e_s.bounded) or power_w.value <= 0 or e2e_s.value <= 0:
        return exactly(epoch.energy_j)
    se, freedom = joined([(part.se / part.value, part.n - 1) for part in (power_w, e2e_s)])
    return estimate(epoch.energy_j, se * epoch.energy_j, int(freedom) + 1)


def _watts(minibatches: Minibatches, strip: Strip) -> Floats:
    """The strip's samples of an epoch."""
    begin, end = minibatches.start_s[0], minibatches.start_s[-1] + minibatches.step_s[-1]
    inside = (strip.at_s >= begin) & (strip.at_s <= end) & np.isfinite(strip.power_w)
    watts: Floats = strip.power_w[inside]
    return watts


def _judged(pieces: Sequence[_Piece | None]) -> Steadiness:
    """Of all epochs that count, one after the other without their starts."""
    there = [piece for piece in pieces if piece]
    if not there:
        return Steadiness(0, np.zeros(0, dtype=np.bool_), settled=False, why="no minibatches are there")
    series = np.concatenate([piece.minibatches.step_s[piece.judged.warm_up :] for piece in there])
    marked = np.concatenate([piece.judged.outliers for piece in there])
    why = drifts(series)
    return Steadiness(there[0].judged.warm_up, marked, not why, why)


def _mean(values: Sequence[float | None]) -> float | None:
    """Of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
