"""A workload's input pipeline at a board's top clocks, fitted to observations in any modes, with any loaders.

The time of a sample on a core is the observed one, divided by the slow-down of its mode and by that of shared cores
(both: ``fedge.costs.input_pipeline.pipeline_model``). The geometric mean over observations is taken, of those without
workers if there are any. Crowding of the cores and background load come from a grid search: with the best pair, the
observations agree most closely on what a sample, and computing at equal clocks, takes alone. The cost of reading from a
storage is what fetching takes beyond fetching from the page cache.

An observation is the mean minibatch of a point in the steady state, by state of the page cache.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedge.characterisation.point_measurement import (
    EpochSummary,
    MinibatchTimes,
    PointMeasurement,
    select_counted_epochs,
)
from fedge.characterisation.sweep_plan import StoragePlan, SweepPoint, WorkloadPlan
from fedge.characterisation.sweep_store import SweepResult
from fedge.costs.input_pipeline.emulated_pipeline import SampleFormat, load_storages
from fedge.costs.input_pipeline.pipeline_fit import (
    UNKNOWN_CROWDING,
    WARM_SHARE,
    FittedPipeline,
    LoaderMeans,
    compute_contention,
    uncontended_compute_s,
)
from fedge.costs.input_pipeline.pipeline_model import (
    BatchNeeds,
    HostCores,
    InputPipeline,
    Loader,
    SampleCost,
    StepCost,
    Storage,
    compute_host_factor,
    count_served_readers,
    file_read_s,
    solve_steady_states,
)
from fedge.errors import BadInput
from fedge.types import Floats, Label, PowerMode

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
    """Extract the observations of a workload on a board, in the order of the plan.

    A point with a known power mode has one or two: of the counted epochs, and of the discarded ones if they read from
    the storage.

    Raises:
        BadInput: A point's minibatch file is missing or damaged.
    """
    wanted = (board, workload, kind)
    return tuple(
        observation
        for one in result.points
        if (one.point.board, one.point.workload, one.point.kind) == wanted and one.point.mode is not None
        for observation in _observe_point(one, result)
    )


def _observe_point(finished: PointMeasurement, result: SweepResult) -> Iterable[PointObservation]:
    course = result.plan.course
    file_mb = image_file_mb(finished, result.plan.workloads[finished.point.workload])
    minibatches = finished.read_minibatches()
    counted = select_counted_epochs(finished.epochs, course)
    discarded = [one for one in finished.epochs if one not in counted]
    for epochs, counts in ((discarded, False), (counted, True)):
        if epochs and (counts or _cached_share(epochs, finished.point, file_mb) < WARM_SHARE):
            yield _make_observation(finished, minibatches=minibatches, epochs=epochs, file_mb=file_mb, counts=counts)


def _make_observation(
    finished: PointMeasurement,
    minibatches: MinibatchTimes,
    epochs: Sequence[EpochSummary],
    file_mb: float,
    counts: bool,
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


def image_file_mb(finished: PointMeasurement, workload: WorkloadPlan) -> float:
    """Return the mean size of an image file in MB: as measured, else as planned, else as JPEG typically yields."""
    known_mb = finished.parameters.get("file_mb", finished.parameters.get("sample_file_mb"))
    images = workload.images
    fed = SampleFormat(images.mpixel, 0, images.source == "memory", images.kb)
    return fed.file_mb if known_mb is None else float(known_mb)


def _cached_share(epochs: Sequence[EpochSummary], point: SweepPoint, file_mb: float) -> float:
    """Return the share of reads served by the page cache, by the disk reads or else by the pages resident before."""
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


DEFAULT_STORAGE_MODEL = "ssd"
"""Emulated storage whose latency and concurrency a user's own storage is assumed to have; its speed is fitted."""
BACKGROUNDS = (0.0, 0.5, 1.0, 1.5)
CROWDINGS = (0.0, 0.15, 0.3, 0.45, 0.65, 0.9, 1.2)
"""Grid of the search, crossed with ``BACKGROUNDS``."""
MIN_IMPROVEMENT = 0.005
"""Decrease of the error, in mean log units, that another pair than the usual one must achieve. A default: smaller
values fit noise, larger ones ignore real contention."""
_LEAST_S = 1e-9

HostShare = Callable[[PowerMode], float]


def fit_input_pipeline(
    observations: Sequence[PointObservation], maxn: PowerMode, host_share: HostShare, plans: Mapping[str, StoragePlan]
) -> FittedPipeline:
    """Fit the pipeline to observations of one workload on one board.

    ``host_share`` returns the part of computing that is bound to the host in a mode, 0 to 1; ``plans`` are the plan's
    storages by name.

    Raises:
        BadInput: There are no observations.
    """
    if not observations:
        raise BadInput("the sweep", "no finished point of this workload on this board in a known mode", "one at least")
    fit = _PipelineFit(observations, maxn, host_share)
    stored = fit.fit_storages(plans)
    made = fit.build_pipeline(fit.find_host(), stored)
    return FittedPipeline(made, stored, fit.pace_error(made, stored))


@dataclass(frozen=True, slots=True, eq=False)
class _PipelineFit:
    """The observations of one workload on one board, and what a fit of its pipeline needs to know beforehand."""

    observations: Sequence[PointObservation]
    maxn: PowerMode
    host_share: HostShare

    def find_host(self) -> HostCores:
        """Return the host cores under which observations agree best; the usual ones if the difference is small."""
        cores = float(self.maxn.cores)
        best = HostCores(cores, crowding=UNKNOWN_CROWDING)
        least = self._disagreement(best) - MIN_IMPROVEMENT
        for background, crowding in itertools.product(BACKGROUNDS, CROWDINGS):
            tried = HostCores(cores, background, crowding)
            off = self._disagreement(tried)
            if off < least:
                best, least = tried, off
        return best

    def _disagreement(self, host: HostCores) -> float:
        """Return the scatter of what a sample, and computing at equal clocks, would take alone, in mean log units."""
        groups: dict[tuple[object, ...], list[float]] = {}
        for one in self.observations:
            mode = one.mode
            each_s = self._sample_s(one, one.means.preprocess_s, host)
            groups.setdefault(("samples",), []).append(float(np.log(max(each_s, _LEAST_S))))
            if one.is_counted:
                clocks = (mode.cpu_mhz, mode.gpu_mhz, mode.mem_mhz, one.means.batch_size)
                alone_s = uncontended_compute_s(one.means, host, mode.cores, self.host_share(mode))
                groups.setdefault(clocks, []).append(float(np.log(alone_s)))
        off = [np.square(np.array(logs) - np.mean(logs)) for logs in groups.values() if len(logs) > 1]
        return float(np.sqrt(np.mean(np.concatenate(off)))) if off else 0.0

    def _sample_s(self, one: PointObservation, batch_s: float, host: HostCores) -> float:
        """Return the seconds of loading per sample, at the top clocks and alone on its core."""
        slower_loading, _ = compute_contention(one.means, host, one.mode.cores)
        return batch_s / one.means.batch_size / self._slowdown(one) / slower_loading

    def _slowdown(self, one: PointObservation) -> float:
        """Return the factor by which work on a core takes longer in the observed mode than at the top clocks."""
        clocks = [(one.mode.cpu_mhz, self.maxn.cpu_mhz), (one.mode.mem_mhz, self.maxn.mem_mhz)]
        return float(compute_host_factor(*(np.array([own / top]) for own, top in clocks))[0])

    def build_pipeline(self, host: HostCores, stored: Mapping[str, Storage]) -> InputPipeline:
        """Build the pipeline at the top clocks for given host cores."""
        first = self.observations[0]
        alone = [one for one in self.observations if one.point.workers == 0] or list(self.observations)
        warm = [one for one in alone if one.cached >= WARM_SHARE] or alone

        def read_s(one: PointObservation) -> float:
            storage = stored.get(one.point.storage)
            return (
                0.0 if storage is None or one.file_mb <= 0 else (1.0 - one.cached) * file_read_s(storage, one.file_mb)
            )

        return InputPipeline(
            batch_size=first.point.batch_size,
            loader=Loader(0),
            storage=stored.get(first.point.storage, load_storages()[DEFAULT_STORAGE_MODEL]),
            samples=SampleCost(
                first.file_mb,
                _geometric_mean(self._sample_s(one, one.means.fetch_s, host) - read_s(one) for one in warm),
                _geometric_mean(self._sample_s(one, one.means.preprocess_s, host) for one in alone),
            ),
            step=self._build_step(host, first.point.batch_size),
            host=host,
            start_s=self._worker_start_s(),
        )

    def _build_step(self, host: HostCores, size: int) -> StepCost:
        """Build the cost around computing at the top clocks; copying and collating scale with the batch size."""

        def top(one: PointObservation, seconds: float) -> float:
            return seconds / self._slowdown(one) / compute_contention(one.means, host, one.mode.cores)[1]

        alone = [one for one in self.observations if one.point.workers == 0]
        beside = [one for one in self.observations if one.point.workers > 0]
        inline = [one.means.stall_s - one.means.fetch_s - one.means.preprocess_s for one in alone]
        collated = [top(one, s) * size / one.means.batch_size for one, s in zip(alone, inline, strict=True)]
        overhead_s = _geometric_mean(top(one, one.means.overhead_s) for one in alone or beside)
        taken_s = 0.0
        if alone and beside:
            taken_s = _geometric_mean(top(one, one.means.overhead_s) for one in beside) - overhead_s
        copied = (top(one, one.means.copy_s) * size / one.means.batch_size for one in self.observations)
        return StepCost(
            compute_s=0.0,
            host_share=0.0,
            copy_s=_geometric_mean(copied),
            collate_s=max(0.0, float(np.median(collated))) if collated else 0.0,
            handover_s=max(0.0, taken_s),
            overhead_s=overhead_s,
        )

    def _worker_start_s(self) -> float:
        """Return the seconds to start one worker: the first minibatch's stall beyond the time of making it."""
        measured = [
            (one.first_s - one.means.fetch_s - one.means.preprocess_s) / one.point.workers / self._slowdown(one)
            for one in self.observations
            if one.point.workers > 0
        ]
        return max(0.0, float(np.median(measured))) if measured else 0.0

    def pace_error(self, pipeline: InputPipeline, stored: Mapping[str, Storage]) -> float:
        """Return the root-mean-square error of the pipeline's step times against the observed ones, in log units."""

        def group_key(one: PointObservation) -> tuple[int, str, int]:
            return one.point.workers, one.point.storage, one.point.batch_size

        logs: list[Floats] = []
        for (workers, name, _), same in itertools.groupby(sorted(self.observations, key=group_key), key=group_key):
            group, storage = list(same), stored.get(name, pipeline.storage)
            readers = count_served_readers(storage, pipeline.samples.file_mb)
            needs = BatchNeeds(*np.array([self._make_needs_row(one, pipeline, storage) for one in group]).T)
            found = solve_steady_states(needs, workers, readers, pipeline.host)
            logs.append(np.log(found.step_s / np.array([one.means.step_s for one in group])))
        return float(np.sqrt(np.mean(np.square(np.concatenate(logs)))))

    def _make_needs_row(self, one: PointObservation, pipeline: InputPipeline, storage: Storage) -> tuple[float, ...]:
        """Return one observation's row of ``BatchNeeds``: observed computing, everything else by the pipeline."""
        factor, share, size = self._slowdown(one), self.host_share(one.mode), one.means.batch_size
        samples, step, more = pipeline.samples, pipeline.step, size / pipeline.batch_size
        compute_s = uncontended_compute_s(one.means, pipeline.host, one.mode.cores, share)
        missing = (1.0 - one.cached) if samples.file_mb > 0 else 0.0
        taken_s = step.handover_s if one.point.workers else 0.0
        return (
            size * missing * file_read_s(storage, samples.file_mb),
            (size * (samples.fetch_s + samples.preprocess_s) + step.collate_s * more) * factor,
            (taken_s + step.copy_s * more + step.overhead_s) * factor + compute_s * share,
            compute_s * (1.0 - share),
            float(one.mode.cores),
        )

    def fit_storages(self, plans: Mapping[str, StoragePlan]) -> dict[str, Storage]:
        """Return every storage of the plan, fitted to observations that read from it; else as its emulated model."""
        known, made = load_storages(), {}
        for name in sorted({one.point.storage for one in self.observations} | set(plans)):
            model = (plans[name].model if name in plans else None) or name
            like = known.get(model, known[DEFAULT_STORAGE_MODEL])
            cold = [one for one in self.observations if one.cached < WARM_SHARE and one.file_mb > 0]
            measured = [one for one in cold if one.point.storage == name]
            if measured:
                fewest = min(one.point.workers for one in measured)
                one_s = np.median([self._file_read_s(one) for one in measured if one.point.workers == fewest])
                slower = max(float(one_s), 1e-7) / file_read_s(like, measured[0].file_mb)
                like = dataclasses.replace(like, label="calibrated", source="what the sweep saw")
                speed, latency_s = like.mb_per_s / slower, like.latency_s * slower
                made[name] = dataclasses.replace(like, name=name, mb_per_s=speed, latency_s=latency_s)
            elif model in known:
                made[name] = dataclasses.replace(like, name=name)
        return made

    def _file_read_s(self, one: PointObservation) -> float:
        """Return the seconds to read one uncached file, from fetching with and without the page cache."""
        warm = [
            other.means.fetch_s / other.means.batch_size / self._slowdown(other)
            for other in self.observations
            if other.cached >= WARM_SHARE and other.point.workers == one.point.workers
        ]
        cached_s = float(np.median(warm)) * self._slowdown(one) if warm else 0.0
        return (one.means.fetch_s / one.means.batch_size - cached_s) / (1.0 - one.cached)


def _geometric_mean(values: object) -> float:
    logs = np.log(np.maximum(np.fromiter(values, dtype=np.float64), _LEAST_S))  # type: ignore[call-overload]
    return float(np.exp(logs.mean()))
