"""The built-in tasks by name: fedge's own, and the networks behind the profiled workloads; loads no torch."""

from typing import TYPE_CHECKING, Any, Callable, Dict, NamedTuple

from fedge.worker.tasks import BadTask, Shape

if TYPE_CHECKING:
    from torch import nn


class BuiltinTask(NamedTuple):
    """A built-in task by its parts: an entry of ``models.MODELS``, and the data set that it is for."""

    model: str
    dataset: str


SHAPES: Dict[str, Shape] = {
    "digits": Shape(1, 8, 10),
    "synthetic": Shape(3, 32, 10),
    "mnist": Shape(1, 28, 10),
    "fashionmnist": Shape(1, 28, 10),
    "cifar10": Shape(3, 32, 10),
    "imagenet": Shape(3, 224, 1000),
    "gld23k": Shape(3, 224, 1000),
    "tinyimagenet224": Shape(3, 224, 1000),
}
"""What a data set's images are like, and the network's scores. The last two have 203 and 200 classes; the weights that
were published for their workloads (``fedge/costs/workload_sizes.yaml``) are those of networks with 1,000 scores."""

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
}
"""The tasks that can be learnt: their data sets can be had."""

WORKLOADS: Dict[str, BuiltinTask] = {
    "resnet18-imagenet": BuiltinTask("resnet18-imagenet", "imagenet"),
    "mobilenetv3l-gld23k": BuiltinTask("mobilenet-v3-large-imagenet", "gld23k"),
    "resnet50-tinyimagenet224": BuiltinTask("resnet50-imagenet", "tinyimagenet224"),
    "vit-b16-cifar10": BuiltinTask("vit-b16", "cifar10"),
}
"""The workloads that boards are profiled with, on images made on the spot."""

NETWORKS: Dict[str, BuiltinTask] = {**TASKS, **WORKLOADS}

REFUSED: Dict[str, str] = {
    "yolov8n-coco": "torchvision lacks it, and its published code has a licence (AGPL) that fedge cannot take; "
    "import a measured table of it instead, or bring it as a task file of your own",
}
"""Workloads with a cost profile but without a network here, and why."""

SYNTHETIC_SAMPLES = 256
"""So many synthetic images, a few hundred minibatches' worth of different ones. Chosen by us."""


def find_builtin(name: str) -> BuiltinTask:
    """The built-in task called ``name``; raises ``BadTask`` with the known names, or why it is not here."""
    if name in REFUSED:
        raise BadTask("task", repr(name), "another one: " + REFUSED[name])
    if name not in NETWORKS:
        raise BadTask("task", repr(name), "known: " + ", ".join(NETWORKS))
    return NETWORKS[name]


def builtin_shape(name: str) -> Shape:
    """The images and classes that a built-in task is for."""
    return SHAPES[find_builtin(name).dataset]


def synthetic_source(name: str, samples: int = SYNTHETIC_SAMPLES) -> Dict[str, Any]:
    """A data source (``sources.read``) of noise in the task's own shape, with which its steps can be timed."""
    channels, side, classes = builtin_shape(name)
    return {"synthetic": {"samples": samples, "channels": channels, "side": side, "classes": classes}}


def network_builder(name: str) -> "Callable[[Shape], nn.Module]":
    """What makes the network of a built-in task; torch is loaded when it is called."""
    model = find_builtin(name).model

    def build(shape: Shape) -> "nn.Module":
        from fedge.worker.architectures import MODELS

        return MODELS[model](shape)

    return build
