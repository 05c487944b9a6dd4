"""The samples a board trains on, put where its worker can read them: its share of a data set as a file of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedge import workloads
from fedge.errors import BadInput
from fedge.experiment import Experiment, boards
from fedge.seeds import generator
from fedge.worker import sources
from fedge.workloads import data
from fedge.workloads.partitions import split


def source_of(experiment: Experiment, index: int, folder: Path, own: str | None) -> Mapping[str, Any]:
    """What the worker is told to load: the board's ``own`` folder, or a file of board ``index``'s share.

    The file is written once per data set, split and seed. Raises ``BadInput`` for a task whose data set is not fedge's.
    """
    if own is not None:
        return {"folder": own}
    path = folder / f"{_name_of(experiment, index)}.npz"
    if not path.is_file():
        share = _share_of(experiment, index)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            sources.write_file(path, share)
        except OSError as error:
            right = "state_dir of the board's settings: a folder that this user may write and the worker may read"
            raise BadInput(str(folder), f"a folder that cannot be written ({error.strerror})", right) from error
    return {"file": str(path), "sha256": sources.sha256_of(path)}


def _name_of(experiment: Experiment, index: int) -> str:
    """Everything that decides which samples are the board's."""
    decides = (experiment.workload.task, experiment.data.model_dump_json(), len(boards(experiment)), experiment.seed)
    return hashlib.sha256(repr((*decides, index)).encode()).hexdigest()[:24]


def _share_of(experiment: Experiment, index: int) -> sources.Data:
    """The training samples of one board, in the order of the data set, and the whole test set."""
    name = experiment.workload.task
    if name not in workloads.TASKS:
        right = "one of fedge's tasks, or data_folder in the board's settings"
        raise BadInput("workload.task", f"{name!r}, whose data set fedge does not know", right)
    root = Path(experiment.data.dir or workloads.DEFAULT_DATA_DIR).expanduser()
    images = data.load(workloads.TASKS[name].dataset, root, download=experiment.data.download)
    shares = split(experiment.data, images.train_y, len(boards(experiment)), generator(experiment.seed, "partition"))
    share: NDArray[np.int64] = shares[index]
    return sources.Data(
        images.train_x[share],
        images.train_y[share],
        images.test_x,
        images.test_y,
        tuple(images.mean),
        tuple(images.sd),
        images.classes,
    )
