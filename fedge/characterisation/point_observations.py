"""Observations for fitting models: the mean minibatch of a point in the steady state, by state of the page cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedge.characterisation.point_measurement import EpochSummary, MinibatchTimes, select_counted_epochs
from fedge.characterisation.sweep_plan import SweepPoint, WorkloadPlan
from fedge.characterisation.sweep_store import FinishedPoint, SweepResult
from fedge.costs.input_pipeline.emulated_pipeline import SampleFormat
from fedge.costs.input_pipeline.pipeline_fit import WARM_SHARE, LoaderMeans
from fedge.types import Label, PowerMode

SETTLING_ROUNDS = 2
"""Minibatches at the start of an epoch that are excluded, in rounds of all workers: one round fills the queues, the
second is a margin. More rounds leave fewer minibatches of short epochs."""
MAX_SETTLING_SHARE = 0.25
"""Upper limit of the excluded part of an epoch; a default that keeps most of a short epoch."""


@dataclass(frozen=True, slots=True)
class PointObservation:
    """Epochs of one point with the same state of the page cache: their mean minibatch and their totals."""

    point: SweepPoint
    mode: PowerMode
    means: LoaderMeans
    """Seconds per minibatch in the steady state."""
    e2e_s: float
    """Mean duration of an epoch from end to end."""
    stall_s: float
    """Mean stall per epoch."""
    steps: int
    first_s: float
    """Stall of the first minibatch of an epoch: the start of the workers and the making of the batch."""
    power_w: float | None
    cached: float
    """Share of the reads that the page cache served."""
    file_mb: float
    is_counted: bool
    """Whether the plan counts these epochs; discarded epochs inform only the model of loading."""
    label: Label

    @property
    def energy_j(self) -> float | None:
        """Energy of the mean epoch; None if the power was not metered."""
        return None if self.power_w is None else self.power_w * self.e2e_s


def extract_observations(
    result: SweepResult, board: str, workload: str, kind: str = "train"
) -> tuple[PointObservation, ...]:
    """Extract the observations of a workload on a board.

    Returns:
        One or two observations per point with a known power mode, in the order of the plan: of the counted epochs, and
            of the discarded ones if they read from the storage.

    Raises:
        BadInput: A point's minibatch file is missing or damaged.
    """
    return tuple(
        observation
        for one in _select_points(result, board, workload, kind)
        for observation in _observe_point(one, result)
    )


def _select_points(result: SweepResult, board: str, workload: str, kind: str) -> Iterable[FinishedPoint]:
    wanted = (board, workload, kind)
    for one in result.points:
        if (one.point.board, one.point.workload, one.point.kind) == wanted and one.point.mode is not None:
            yield one


def _observe_point(finished: FinishedPoint, result: SweepResult) -> Iterable[PointObservation]:
    course = result.plan.course
    file_mb = image_file_mb(finished, result.plan.workloads[finished.point.workload])
    minibatches = finished.read_minibatches()
    counted = select_counted_epochs(finished.epochs, course)
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
        # Median: the very first minibatches compile and autotune, and other programs may have interfered.
        compute_s=float(np.median(steady.compute_s)),
        overhead_s=float(steady.overhead_s.mean()),
    )


def image_file_mb(finished: FinishedPoint, workload: WorkloadPlan) -> float:
    """Return the mean size of an image file in MB: as measured, else as planned, else as JPEG typically yields."""
    known_mb = finished.parameters.get("file_mb", finished.parameters.get("sample_file_mb"))
    images = workload.images
    fed = SampleFormat(images.mpixel, 0, images.source == "memory", images.kb)
    return fed.file_mb if known_mb is None else float(known_mb)


def _cached_share(epochs: Sequence[EpochSummary], point: SweepPoint, file_mb: float) -> float:
    """Return the share of reads served by the page cache.

    It follows from the disk reads if they are known, else from the pages that were resident before the epochs.
    """
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
