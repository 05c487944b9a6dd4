"""Learning tasks by name: a task is a model and a data set; importing this package loads no torch."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedge import registry
from fedge.errors import BadInput
from fedge.experiment import Experiment
from fedge.json_reader import parse_json
from fedge.protocols import LearningTask
from fedge.types import NamedArrays, TrainOptions, TrainResult
from fedge.worker.builtin_tasks import TASKS
from fedge.workloads import datasets

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedge.worker.sources import Data
    from fedge.worker.tasks import TrainingTask
    from fedge.workloads.image_task import ImageTask

DEFAULT_DATA_DIR = "~/.cache/fedge/data"
"""Default folder of data sets."""
TASK_FILE_SUFFIX = ".py"
"""Suffix of a user's own task file, which defines ``model(shape)``, see ``fedge.worker.tasks``."""

_REQUIRED_ATTRIBUTES = ("buffers", "initial_arrays", "start", "evaluate", "labels")


def check_task(name: str, where: str = "workload.task") -> None:
    """Check a task's name without loading data or running the user's file.

    Raises:
        BadInput: If the task cannot be found.
    """
    if name.endswith(TASK_FILE_SUFFIX):
        _read_text(name, where)
    elif name not in TASKS and name != NULL_TASK:
        _load_own_factory(name, where)


def load_task(
    name: str,
    data_dir: str | Path | None = None,
    where: str = "workload.task",
    *,
    download: bool = True,
    device: str = "cpu",
    channels: str | None = None,
) -> LearningTask:
    """Build a task with its data in memory.

    Args:
        name: One of ``TASKS``; the path of the user's task file (``.py``), whose data comes from its own
            ``data(source)``
            or else from ``data_dir``; or the user's ``module:Class``, which is called as
            ``Class(data_dir=Path, download=bool)`` and must have the methods of ``LearningTask``.
        data_dir: Folder of data sets, ``DEFAULT_DATA_DIR`` if None; for a task file an .npz file or a folder (see
            ``fedge.worker.sources.read``).
        where: Field of the name for error messages.
        download: Whether missing files are downloaded.
        device: Torch device of a built-in task or a task file; the user's own class chooses its own.
        channels: JSON of the channels that the pruned network of such a task keeps (``fedge.worker.channel_cuts``);
            None for all.

    Raises:
        UnknownName: If the name is unknown.
        BadInput: If the task cannot be loaded or files are missing; the message says where they belong.
    """
    if name.endswith(TASK_FILE_SUFFIX):
        return _load_own_file(name, data_dir, where, device=device, channels=channels)
    root = Path(data_dir or DEFAULT_DATA_DIR).expanduser()
    if name not in TASKS:
        return _build_own_task(_load_own_factory(name, where), name, where, {"data_dir": root, "download": download})
    from fedge.worker import tasks

    data = datasets.load_dataset(TASKS[name].dataset, root, download=download)
    return _build_image_task(tasks.make_builtin_task(name), data, device, channels)


def _build_image_task(task: TrainingTask, data: Data, device: str, channels: str | None) -> ImageTask:
    from fedge.worker.tasks import cut_task
    from fedge.workloads.image_task import ImageTask

    if channels is None:
        return ImageTask(task, data, device)
    return _build_network(ImageTask(cut_task(task, parse_json(channels)), data, device))


def _build_network(task: ImageTask) -> ImageTask:
    """Build the task's network now, so that a plan of channels for another one and mistakes of a user's file show."""
    _ = task.trainer
    return task


@lru_cache(maxsize=4)
def _cached_task(name: str, data_dir: str | None, download: bool, device: str, channels: str | None) -> LearningTask:
    return load_task(name, data_dir=data_dir, download=download, device=device, channels=channels)


@lru_cache(maxsize=4)
def _cached_null_task(samples: int) -> NullTask:
    return NullTask(samples)


def load_experiment_task(experiment: Experiment, device: str = "cpu") -> LearningTask:
    """Return the experiment's learning task on a torch device; built once per process."""
    if experiment.workload.task == NULL_TASK:
        return _cached_null_task(experiment.data.samples or NULL_SAMPLES)
    network, data = experiment.workload.network, experiment.data
    channels = None if network is None else network.channels
    return _cached_task(experiment.workload.task, data.dir, download=data.download, device=device, channels=channels)


def explain_missing_cuda() -> str:
    """Return why nothing can be trained on CUDA in this process; empty if it can."""
    import torch

    return "" if torch.cuda.is_available() else f"torch {torch.__version__} finds no CUDA device"


def find_datasets(data_dir: str | Path | None = None) -> tuple[tuple[str, bool, str], ...]:
    """Return per data set its name, whether its files are present, and their folder."""
    from fedge.workloads.federated_files import FILE_SOURCES, FileSource

    root = Path(data_dir or DEFAULT_DATA_DIR).expanduser()
    files: Mapping[str, datasets.DatasetSource | FileSource] = {**datasets.SOURCES, **FILE_SOURCES}
    return (
        ("digits", datasets.digits_path() is not None, "inside scikit-learn"),
        ("synthetic", True, "made on the spot"),
        *((name, not source.missing_files(root), str(source.folder_below(root))) for name, source in files.items()),
    )


def _load_own_file(
    name: str, data_dir: str | Path | None, where: str, device: str, channels: str | None
) -> LearningTask:
    from fedge.worker import sources, tasks

    text = _read_text(name, where)
    with datasets.translate_refusals():
        task = tasks.task_from_source(name, text, hashlib.sha256(text.encode("utf-8")).hexdigest())
        if task.data is None and data_dir is None:
            right = f"an .npz file or a folder with the images, or a function data(source) in {name}"
            raise BadInput(datasets.DATA_FIELD, "nothing", right)
        data = (task.data or sources.read)(_data_source(data_dir))
        if data_dir is not None and not Path(data_dir).expanduser().exists():
            got = f"{str(data_dir)!r}, which is not there and which data(source) in {name} did not need"
            raise BadInput(datasets.DATA_FIELD, got, "an .npz file or a folder that is there, or no such key")
        return _build_network(_build_image_task(task, data, device, channels))


def _read_text(name: str, where: str) -> str:
    try:
        return Path(name).expanduser().read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(where, repr(name), f"the path of a Python file that defines model(shape) ({error})") from error


def _data_source(data_dir: str | Path | None) -> dict[str, str]:
    """Return the data source in the worker's form: a folder or a file of arrays."""
    if data_dir is None:
        return {}
    path = Path(data_dir).expanduser()
    return {"file" if path.suffix == ".npz" else "folder": str(path)}


def _load_own_factory(name: str, where: str) -> Any:
    return registry.load_named(where, name, dict.fromkeys((*TASKS, NULL_TASK), ""))


def _build_own_task(factory: Any, name: str, where: str, given: Mapping[str, Any]) -> LearningTask:
    try:
        inspect.signature(factory).bind(**given)
    except (TypeError, ValueError) as error:
        raise BadInput(where, repr(name), f"a class to be called as Class(data_dir=, download=) ({error})") from error
    task: LearningTask = factory(**given)
    missing = [attribute for attribute in _REQUIRED_ATTRIBUTES if not hasattr(task, attribute)]
    if missing:
        raise BadInput(
            where, f"{name!r} without {', '.join(missing)}", f"a learning task with {', '.join(_REQUIRED_ATTRIBUTES)}"
        )
    return task


# No task --------------------------------------------------------------------------------------------------------------


NULL_TASK = "none"
"""Its name in experiments."""
NOTHING = "nothing"
"""Name of the array of its model, of which there is no loss."""
NULL_SAMPLES = 10_000
"""Samples that the fleet stands for by default."""


class NullTask:
    """The task.

    Args:
        samples: Samples that the fleet stands for; they determine the boards' shares, and so their steps.
    """

    buffers: tuple[str, ...] = ()

    def __init__(self, samples: int = NULL_SAMPLES) -> None:
        import numpy as np

        self.labels: NDArray[np.int64] = np.zeros(samples, dtype=np.int64)

    def initial_arrays(self, seed: int) -> NamedArrays:
        import numpy as np

        return {NOTHING: np.zeros(1, dtype=np.float32)}

    def start(self, arrays: NamedArrays, share: NDArray[np.int64], seed: int, options: TrainOptions) -> NullTraining:
        return NullTraining(arrays)

    def evaluate(self, arrays: NamedArrays, share: NDArray[np.int64] | None = None) -> None:
        """There is nothing to test."""


@dataclass(frozen=True, slots=True, eq=False)
class NullTraining:
    """Training without effect."""

    arrays: NamedArrays

    def advance(self, steps: int) -> None:
        """Do nothing for ``steps`` steps."""

    def result(self) -> TrainResult:
        return TrainResult(self.arrays, math.nan, math.nan)
