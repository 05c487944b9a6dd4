"""Tasks and networks by name: built in, torchvision's, or the user's; torch is imported only to build a network."""

import importlib
from typing import TYPE_CHECKING, Any, Callable, Dict, NamedTuple, Tuple

from fedge.worker.refusal import one_line
from fedge.worker.task_shape import BadTask, Shape

if TYPE_CHECKING:
    from torch import nn


class BuiltinTask(NamedTuple):
    """A built-in task: the name of its network and of its data set.

    Attributes:
        model: Key in ``architectures.MODELS``.
        dataset: Key in ``SHAPES``.
        own_cost: Whether a step costs what the network's layers cost, unless an experiment names a cost. Otherwise
            the network is a small stand-in for the workload that the experiment's default cost stands for.
    """

    model: str
    dataset: str
    own_cost: bool = False


USER_FUNCTION_FORM = (
    "a module that can be imported from the folder of the command, and a function in it that takes shape"
)
SHAPES: Dict[str, Shape] = {
    "digits": Shape(1, 8, 10),
    "synthetic": Shape(3, 32, 10),
    "mnist": Shape(1, 28, 10),
    "fashionmnist": Shape(1, 28, 10),
    "cifar10": Shape(3, 32, 10),
    "cifar100": Shape(3, 32, 100),
    "femnist": Shape(1, 28, 62),
    "agnews": Shape(64, 64, 4, (64,)),
    "shakespeare": Shape(80, 80, 80, (80,)),
    "imagenet": Shape(3, 224, 1000),
    "gld23k": Shape(3, 224, 1000),
    "tinyimagenet224": Shape(3, 224, 1000),
}
"""Shape of a sample and number of scores of each data set.

The last two have 203 and 200 classes; the published weights of their workloads (``fedge/costs/workloads.yaml``)
belong to networks with 1,000 scores.
"""

TASKS: Dict[str, BuiltinTask] = {
    "digits-cnn": BuiltinTask("digits-cnn", "digits"),
    "synthetic-cnn": BuiltinTask("digits-cnn", "synthetic"),
    "mnist-lenet5": BuiltinTask("lenet5", "mnist"),
    "mnist-cnn": BuiltinTask("small-cnn", "mnist"),
    "fashionmnist-lenet5": BuiltinTask("lenet5", "fashionmnist"),
    "fashionmnist-cnn": BuiltinTask("small-cnn", "fashionmnist"),
    "cifar10-cnn": BuiltinTask("small-cnn", "cifar10"),
    "cifar10-resnet18": BuiltinTask("resnet18", "cifar10"),
    "cifar10-mobilenetv3": BuiltinTask("mobilenet-v3-small", "cifar10"),
    "cifar10-mobilenetv3-large": BuiltinTask("mobilenet-v3-large", "cifar10"),
    "cifar100-resnet18": BuiltinTask("resnet18", "cifar100", own_cost=True),
    "femnist-cnn": BuiltinTask("small-cnn", "femnist", own_cost=True),
    "agnews-transformer": BuiltinTask("text-transformer", "agnews", own_cost=True),
    "shakespeare-lstm": BuiltinTask("character-lstm", "shakespeare", own_cost=True),
}
"""Tasks whose data sets are available, so that they can be trained to an accuracy."""

WORKLOADS: Dict[str, BuiltinTask] = {
    "resnet18-imagenet": BuiltinTask("resnet18-imagenet", "imagenet"),
    "mobilenetv3l-gld23k": BuiltinTask("mobilenet-v3-large-imagenet", "gld23k"),
    "resnet50-tinyimagenet224": BuiltinTask("resnet50-imagenet", "tinyimagenet224"),
    "vit-b16-cifar10": BuiltinTask("vit-b16", "cifar10"),
}
"""Workloads for profiling boards, run on generated images."""

NETWORKS: Dict[str, BuiltinTask] = {**TASKS, **WORKLOADS}

REFUSED: Dict[str, str] = {
    "yolov8n-coco": "torchvision lacks it, and its published code has a licence (AGPL) that fedge cannot take; "
    "import a measured table of it instead, or bring it as a task file of your own",
}
"""Workloads that have a cost profile but no network here, with the reason."""

SYNTHETIC_SAMPLES = 256
"""Default number of synthetic images: enough to vary the minibatches, little enough to fit any board's memory."""


def find_builtin(name: str) -> BuiltinTask:
    """Return the built-in task called ``name``.

    Raises:
        BadTask: The name is unknown (the text lists the known ones) or the task is in ``REFUSED``.
    """
    if name in REFUSED:
        raise BadTask("task", repr(name), "another one: " + REFUSED[name])
    if name not in NETWORKS:
        raise BadTask("task", repr(name), "known: " + ", ".join(NETWORKS))
    return NETWORKS[name]


def builtin_shape(name: str) -> Shape:
    """Return the shape of a sample and the number of classes of a built-in task."""
    return SHAPES[find_builtin(name).dataset]


def synthetic_source(name: str, samples: int = SYNTHETIC_SAMPLES) -> Dict[str, Any]:
    """Return a data source of noise in the task's shape, with which its steps can be timed.

    Raises:
        BadTask: The task's samples are no images, or its name is unknown.
    """
    shape = builtin_shape(name)
    if shape.sample:
        raise BadTask("task", f"{name!r} without data: its samples are no images", "data, or a task of images")
    sizes = {"channels": shape.channels, "side": shape.side, "classes": shape.classes}
    return {"synthetic": {"samples": samples, **sizes}}


def network_builder(name: str) -> "Callable[[Shape], nn.Module]":
    """Return a function that builds the network of a built-in task; torch is imported when it is called."""
    model = find_builtin(name).model

    def build(shape: Shape) -> "nn.Module":
        from fedge.worker.architectures import MODELS

        return MODELS[model](shape)

    return build


def make_network(name: str, shape: Tuple[int, int, int], classes: int) -> "nn.Module":
    """Build a freshly initialised network.

    Names are tried in this order: the user's ``module:function``, fedge's own (``NETWORKS``,
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
    from fedge.worker.architectures import MODELS

    if ":" in name:
        function = _import_user_function(name)
        return lambda: function(_square_shape(name, shape, classes))
    if name in NETWORKS or name in REFUSED:
        build = network_builder(name)
        return lambda: build(_square_shape(name, shape, classes))
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
    from fedge.worker.architectures import MODELS

    known = ", ".join([*NETWORKS, *MODELS])
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
