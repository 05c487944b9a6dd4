"""What is really trained: a task is a model and a data set, loaded by name; importing this package loads no torch."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedge import registry
from fedge.errors import BadInput
from fedge.interfaces import LearningTask
from fedge.workloads import data

DEFAULT_DATA_DIR = "~/.cache/fedge/data"
"""Where data sets are looked for, and put, when no folder is named."""


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """A task by its parts: an entry of ``models.MODELS`` and a name of ``data.load``."""

    model: str
    dataset: str


TASKS: Mapping[str, TaskSpec] = {
    "digits-cnn": TaskSpec("digits-cnn", "digits"),
    "synthetic-cnn": TaskSpec("digits-cnn", "synthetic"),
    "mnist-lenet5": TaskSpec("lenet5", "mnist"),
    "mnist-cnn": TaskSpec("small-cnn", "mnist"),
    "fashionmnist-lenet5": TaskSpec("lenet5", "fashionmnist"),
    "fashionmnist-cnn": TaskSpec("small-cnn", "fashionmnist"),
    "cifar10-cnn": TaskSpec("small-cnn", "cifar10"),
    "cifar10-resnet18": TaskSpec("resnet18", "cifar10"),
    "cifar10-mobilenetv3": TaskSpec("mobilenet-v3-small", "cifar10"),
    "cifar10-mobilenetv3-large": TaskSpec("mobilenet-v3-large", "cifar10"),
}
"""fedge's own tasks. A name of the form ``module:Class`` is the user's own, see ``load_task``."""

_NEEDED = ("buffers", "initial_arrays", "start", "evaluate", "labels")


def check_task(name: str, where: str = "workload.task") -> None:
    """Raise ``BadInput`` unless ``name`` is one of ``TASKS`` or an importable ``module:Class``; loads no data."""
    if name not in TASKS:
        _own_factory(name, where)


def load_task(
    name: str, data_dir: str | Path | None = None, where: str = "workload.task", *, download: bool = True
) -> LearningTask:
    """Build the task called ``name`` with its data in memory.

    Data sets are read from ``data_dir`` (default ``DEFAULT_DATA_DIR``); what is absent is fetched when ``download``.
    The user's own ``module:Class`` is called as ``Class(data_dir=Path, download=bool)`` and must have the methods of
    ``LearningTask``. Raises ``UnknownName`` or ``BadInput``; the latter also says which files are
    missing and where they belong.
    """
    root = Path(data_dir or DEFAULT_DATA_DIR).expanduser()
    if name not in TASKS:
        return _own_task(_own_factory(name, where), name, where, {"data_dir": root, "download": download})
    from fedge.workloads.task import ImageTask

    spec = TASKS[name]
    return ImageTask(spec.model, data.load(spec.dataset, root, download=download))


def data_findings(data_dir: str | Path | None = None) -> tuple[tuple[str, bool, str], ...]:
    """Per data set: its name, whether its files are here, and the folder they are in or belong in."""
    root = Path(data_dir or DEFAULT_DATA_DIR).expanduser()
    return (
        ("digits", data.digits_path() is not None, "inside scikit-learn"),
        ("synthetic", True, "made on the spot"),
        *((name, not source.missing(root), str(source.folder(root))) for name, source in data.SOURCES.items()),
    )


def _own_factory(name: str, where: str) -> Any:
    return registry.load(where, name, dict.fromkeys(TASKS, ""))


def _own_task(factory: Any, name: str, where: str, given: Mapping[str, Any]) -> LearningTask:
    try:
        inspect.signature(factory).bind(**given)
    except (TypeError, ValueError) as error:
        raise BadInput(where, repr(name), f"a class to be called as Class(data_dir=, download=) ({error})") from error
    task: LearningTask = factory(**given)
    missing = [attribute for attribute in _NEEDED if not hasattr(task, attribute)]
    if missing:
        raise BadInput(where, f"{name!r} without {', '.join(missing)}", f"a learning task with {', '.join(_NEEDED)}")
    return task
