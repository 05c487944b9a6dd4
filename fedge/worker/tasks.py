"""What is trained: a network, its loss and where its data comes from; built in, or a task file that a run ships."""

import functools
import hashlib
import linecache
import sys
import traceback
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable, Dict, NamedTuple, Optional

from fedge.worker.refusal import Refusal

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedge.worker.sources import Data
else:
    Tensor = nn = Data = Any

MODULE_PREFIX = "fedge_task_"
"""A task file's module is called so, followed by the start of its hash: two files never share one."""


class BadTask(Refusal):
    """A task that cannot be had: an unknown name, or a task file with a mistake in it."""

    kind = "bad-source"


class WrongHash(BadTask):
    """A task file that is not the one that was announced."""

    kind = "hash"


class Shape(NamedTuple):
    """What a network sees and says: square images of ``side`` pixels with ``channels``, and ``classes`` scores."""

    channels: int
    side: int
    classes: int


class TrainingTask(NamedTuple):
    """A network, its loss and, where the task brings it along, its data."""

    name: str
    sha256: str
    """Of the task file's text; empty for what is built in."""
    build: "Callable[[Shape], nn.Module]"
    """Makes a freshly initialised network: images (n, channels, side, side) to scores (n, classes)."""
    loss: "Callable[[Tensor, Tensor], Tensor]"
    """The mean loss of a minibatch, a scalar tensor, from scores (n, classes) and labels (n,)."""
    data: Optional[Callable[[Dict[str, Any]], Data]]
    """The task's own reading of a source; None: ``sources.read``."""


def data_shape(data: "Data") -> Shape:
    """What a network for this data has to see and say."""
    return Shape(int(data.train_x.shape[1]), int(data.train_x.shape[2]), data.classes)


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """The usual loss of a classifier, the mean over the minibatch."""
    from torch.nn import functional

    return functional.cross_entropy(scores, labels)


def make_builtin_task(name: str) -> TrainingTask:
    """The task of fedge's own called ``name``: one of ``networks.NETWORKS``.

    Raises ``BadTask`` for another name, and lists the known ones.
    """
    from fedge.worker import builtin_tasks

    return TrainingTask(name, sha256="", build=builtin_tasks.network_builder(name), loss=cross_entropy, data=None)


def task_from_source(name: str, text: str, sha256: str) -> TrainingTask:
    """The task in the file ``name``, whose text is ``text``.

    The file defines ``model(shape)``, a torch module, and may define ``loss(scores, labels)``, a scalar tensor
    (otherwise ``cross_entropy``), and ``data(source)``, a ``sources.Data`` (otherwise ``sources.read``). It runs as a
    module of its own. Raises ``WrongHash``, or ``BadTask`` naming the line.
    """
    found = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    if found != sha256:
        raise WrongHash(name, "a text of SHA-256 " + found, "the one of " + sha256 + "; send the file again")
    module = _execute_source(name, text, MODULE_PREFIX + sha256[:16])
    parts = {part: getattr(module, part, None) for part in ("model", "loss", "data")}
    for part, value in parts.items():
        if value is not None and not callable(value):
            raise BadTask(name, f"{part} that is {value!r}", "a function " + part + SIGNATURES[part])
    if parts["model"] is None:
        raise BadTask(name, "no model(shape)", "a function model(shape) that returns a torch.nn.Module")
    calls = {part: _wrap_user_function(name, part, value) for part, value in parts.items() if value is not None}
    data = _make_checked_data(name, calls["data"]) if "data" in calls else None
    return TrainingTask(
        name,
        sha256=sha256,
        build=_make_checked_build(name, calls["model"]),
        loss=calls.get("loss", cross_entropy),
        data=data,
    )


SIGNATURES = {"model": "(shape)", "loss": "(scores, labels)", "data": "(source)"}


def _execute_source(name: str, text: str, module_name: str) -> ModuleType:
    module = ModuleType(module_name)
    module.__file__ = name
    # So that a traceback shows the file's lines, and that records made in it find their module.
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    sys.modules[module_name] = module
    try:
        exec(compile(text, name, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 -- a task is a program
    except (Exception, SystemExit) as error:
        sys.modules.pop(module_name, None)
        raise _task_error(name, "the file", error) from error
    return module


def _wrap_user_function(name: str, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The user's function, whose errors say where in the file they come from."""

    @functools.wraps(function)
    def called(*given: Any) -> Any:
        try:
            return function(*given)
        except Refusal:
            raise
        except (Exception, SystemExit) as error:
            raise _task_error(name, part + SIGNATURES[part], error) from error

    return called


def _make_checked_build(name: str, model: Callable[..., Any]) -> "Callable[[Shape], nn.Module]":
    def build(shape: Shape) -> "nn.Module":
        from torch.nn import Module

        net = model(shape)
        if not isinstance(net, Module):
            raise BadTask(name, f"model(shape) that returns {type(net).__name__!r}", "a torch.nn.Module")
        return net

    return build


def _make_checked_data(name: str, read: Callable[..., Any]) -> "Callable[[Dict[str, Any]], Data]":
    def data(source: Dict[str, Any]) -> "Data":
        from fedge.worker.sources import check_data

        return check_data(read(source), name + ": data(source)")

    return data


def _task_error(name: str, part: str, error: BaseException) -> BadTask:
    line = error.lineno if isinstance(error, SyntaxError) and error.filename == name else None
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == name:
            line = frame.lineno
    where = name if line is None else f"{name}, line {line}"
    reason = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    return BadTask(where, f"{type(error).__name__} from {part}: {reason}", "mend it and load it again")
