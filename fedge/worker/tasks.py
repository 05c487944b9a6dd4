"""Training tasks: a network, its loss and its data; built in, or from a task file. Imports neither torch nor numpy."""

import ast
import functools
import hashlib
import importlib.util
import linecache
import platform
import sys
import traceback
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from fedge.worker.refusal import Refusal
from fedge.worker.task_shape import BadTask, Shape, WrongHash

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedge.worker.sources import Data
else:
    Tensor = nn = Data = Any

MODULE_PREFIX = "fedge_task_"
"""Prefix of a task file's module name; the start of the file's hash follows, so that two files never share one."""


class TrainingTask(NamedTuple):
    """A network, its loss and, if the task brings it along, its data.

    Attributes:
        name: Name of the task or of its file.
        sha256: SHA-256 of the task file's text; empty for a built-in task.
        build: Builds a freshly initialised network from images (n, channels, side, side) to scores (n, classes).
        loss: Mean loss of a minibatch, a scalar tensor, from scores (n, classes) and labels (n,).
        data: The task's own reader of a source; None: ``sources.read``.
        metric: Mean of the figure of merit over a minibatch, a scalar tensor, as ``loss``; None: the accuracy.
        optimizer: Builds an optimiser of ``torch.optim`` from parameters, learning rate and momentum, anew for every
            training; None: SGD.
    """

    name: str
    sha256: str
    build: "Callable[[Shape], nn.Module]"
    loss: "Callable[[Tensor, Tensor], Tensor]"
    data: Optional[Callable[[Dict[str, Any]], Data]]
    metric: "Optional[Callable[[Tensor, Tensor], Tensor]]" = None
    optimizer: Optional[Callable[[Any, float, float], Any]] = None


def data_shape(data: "Data") -> Shape:
    """Return the input shape and number of scores of a network for this data."""
    sample = tuple(int(size) for size in data.train_x.shape[1:])
    if data.is_scaled:
        return Shape(sample[0], sample[1], data.classes)
    ends = sample or (1,)
    return Shape(ends[0], ends[-1], data.classes, ends)


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy over the minibatch, from scores (n, classes) and labels (n,)."""
    from torch.nn import functional

    return functional.cross_entropy(scores, labels)


def make_builtin_task(name: str) -> TrainingTask:
    """Return the built-in task called ``name``, one of ``builtin_tasks.NETWORKS``.

    Raises:
        BadTask: The name is unknown; the text lists the known ones.
    """
    from fedge.worker import builtin_tasks

    return TrainingTask(name, sha256="", build=builtin_tasks.network_builder(name), loss=cross_entropy, data=None)


def cut_task(task: TrainingTask, channels: Any) -> TrainingTask:
    """Return a task whose network keeps some channels only.

    ``channels`` is a plan in JSON's types, see ``channel_cuts``; building the network refuses one of another network.

    Raises:
        BadPlan: The plan is malformed.
    """
    from fedge.worker.channel_cuts import cut_module, parse_plan

    plan = parse_plan(channels, "channels")
    return task._replace(build=lambda shape: cut_module(task.build(shape), plan))


def task_from_source(name: str, text: str, sha256: str) -> TrainingTask:
    """Load a task from the text of a task file.

    The file defines ``model(shape)``, which returns a torch module, and optionally ``loss(scores, labels)``, a scalar
    tensor (default ``cross_entropy``), ``data(source)``, a ``sources.Data`` (default ``sources.read``),
    ``metric(scores, labels)`` (default accuracy) and ``optimizer(parameters, learning_rate, momentum)`` (default SGD).
    It runs as a module of its own.

    Raises:
        WrongHash: The text has another SHA-256.
        BadTask: The file has an error; the text names the line.
    """
    found = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    if found != sha256:
        raise WrongHash(name, "a text of SHA-256 " + found, "the one of " + sha256 + "; send the file again")
    module = _execute_source(name, text, MODULE_PREFIX + sha256[:16])
    parts = {part: getattr(module, part, None) for part in SIGNATURES}
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
        loss=_make_checked_loss(name, calls["loss"]) if "loss" in calls else cross_entropy,
        data=data,
        metric=_make_checked_metric(name, calls["metric"]) if "metric" in calls else None,
        optimizer=_make_checked_optimizer(name, calls["optimizer"]) if "optimizer" in calls else None,
    )


SIGNATURES = {
    "model": "(shape)",
    "loss": "(scores, labels)",
    "data": "(source)",
    "metric": "(scores, labels)",
    "optimizer": "(parameters, learning_rate, momentum)",
}


def _execute_source(name: str, text: str, module_name: str) -> ModuleType:
    module = ModuleType(module_name)
    module.__file__ = name
    # So that tracebacks show the file's lines, and classes defined in it find their module.
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    sys.modules[module_name] = module
    try:
        exec(compile(text, name, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 -- a task is a program
    except (Exception, SystemExit) as error:
        sys.modules.pop(module_name, None)
        raise _task_error(name, "the file", error, _find_missing(text)) from error
    return module


def _find_missing(text: str) -> List[str]:
    """Return the packages of a file's top-level imports that this Python lacks, so that all are named at once."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):  # a null byte is the latter before Python 3.12
        return []
    found = [alias.name for node in body if isinstance(node, ast.Import) for alias in node.names]
    found += [node.module for node in body if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    packages = dict.fromkeys(name.partition(".")[0] for name in found)
    return [name for name in packages if name not in sys.modules and importlib.util.find_spec(name) is None]


def _wrap_user_function(name: str, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the user's function so that its errors name the line in the task file."""

    @functools.wraps(function)
    def call_task(*given: Any) -> Any:
        try:
            return function(*given)
        except Refusal:
            raise
        except (Exception, SystemExit) as error:
            raise _task_error(name, part + SIGNATURES[part], error) from error

    return call_task


def _make_checked_build(name: str, model: Callable[..., Any]) -> "Callable[[Shape], nn.Module]":
    def build(shape: Shape) -> "nn.Module":
        from torch.nn import Module

        net = model(shape)
        if not isinstance(net, Module):
            raise BadTask(name, f"model(shape) that returns {type(net).__name__!r}", "a torch.nn.Module")
        return net

    return build


def _make_checked_loss(name: str, loss: Callable[..., Any]) -> Callable[[Tensor, Tensor], Tensor]:
    def compute(scores: Tensor, labels: Tensor) -> Tensor:
        from torch import Tensor as AnyTensor

        value = loss(scores, labels)
        if not isinstance(value, AnyTensor):
            got = repr(type(value).__name__)
        elif value.numel() != 1:
            got = f"a tensor of shape {tuple(value.shape)}"
        elif scores.requires_grad and not value.requires_grad:
            got = "a tensor that does not depend on the scores"
        else:
            return value
        raise BadTask(name, f"loss{SIGNATURES['loss']} that returns {got}", "a scalar tensor computed from the scores")

    return compute


def _make_checked_metric(name: str, metric: Callable[..., Any]) -> Callable[[Tensor, Tensor], Tensor]:
    def compute(scores: Tensor, labels: Tensor) -> Tensor:
        value: Tensor = metric(scores, labels)
        try:
            float(value)
        except (TypeError, ValueError, RuntimeError) as error:  # the last of a tensor of several values
            got = f"metric{SIGNATURES['metric']} that returns {type(value).__name__!r}"
            raise BadTask(name, got, "a number, or a tensor of one") from error
        return value

    return compute


def _make_checked_optimizer(name: str, make: Callable[..., Any]) -> Callable[[Any, float, float], Any]:
    def optimizer(parameters: Any, learning_rate: float, momentum: float) -> Any:
        from torch.optim import Optimizer

        found = make(parameters, learning_rate, momentum)
        if not isinstance(found, Optimizer):
            got = f"optimizer{SIGNATURES['optimizer']} that returns {type(found).__name__!r}"
            raise BadTask(name, got, "an optimiser of torch.optim")
        return found

    return optimizer


def _make_checked_data(name: str, read: Callable[..., Any]) -> "Callable[[Dict[str, Any]], Data]":
    def data(source: Dict[str, Any]) -> "Data":
        from fedge.worker.sources import check_data

        return check_data(read(source), name + ": data(source)")

    return data


def _task_error(name: str, part: str, error: BaseException, missing: Sequence[str] = ()) -> BadTask:
    line = error.lineno if isinstance(error, SyntaxError) and error.filename == name else None
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == name:
            line = frame.lineno
    where = name if line is None else f"{name}, line {line}"
    reason = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    return BadTask(where, f"{type(error).__name__} from {part}: {reason}", suggest_cure(error, missing))


def suggest_cure(error: BaseException, missing: Sequence[str] = ()) -> str:
    """Return what to do about an error of a task; for missing packages, how to install them for this Python."""
    first = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    if not first:
        return "mend it and load it again"
    packages = " ".join(dict.fromkeys([first, *missing]))
    machine = f"this machine (Python {platform.python_version()})"
    return f"`{sys.executable} -m pip install {packages}` on {machine}, unless it is a file beside the task: copy it in"
