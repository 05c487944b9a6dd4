"""Fit an input pipeline to measurements: sample costs from runs without workers, contention from runs with workers.

A workload's input pipeline on one kind of board as a sweep measured it, and its file, which a run may name.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedge.costs.input_pipeline.emulated_pipeline import load_storages
from fedge.costs.input_pipeline.pipeline_model import (
    HostCores,
    InputPipeline,
    Loader,
    SampleCost,
    StepCost,
    Storage,
    compute_slowdown,
    solve_steady_state,
)
from fedge.errors import BadInput, UnknownName
from fedge.types import Label
from fedge.wire import InvalidMessage, from_json

PAGE_CACHE = Storage("page cache", mb_per_s=1e6, latency_s=0.0, at_once=1e6, source="files that are read already")
CROWDING_CANDIDATES = np.linspace(0.0, 2.0, 41)
"""Grid of slow-downs of a fully busy host that the fit searches."""
UNKNOWN_CROWDING = 0.3
"""Slow-down when nothing was measured with workers. Default; a smaller value predicts more benefit from workers."""
ITERATIONS = 3
"""Alternations between a worker's cost per batch and the contention of cores, which depend on each other; two
suffice."""
WAITING_SHARE = 0.05
"""Share of stall in a step above which training is bound by its workers. Default; below it, the workers' own time
stamps are used instead of the pace."""


@dataclass(frozen=True, slots=True)
class LoaderMeans:
    """Mean times per minibatch in the steady state, in seconds, measured with one loader setting.

    Attributes:
        fetch_s: Reading the batch, in seconds of whichever process loads it.
        preprocess_s: Preprocessing the batch, likewise.
    """

    workers: int
    prefetch: int
    batch_size: int
    fetch_s: float
    preprocess_s: float
    stall_s: float
    copy_s: float
    compute_s: float
    overhead_s: float

    @property
    def step_s(self) -> float:
        """Return the time per minibatch from start to start, in seconds."""
        return self.stall_s + self.copy_s + self.compute_s + self.overhead_s


def fit_pipeline(
    seen: Sequence[LoaderMeans],
    cores: float,
    *,
    host_share: float = 1.0,
    crowding: float | None = None,
) -> InputPipeline:
    """Fit the pipeline of a workload at one batch size in one power mode, with the loader of the first setting.

    Reading is part of fetching: files are taken to be in the page cache.
    If nothing was measured without workers, their times are corrected for the observed contention.

    Args:
        seen: Measured settings, which differ in their loaders alone.
        cores: Number of active cores.
        host_share: Share of the compute time in which the device waits for the host, from 0 to 1.
        crowding: Slow-down of fully busy cores if it was measured; None to fit it.

    Raises:
        ValueError: ``seen`` is empty.
    """
    if not seen:
        raise ValueError("no setting was measured")
    alone = min(seen, key=lambda one: one.workers)
    beside = [one for one in seen if one.workers > 0]
    host = HostCores(cores, crowding=UNKNOWN_CROWDING if crowding is None else crowding)
    base = _build_base(alone, host, host_share)
    if alone.workers == 0 and beside:
        base = _fit_contention(base, beside, crowding)
    return with_loader(base, seen[0].workers, seen[0].prefetch)


def _fit_contention(base: InputPipeline, beside: Sequence[LoaderMeans], crowding: float | None) -> InputPipeline:
    """Add crowding and the workers' cost per batch to ``base``, a pipeline measured without workers.

    The setting with the fewest workers determines the additional cost of their batches, the others determine crowding.
    If there are no others, ``crowding`` or its default is used.
    """
    fewest = min(beside, key=lambda one: one.workers)
    others = [one for one in beside if one is not fewest]
    believed = [UNKNOWN_CROWDING if crowding is None else crowding]
    tried = believed if crowding is not None or not others else [float(value) for value in CROWDING_CANDIDATES]
    return min(
        (_fit_worker_costs(_with_crowding(base, value), fewest) for value in tried),
        key=lambda one: _squared_error(one, others),
    )


def _fit_worker_costs(base: InputPipeline, fewest: LoaderMeans) -> InputPipeline:
    """Add the workers' cost per batch to ``base``, alternating with the slow-down of workers by each other."""
    made_s = (base.samples.fetch_s + base.samples.preprocess_s) * base.batch_size
    # If training waits, the pace shows a worker's whole cycle; otherwise only its own time stamps are available.
    waits = fewest.stall_s > WAITING_SHARE * fewest.step_s
    seen_s = fewest.workers * fewest.step_s if waits else fewest.fetch_s + fewest.preprocess_s
    pipeline = base
    for _ in range(ITERATIONS):
        found = solve_steady_state(with_loader(pipeline, fewest.workers, fewest.prefetch))
        step = _fit_handover(base.step, fewest, found.slower_training)
        more_s = max(0.0, seen_s / found.slower_loading - made_s)
        pipeline = dataclasses.replace(base, step=dataclasses.replace(step, posting_s=more_s))
    return pipeline


def _fit_handover(step: StepCost, beside: LoaderMeans, slower: float) -> StepCost:
    """Add to ``step`` the cost of a worker's batch to training, whose work on a core takes ``slower`` times as long.

    Without workers the overhead includes collating; if it is the larger one, the difference is the time that workers
    save.
    """
    alone_s = step.collate_s + step.overhead_s
    taken_s = beside.overhead_s / slower - alone_s
    device_s, host_s = step.compute_s * (1.0 - step.host_share), step.compute_s * step.host_share
    foreign_s = max(0.0, (beside.compute_s - device_s) / slower - host_s)
    saved_s = max(0.0, -taken_s)
    return dataclasses.replace(
        step,
        collate_s=saved_s,
        overhead_s=alone_s - saved_s,
        handover_s=max(0.0, taken_s),
        foreign_s=foreign_s,
    )


def with_loader(pipeline: InputPipeline, workers: int, prefetch: int | None = None) -> InputPipeline:
    """Return the pipeline with another number of workers, and of batches that each prepares ahead if given."""
    kept = pipeline.loader.prefetch if prefetch is None else prefetch
    return dataclasses.replace(pipeline, loader=dataclasses.replace(pipeline.loader, workers=workers, prefetch=kept))


def compute_contention(means: LoaderMeans, host: HostCores, cores: float) -> tuple[float, float]:
    """Return the slow-downs of loading and of training on shared cores, given how busy these were observed to be.

    ``cores`` is the number of active cores; the host's own is ignored.
    """
    host = dataclasses.replace(host, cores=cores)
    if means.workers == 0:
        alone = compute_slowdown(host, 1.0)
        return alone, alone
    making = min(float(means.workers), (means.fetch_s + means.preprocess_s) / means.step_s)
    training = 1.0 - means.stall_s / means.step_s
    return compute_slowdown(host, max(1.0, making) + training), compute_slowdown(host, 1.0 + making)


def uncontended_compute_s(means: LoaderMeans, host: HostCores, cores: float, host_share: float) -> float:
    """Return the compute time per minibatch with no other work on ``cores`` active cores, in seconds.

    ``host_share`` is the part of it that is bound to the host, from 0 to 1.
    """
    return means.compute_s / (1.0 + host_share * (compute_contention(means, host, cores)[1] - 1.0))


def _build_base(alone: LoaderMeans, host: HostCores, host_share: float) -> InputPipeline:
    """Build the pipeline from one setting; with workers, contention is removed from its times."""
    slower_loading, slower_training = compute_contention(alone, host, host.cores)
    per_sample = 1.0 / alone.batch_size / slower_loading
    return InputPipeline(
        alone.batch_size,
        loader=Loader(alone.workers, alone.prefetch),
        storage=PAGE_CACHE,
        samples=SampleCost(0.0, alone.fetch_s * per_sample, alone.preprocess_s * per_sample),
        step=StepCost(
            compute_s=uncontended_compute_s(alone, host, host.cores, host_share),
            host_share=host_share,
            copy_s=alone.copy_s / slower_training,
            collate_s=0.0,
            handover_s=0.0,
            overhead_s=alone.overhead_s / slower_training,
        ),
        host=host,
    )


def _with_crowding(pipeline: InputPipeline, crowding: float) -> InputPipeline:
    return dataclasses.replace(pipeline, host=dataclasses.replace(pipeline.host, crowding=crowding))


def _squared_error(pipeline: InputPipeline, beside: Sequence[LoaderMeans]) -> float:
    """Return the squared log errors over settings with workers: of making a batch, or of the pace if it takes none."""
    total = 0.0
    making_s = (
        pipeline.samples.fetch_s + pipeline.samples.preprocess_s
    ) * pipeline.batch_size + pipeline.step.posting_s
    for one in beside:
        found = solve_steady_state(with_loader(pipeline, one.workers, one.prefetch))
        seen_s = one.fetch_s + one.preprocess_s
        if making_s > 0 and seen_s > 0:
            total += float(np.log(making_s * found.slower_loading / seen_s) ** 2)
        else:
            total += float(np.log(found.step_s / one.step_s) ** 2)
    return total


WARM_SHARE = 0.99
"""Cache hit share from which the storage is ignored. A default close to 1: the remaining reads are too few to time."""


@dataclass(frozen=True, slots=True, eq=False)
class FittedPipeline:
    """The pipeline at the top clocks, without computing, and the storages by their names in the plan."""

    top: InputPipeline
    storages: Mapping[str, Storage]
    sd_log: float
    """Root-mean-square error of the pipeline's step times against the observed ones, in log units."""

    def pipeline_at(
        self, batch_size: int, workers: int, prefetch: int, storage: str, cached: float, where: str = "--storage"
    ) -> InputPipeline:
        """Return the pipeline at another setting, at the top clocks.

        ``cached`` is the share of the reads that the page cache serves, 0 to 1; ``where`` names the storage in errors.

        Raises:
            UnknownName: The storage was not observed and is not known.
        """
        stored = self.storages.get(storage, load_storages().get(storage))
        if stored is None and cached < WARM_SHARE:
            raise UnknownName(where, storage, tuple(dict.fromkeys((*self.storages, *load_storages()))))
        more, step = batch_size / self.top.batch_size, self.top.step
        return dataclasses.replace(
            self.top,
            batch_size=batch_size,
            loader=Loader(workers, prefetch),
            storage=stored or self.top.storage,
            step=dataclasses.replace(step, copy_s=step.copy_s * more, collate_s=step.collate_s * more),
            cached=cached,
        )


@dataclass(frozen=True, slots=True, eq=False)
class FittedLoader:
    """A fitted pipeline with its origin, as ``fedge characterise-predict --loader-out`` writes it."""

    device: str
    workload: str
    label: Label
    source: str
    pipeline: FittedPipeline


def read_fitted_loader(path: Path, where: str, sha256: str | None = None) -> FittedLoader:
    """Read the file of a fitted loader.

    ``where`` names it in errors; ``sha256`` is the hash that it must have, None for any.

    Raises:
        BadInput: It cannot be read, is something else or has changed.
    """
    try:
        content = path.read_bytes()
        fitted = from_json(FittedLoader, content.decode("utf-8"))
    except (OSError, UnicodeDecodeError, InvalidMessage) as error:
        reason = str(error).partition("\n")[0]
        right = "a file that `fedge characterise-predict --loader-out` wrote"
        raise BadInput(where, f"{path} ({reason})", right) from error
    if sha256 not in (None, hashlib.sha256(content).hexdigest()):
        right = "the file with which the run began; restore it, or start another run"
        raise BadInput(where, f"{path}, which has changed since", right)
    return fitted
