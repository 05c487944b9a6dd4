"""Statistics of a finished point: means per epoch with confidence intervals, warm-up, steadiness, outliers, labels.

Within an epoch the interval comes from batch means over the minibatches after warm-up (``batch_mean_estimate``).
Several epochs are combined, and count as the independent samples where they differ by more than their minibatches
explain. Power is estimated from the sensor trace's samples in the same way; the relative error of energy combines those
of power and time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from fedge.characterisation.point_measurement import (
    PART_FIELDS,
    EpochSummary,
    MinibatchTimes,
    PointMeasurement,
    SensorTrace,
    select_counted_epochs,
)
from fedge.characterisation.stability import Steadiness, assess_steadiness, describe_drift
from fedge.characterisation.sweep_plan import MeasurementSchedule, SweepPoint
from fedge.confidence_interval import (
    Estimate,
    batch_mean_estimate,
    combine_errors,
    combine_estimates,
    make_estimate,
    make_unbounded_estimate,
    mean_of_known,
    widen_by_scatter,
)
from fedge.groups import group_by
from fedge.types import Floats, Label


@dataclass(frozen=True, slots=True)
class PointStats:
    """Statistics of a point: means per epoch over the counted epochs, in seconds, joules and watts.

    ``stall_s`` to ``preprocess_s`` are sums over an epoch's minibatches. stall + copy + compute + overhead equals
    ``e2e_s`` up to time that no timer covers; ``fetch_s`` and ``preprocess_s`` overlap with it where there are workers.
    Quantities that were not metered are None.
    """

    point: SweepPoint
    label: Label
    power_label: Label | None
    epochs: tuple[int, ...]
    """Indices of the counted epochs."""
    minibatches: int
    """Number of minibatches in the counted epochs."""
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
    """Of the first epoch, whether counted or not: its page cache may be empty."""
    first_stall_s: Estimate
    step_s: Estimate
    """Duration of one minibatch in the steady state: without warm-up, with outliers."""
    warm_up: int
    """Number of warm-up minibatches at the start of the first counted epoch."""
    settled: bool
    unsettled_reason: str
    """Empty if ``settled``."""
    outliers: int
    """Number of minibatches marked as outliers; they are included in every sum."""
    by_epoch: Mapping[str, tuple[Estimate, ...]] = field(default_factory=dict)
    """Estimates from each counted epoch's own minibatches and samples, by field name."""
    cpu_load: float | None = None
    gpu_load: float | None = None
    memory_mb: float | None = None
    disk_read_mb: float | None = None
    resident_before: float | None = None
    """Means over the counted epochs; memory is the maximum."""
    throttled: bool = False
    notes: tuple[str, ...] = ()
    parameters: Mapping[str, float] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return self.point.key

    @property
    def samples(self) -> float:
        """Samples per epoch; an incomplete last minibatch counts as full."""
        return self.steps * self.point.batch_size

    @property
    def untimed_s(self) -> float:
        """Part of an epoch that no timer covers, in seconds: start and shutdown of the loader, gaps between timers."""
        parts = (self.stall_s, self.copy_s, self.compute_s, self.overhead_s)
        return self.e2e_s.value - sum(part.value for part in parts)


def compute_point_stats(finished: PointMeasurement, course: MeasurementSchedule) -> PointStats:
    """Compute the statistics of a finished point over the epochs that the plan's schedule counts.

    Raises:
        BadInput: A file of the point is missing or damaged.
        ValueError: The point has no epochs.
    """
    if not finished.epochs:
        raise ValueError(f"point {finished.point.key} has no epochs")
    counted = select_counted_epochs(finished.epochs, course)
    every = _split_by_epoch(finished.read_minibatches(), finished.epochs)
    pieces = [every[epoch.epoch] for epoch in counted]
    first = (finished.epochs[:1], [every[finished.epochs[0].epoch]])
    by_epoch = _estimate_by_epoch(counted, pieces, finished.read_sensor_trace())
    means: dict[str, Any] = {name: combine_estimates(own) if own else None for name, own in by_epoch.items()}
    names = ("cpu_load", "gpu_load", "disk_read_mb", "resident_before")
    loads: dict[str, Any] = {name: mean_of_known([getattr(epoch, name) for epoch in counted]) for name in names}
    judged = _assess_epochs(pieces)
    return PointStats(
        point=finished.point,
        label=finished.label,
        power_label=finished.power_label,
        epochs=tuple(epoch.epoch for epoch in counted),
        minibatches=sum(epoch.steps for epoch in counted),
        steps=mean_of_known([epoch.steps for epoch in counted]) or 0.0,
        **means,
        **loads,
        by_epoch=by_epoch,
        first_e2e_s=combine_estimates(_estimate_field(*first, "e2e_s", "step_s")),
        first_stall_s=combine_estimates(_estimate_field(*first, "stall_s", "stall_s")),
        warm_up=judged.warm_up,
        settled=judged.settled,
        unsettled_reason=judged.why,
        outliers=int(judged.outliers.sum()),
        memory_mb=max((e.memory_mb for e in counted if e.memory_mb is not None), default=None),
        throttled=any(epoch.throttled for epoch in finished.epochs),
        notes=finished.notes,
        parameters=finished.parameters,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _EpochPiece:
    minibatches: MinibatchTimes
    steadiness: Steadiness


def _split_by_epoch(minibatches: MinibatchTimes, epochs: Sequence[EpochSummary]) -> dict[int, _EpochPiece | None]:
    """Return the minibatches by epoch; None for an epoch that has none."""
    pieces: dict[int, _EpochPiece | None] = {}
    for epoch in epochs:
        own = minibatches.select(minibatches.epoch == epoch.epoch)
        pieces[epoch.epoch] = _EpochPiece(own, assess_steadiness(own.step_s)) if len(own) else None
    return pieces


def _estimate_by_epoch(
    epochs: Sequence[EpochSummary], pieces: Sequence[_EpochPiece | None], strip: SensorTrace
) -> dict[str, tuple[Estimate, ...]]:
    """Return estimates by field of ``PointStats``, one per epoch; empty where not metered."""
    found = {name: _estimate_field(epochs, pieces, name, name) for name in PART_FIELDS}
    found["e2e_s"] = _estimate_field(epochs, pieces, "e2e_s", "step_s")
    found["step_s"] = tuple(_estimate_step_s(epoch, piece) for epoch, piece in zip(epochs, pieces, strict=True))
    watts = [_estimate_power_w(epoch, piece, strip) for epoch, piece in zip(epochs, pieces, strict=True)]
    joules = [_estimate_energy_j(epoch, w, s) for epoch, w, s in zip(epochs, watts, found["e2e_s"], strict=True)]
    found["power_w"] = tuple(one for one in watts if one is not None)
    found["energy_j"] = tuple(one for one in joules if one is not None)
    return found


def _estimate_field(
    epochs: Sequence[EpochSummary], pieces: Sequence[_EpochPiece | None], name: str, column: str
) -> tuple[Estimate, ...]:
    """Estimate a field of ``EpochSummary`` per epoch, with the scatter of the minibatches' ``column``."""
    own: list[Estimate] = []
    for epoch, piece in zip(epochs, pieces, strict=True):
        rest = getattr(piece.minibatches, column)[piece.steadiness.warm_up :] if piece else np.empty(0)
        own.append(_with_scatter(float(getattr(epoch, name)), rest, len(rest)))
    return tuple(own)


def _with_scatter(value: float, series: Floats, factor: int = 1) -> Estimate:
    """Return a value with ``factor`` times the standard error of a series' mean; unbounded for fewer than two."""
    if len(series) < 2:
        return make_unbounded_estimate(value)
    spread = batch_mean_estimate(series)
    return make_estimate(value, spread.standard_error * factor, spread.n)


def _estimate_step_s(epoch: EpochSummary, piece: _EpochPiece | None) -> Estimate:
    if piece is None:
        return make_unbounded_estimate(epoch.e2e_s / max(epoch.steps, 1))
    return batch_mean_estimate(piece.minibatches.step_s[piece.steadiness.warm_up :])


def _estimate_power_w(epoch: EpochSummary, piece: _EpochPiece | None, strip: SensorTrace) -> Estimate | None:
    if epoch.power_w is None:
        return None
    return _with_scatter(epoch.power_w, _select_watts(piece.minibatches, strip) if piece else np.empty(0))


def _estimate_energy_j(epoch: EpochSummary, power_w: Estimate | None, e2e_s: Estimate) -> Estimate | None:
    """Estimate an epoch's energy, whose relative error combines those of power and time."""
    if epoch.energy_j is None:
        return None
    if power_w is None or not (power_w.is_bounded and e2e_s.is_bounded) or power_w.value <= 0 or e2e_s.value <= 0:
        return make_unbounded_estimate(epoch.energy_j)
    se, freedom = combine_errors([(part.standard_error / part.value, part.n - 1) for part in (power_w, e2e_s)])
    return make_estimate(epoch.energy_j, se * epoch.energy_j, int(freedom) + 1)


def _select_watts(minibatches: MinibatchTimes, strip: SensorTrace) -> Floats:
    begin, end = minibatches.start_s[0], minibatches.start_s[-1] + minibatches.step_s[-1]
    inside = (strip.at_s >= begin) & (strip.at_s <= end) & np.isfinite(strip.power_w)
    watts: Floats = strip.power_w[inside]
    return watts


def _assess_epochs(pieces: Sequence[_EpochPiece | None]) -> Steadiness:
    """Assess all counted epochs as one series without their warm-up."""
    there = [piece for piece in pieces if piece]
    if not there:
        return Steadiness(0, np.zeros(0, dtype=np.bool_), settled=False, why="no minibatches are there")
    series = np.concatenate([piece.minibatches.step_s[piece.steadiness.warm_up :] for piece in there])
    marked = np.concatenate([piece.steadiness.outliers for piece in there])
    why = describe_drift(series)
    return Steadiness(there[0].steadiness.warm_up, marked, not why, why)


ESTIMATE_FIELDS = tuple(one.name for one in fields(PointStats) if str(one.type).startswith("Estimate"))

LATER_EPOCH_FIELDS = {"first_e2e_s": "e2e_s", "first_stall_s": "stall_s"}


@dataclass(frozen=True, slots=True)
class PooledSetting:
    """A setting's statistics over its repeats; ``stats.point`` is the first repeat."""

    stats: PointStats
    points: tuple[str, ...]
    """Keys of all repeats."""

    @property
    def point(self) -> SweepPoint:
        return self.stats.point


def pool_repeats(stats: Sequence[PointStats]) -> tuple[PooledSetting, ...]:
    """Pool the repeats of each setting and board, in the order of the first repeats."""
    groups = group_repeats(sorted(stats, key=lambda one: one.point.repeat))
    scatters = {
        (board, name): _epoch_and_repeat_scatter(
            [group for point, group in groups.items() if point.board == board], name
        )
        for board in {point.board for point in groups}
        for name in ESTIMATE_FIELDS
    }
    return tuple(
        _pool_setting(group, {name: scatters[point.board, name] for name in ESTIMATE_FIELDS})
        for point, group in groups.items()
    )


def group_repeats(stats: Iterable[PointStats]) -> dict[SweepPoint, list[PointStats]]:
    return group_by(stats, lambda one: replace(one.point, repeat=0))


def group_by_workload(points: Sequence[PooledSetting]) -> dict[tuple[str, str, str], list[PooledSetting]]:
    return group_by(points, lambda one: (one.point.board, one.point.workload, one.point.kind))


_Scatter = tuple[float, int]
"""A relative standard deviation and its degrees of freedom; (0, 0) if unknown."""


def _epoch_and_repeat_scatter(groups: Sequence[Sequence[PointStats]], name: str) -> tuple[_Scatter, _Scatter]:
    """Return the scatter among epochs and among repeats; first epochs are taken to scatter as later ones."""
    like = LATER_EPOCH_FIELDS.get(name, name)
    epochs = [(_list_epoch_estimates(one, like), [one], like) for group in groups for one in group]
    repeats = [([f for one in group if (f := getattr(one, name)) is not None], group, name) for group in groups]
    return _pool_scatter(epochs), _pool_scatter(repeats)


def _pool_scatter(families: Sequence[tuple[Sequence[Estimate], Sequence[PointStats], str]]) -> _Scatter:
    """Pool the scatter of families of estimates, each relative to a quantity of its own points."""
    squares, freedom = 0.0, 0
    for estimates, group, name in families:
        unit = _reference_value(group, name)
        if len(estimates) > 1 and unit > 0:
            mean = sum(one.value for one in estimates) / len(estimates)
            squares += sum((one.value - mean) ** 2 for one in estimates) / unit**2
            freedom += len(estimates) - 1
    return (math.sqrt(squares / freedom), freedom) if freedom else (0.0, 0)


def _reference_value(group: Sequence[PointStats], name: str) -> float:
    """Return the value that the scatter is relative to."""
    whole = "first_e2e_s" if name.startswith("first_") else "e2e_s"
    by = whole if name in {*PART_FIELDS, "first_stall_s"} else name
    known = [found.value for one in group if (found := getattr(one, by)) is not None]
    return sum(known) / len(known) if known else 0.0


def _pool_setting(group: Sequence[PointStats], scatters: dict[str, tuple[_Scatter, _Scatter]]) -> PooledSetting:
    first = group[0]
    figures: dict[str, Any] = {name: _pool_field(group, name, *scatters[name]) for name in ESTIMATE_FIELDS}
    return PooledSetting(
        replace(
            first,
            **figures,
            minibatches=sum(one.minibatches for one in group),
            outliers=sum(one.outliers for one in group),
            settled=all(one.settled for one in group),
            throttled=any(one.throttled for one in group),
        ),
        tuple(one.key for one in group),
    )


def _pool_field(group: Sequence[PointStats], name: str, epochs: _Scatter, repeats: _Scatter) -> Estimate | None:
    known = [found for one in group if (found := getattr(one, name)) is not None]
    if not known:
        return None
    mean, unit = sum(one.value for one in known) / len(known), _reference_value(group, name)
    epochs_seen = [found for one in group for found in _list_epoch_estimates(one, name)]
    among = [
        (sd * unit / math.sqrt(many), float(freedom))
        for (sd, freedom), many in ((epochs, len(epochs_seen)), (repeats, len(known)))
        if freedom
    ]
    largest = max(among, default=None)
    if not all(one.is_bounded for one in epochs_seen):
        return (
            make_unbounded_estimate(mean) if largest is None else make_estimate(mean, largest[0], int(largest[1]) + 1)
        )
    within = combine_errors([(one.standard_error / len(epochs_seen), one.n - 1) for one in epochs_seen])
    se, freedom = within if largest is None else widen_by_scatter(within, largest)
    return make_estimate(mean, se, int(freedom) + 1)


def _list_epoch_estimates(one: PointStats, name: str) -> tuple[Estimate, ...]:
    """Return the estimates of each epoch; for a figure of the first epoch, that one alone."""
    if name in one.by_epoch:
        return one.by_epoch[name]
    found: Estimate | None = getattr(one, name)
    return () if found is None else (found,)
