"""The network of a workload: one of fedge's own, one of torchvision's, or the user's ``module:function``."""

import importlib
from typing import TYPE_CHECKING, Any, Callable, Tuple

from fedge.worker.tasks import BadTask, Shape

if TYPE_CHECKING:
    from torch import nn

TRAILING = "a module that can be imported from the folder of the command, and a function in it that takes shape"


def network(name: str, shape: Tuple[int, int, int], classes: int) -> "nn.Module":
    """A freshly made network; ``shape`` is channels, height and width of its input, and it scores ``classes`` classes.

    Names are tried in this order: the user's ``module:function``, fedge's own (``networks.NETWORKS``,
    ``models.MODELS``), torchvision's. Raises ``BadTask`` for one that is none of them, or does not fit the input.
    """
    from torch import nn

    try:
        made = _maker(name, shape, classes)()
    except BadTask:
        raise
    except Exception as error:
        # What a network's own code raises can be anything.
        raise BadTask(
            "model", f"{name!r}, which raises {type(error).__name__}: {_line(error)}", "another input or network"
        ) from error
    if not isinstance(made, nn.Module):
        raise BadTask("model", f"{name!r}, which gives {type(made).__name__!r}", "a torch.nn.Module")
    return made


def _maker(name: str, shape: Tuple[int, int, int], classes: int) -> Callable[[], Any]:
    from fedge.worker import networks
    from fedge.worker.models import MODELS

    if ":" in name:
        function = _users(name)
        return lambda: function(_square(name, shape, classes))
    if name in networks.NETWORKS or name in networks.REFUSED:
        own = networks.find(name).model
        return lambda: MODELS[own](_square(name, shape, classes))
    if name in MODELS:
        return lambda: MODELS[name](_square(name, shape, classes))
    return _torchvisions(name, shape, classes)


def _square(name: str, shape: Tuple[int, int, int], classes: int) -> Shape:
    channels, height, width = shape
    if height != width:
        raise BadTask(
            "input", f"{height} x {width} pixels for {name!r}", "a square input, or a network of torchvision's"
        )
    return Shape(channels, height, classes)


def _torchvisions(name: str, shape: Tuple[int, int, int], classes: int) -> Callable[[], Any]:
    from fedge.worker import networks
    from fedge.worker.models import MODELS

    known = ", ".join([*networks.NETWORKS, *MODELS])
    right = f"a network of torchvision's, module:function, or one of {known}"
    try:
        from fedge.worker.vision import models
    except BadTask as error:
        raise BadTask("model", f"{name!r}, and no torchvision that fits", right) from error
    found = getattr(models, name, None)
    if not name.islower() or not callable(found):
        raise BadTask("model", repr(name), right)
    if shape[0] != 3:
        raise BadTask("input", f"{shape[0]} channels for torchvision's {name}", "3 channels")
    return lambda: found(num_classes=classes)


def _users(name: str) -> Callable[..., Any]:
    module_name, _, function_name = name.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (Exception, SystemExit) as error:
        # The user's module can raise anything.
        raise BadTask("model", f"{name!r} ({type(error).__name__}: {_line(error)})", TRAILING) from error
    if not callable(function):
        raise BadTask("model", f"{name!r}, which is no function", TRAILING)
    found: Callable[..., Any] = function
    return found


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
