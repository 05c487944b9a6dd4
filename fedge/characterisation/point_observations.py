"""What a sweep saw, as a model learns from it: a point's mean minibatch in the steady state, by state of the cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedge.characterisation.point_measurement import EpochSummary, MinibatchTimes
from fedge.characterisation.sweep_plan import SweepPoint, WorkKind, WorkloadPlan
from fedge.characterisation.sweep_store import FinishedPoint, SweepResult
from fedge.costs.input_pipeline.emulated_pipeline import SampleFormat
from fedge.costs.input_pipeline.pipeline_fit import LoaderMeans
from fedge.types import Label, PowerMode

SETTLING_ROUNDS = 2
"""So many rounds of all workers at an epoch's beginning are not the steady state; chosen by us."""
MAX_SETTLING_SHARE = 0.25
"""But no more than this share of it; chosen by us."""
WARM_SHARE = 0.99
"""From this share of the reads on that the page cache answers, the storage does not count; chosen by us."""


@dataclass(frozen=True, slots=True)
class PointObservation:
    """Epochs of one point that are alike: their mean minibatch, seconds, and what they took as a whole."""

    point: SweepPoint
    mode: PowerMode
    means: LoaderMeans
    """In the steady state."""
    e2e_s: float
    """A mean epoch from end to end."""
    stall_s: float
    """The waiting in it."""
    steps: int
    first_s: float
    """What the first minibatch of an epoch waited: for the workers' start and for its own making."""
    power_w: float | None
    cached: float
    """The share of the reads that the page cache answered."""
    file_mb: float
    is_counted: bool
    """Whether the plan counts these epochs; those it discards tell of loading alone."""
    label: Label

    @property
    def energy_j(self) -> float | None:
        """Of the mean epoch."""
        return None if self.power_w is None else self.power_w * self.e2e_s


def extract_observations(
    result: SweepResult, board: str, workload: str, kind: WorkKind = "train"
) -> tuple[PointObservation, ...]:
    """What was seen of a workload on a board in modes that are known, in the order of the plan."""
    return tuple(look for one in _select_points(result, board, workload, kind) for look in _observe_point(one, result))


def _select_points(result: SweepResult, board: str, workload: str, kind: WorkKind) -> Iterable[FinishedPoint]:
    wanted = (board, workload, kind)
    for one in result.points:
        if (one.point.board, one.point.workload, one.point.kind) == wanted and one.point.mode is not None:
            yield one


def _observe_point(finished: FinishedPoint, result: SweepResult) -> Iterable[PointObservation]:
    course = result.plan.course
    file_mb = image_file_mb(finished, result.plan.workloads[finished.point.workload])
    minibatches = finished.read_minibatches()
    counted = [one for one in finished.epochs if one.epoch >= course.discard] or list(finished.epochs)
    discarded = [one for one in finished.epochs if one not in counted]
    for epochs, counts in ((discarded, False), (counted, True)):
        if epochs and (counts or _cached_share(epochs, finished.point, file_mb) < WARM_SHARE):
            yield _make_observation(finished, minibatches=minibatches, epochs=epochs, file_mb=file_mb, counts=counts)


def _make_observation(
    finished: FinishedPoint, minibatches: MinibatchTimes, epochs: Sequence[EpochSummary], file_mb: float, counts: bool
) -> PointObservation:
    point = finished.point
    assert point.mode is not None
    chosen = np.isin(minibatches.epoch, [one.epoch for one in epochs])
    steps = max(one.steps for one in epochs)
    settling = min(max(1, SETTLING_ROUNDS * max(point.workers, 1)), int(MAX_SETTLING_SHARE * steps))
    steady, first = minibatches.select(chosen & (minibatches.step >= settling)), minibatches.step == 0
    energies = [one.energy_j for one in epochs if one.energy_j is not None]
    seconds = sum(one.e2e_s for one in epochs if one.energy_j is not None)
    return PointObservation(
        point=point,
        mode=point.mode,
        means=_steady_means(point, steady),
        e2e_s=sum(one.e2e_s for one in epochs) / len(epochs),
        stall_s=sum(one.stall_s for one in epochs) / len(epochs),
        steps=steps,
        first_s=float(minibatches.stall_s[chosen & first].mean()),
        power_w=sum(energies) / seconds if energies else None,
        cached=_cached_share(epochs, point, file_mb),
        file_mb=file_mb,
        is_counted=counts,
        label=finished.label,
    )


def _steady_means(point: SweepPoint, steady: MinibatchTimes) -> LoaderMeans:
    return LoaderMeans(
        workers=point.workers,
        prefetch=point.prefetch,
        batch_size=point.batch_size,
        fetch_s=float(steady.fetch_s.mean()),
        preprocess_s=float(steady.preprocess_s.mean()),
        stall_s=float(steady.stall_s.mean()),
        copy_s=float(steady.copy_s.mean()),
        # A median: the very first minibatches compile and tune, and others may have run.
        compute_s=float(np.median(steady.compute_s)),
        overhead_s=float(steady.overhead_s.mean()),
    )


def image_file_mb(finished: FinishedPoint, workload: WorkloadPlan) -> float:
    """An image file's mean size: as measured, as the plan says, or what JPEG makes of such images."""
    told = finished.parameters.get("file_mb", finished.parameters.get("sample_file_mb"))
    images = workload.images
    fed = SampleFormat(images.mpixel, 0, images.source == "memory", images.kb)
    return fed.file_mb if told is None else float(told)


def _cached_share(epochs: Sequence[EpochSummary], point: SweepPoint, file_mb: float) -> float:
    """By what was read from the disks; by what lay in the page cache before where nobody knows."""
    if file_mb <= 0:
        return 1.0
    read = [(one.disk_read_mb, one.steps) for one in epochs if one.disk_read_mb is not None]
    if read:
        wanted_mb = sum(steps for _, steps in read) * point.batch_size * file_mb
        return float(np.clip(1.0 - sum(mb for mb, _ in read) / wanted_mb, 0.0, 1.0))
    before = [one.resident_before for one in epochs if one.resident_before is not None]
    if before:
        return float(np.mean(before))
    return 0.0 if point.cache == "dropped" and epochs[0].epoch == 0 else 1.0
