"""Find a workload's network by name: one of fedge's own, one of torchvision's, or the user's ``module:function``."""

import importlib
from typing import TYPE_CHECKING, Any, Callable, Tuple

from fedge.worker.refusal import one_line
from fedge.worker.task_shape import BadTask, Shape

if TYPE_CHECKING:
    from torch import nn

USER_FUNCTION_FORM = (
    "a module that can be imported from the folder of the command, and a function in it that takes shape"
)


def make_network(name: str, shape: Tuple[int, int, int], classes: int) -> "nn.Module":
    """Build a freshly initialised network.

    Names are tried in this order: the user's ``module:function``, fedge's own (``builtin_tasks.NETWORKS``,
    ``architectures.MODELS``), torchvision's. ``shape`` are the channels, height and width of its input.

    Raises:
        BadTask: There is no such network, or it does not fit the input.
    """
    from torch import nn

    try:
        made = _network_factory(name, shape, classes)()
    except BadTask:
        raise
    except Exception as error:
        # A network's own code can raise anything.
        got = f"{name!r}, which raises {type(error).__name__}: {one_line(error)}"
        raise BadTask("model", got, "another input or network") from error
    if not isinstance(made, nn.Module):
        raise BadTask("model", f"{name!r}, which gives {type(made).__name__!r}", "a torch.nn.Module")
    return made


def _network_factory(name: str, shape: Tuple[int, int, int], classes: int) -> Callable[[], Any]:
    from fedge.worker import builtin_tasks
    from fedge.worker.architectures import MODELS

    if ":" in name:
        function = _import_user_function(name)
        return lambda: function(_square_shape(name, shape, classes))
    if name in builtin_tasks.NETWORKS or name in builtin_tasks.REFUSED:
        own = builtin_tasks.find_builtin(name).model
        return lambda: MODELS[own](_square_shape(name, shape, classes))
    if name in MODELS:
        return lambda: MODELS[name](_square_shape(name, shape, classes))
    return _torchvision_factory(name, shape, classes)


def _square_shape(name: str, shape: Tuple[int, int, int], classes: int) -> Shape:
    channels, height, width = shape
    if height != width:
        got = f"{height} x {width} pixels for {name!r}"
        raise BadTask("input", got, "a square input, or a network of torchvision's")
    return Shape(channels, height, classes)


def _torchvision_factory(name: str, shape: Tuple[int, int, int], classes: int) -> Callable[[], Any]:
    from fedge.worker import builtin_tasks
    from fedge.worker.architectures import MODELS

    known = ", ".join([*builtin_tasks.NETWORKS, *MODELS])
    right = f"a network of torchvision's, module:function, or one of {known}"
    try:
        from fedge.worker.torchvision_shim import models
    except BadTask as error:
        raise BadTask("model", f"{name!r}, and no torchvision that fits", right) from error
    found = getattr(models, name, None)
    if not name.islower() or not callable(found):
        raise BadTask("model", repr(name), right)
    if shape[0] != 3:
        raise BadTask("input", f"{shape[0]} channels for torchvision's {name}", "3 channels")
    return lambda: found(num_classes=classes)


def _import_user_function(name: str) -> Callable[..., Any]:
    module_name, _, function_name = name.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (Exception, SystemExit) as error:
        # The user's module can raise anything.
        raise BadTask("model", f"{name!r} ({type(error).__name__}: {one_line(error)})", USER_FUNCTION_FORM) from error
    if not callable(function):
        raise BadTask("model", f"{name!r}, which is no function", USER_FUNCTION_FORM)
    found: Callable[..., Any] = function
    return found
