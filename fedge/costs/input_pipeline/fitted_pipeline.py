"""A workload's input pipeline on one kind of board as a sweep measured it, and its file, which a run may name."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedge.costs.input_pipeline.emulated_pipeline import load_storages
from fedge.costs.input_pipeline.pipeline_model import InputPipeline, Loader, Storage
from fedge.errors import BadInput, UnknownName
from fedge.types import Label
from fedge.wire import InvalidMessage, from_json

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

        Args:
            batch_size: Samples per minibatch.
            workers: Loader workers.
            prefetch: Batches prepared ahead per worker.
            storage: Name of a storage of the plan, or of an emulated one.
            cached: Share of the reads that the page cache serves, 0 to 1.
            where: Field of the storage for the error.

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
    """A fitted pipeline with its origin, as ``fedge characterise-predict --loader-out`` writes it.

    Attributes:
        device: Kind of board.
        workload: Workload whose samples were loaded.
    """

    device: str
    workload: str
    label: Label
    source: str
    pipeline: FittedPipeline


def read_fitted_loader(path: Path, where: str, sha256: str | None = None) -> FittedLoader:
    """Read the file of a fitted loader.

    Args:
        path: The file.
        where: The field that names it.
        sha256: Hash of the file as it must be; None accepts any.

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
