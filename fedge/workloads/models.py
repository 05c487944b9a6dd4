"""The networks that can be trained, by name; each is built for images of a given shape and a number of classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, slots=True)
class Shape:
    """What a network sees and says: square images of ``side`` pixels with ``channels``, and ``classes`` scores."""

    channels: int
    side: int
    classes: int


def digits_cnn(shape: Shape) -> nn.Module:
    """Two convolutions and one dense layer, about 6 thousand parameters for 8 x 8 images: made to be quick.

    Group normalisation keeps it learning at step sizes where it would otherwise diverge, and unlike batch norm has no
    running statistics that clients with different classes would have to average (Hsieh et al. 2020).
    """
    quarter = shape.side // 4
    return nn.Sequential(
        nn.Conv2d(shape.channels, 16, 3, padding=1),
        nn.MaxPool2d(2),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.MaxPool2d(2),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * quarter * quarter, shape.classes),
    )


def lenet5(shape: Shape) -> nn.Module:
    """LeNet-5 (LeCun et al. 1998) with ReLU and max pooling; 28-pixel images are padded to its 32."""
    side = (((shape.side + 4 if shape.side < 32 else shape.side) - 4) // 2 - 4) // 2
    return nn.Sequential(
        nn.Conv2d(shape.channels, 6, 5, padding=2 if shape.side < 32 else 0),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * side * side, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, shape.classes),
    )


def small_cnn(shape: Shape) -> nn.Module:
    """Three convolutions, two poolings, dropout and two dense layers: about half a million parameters."""
    quarter = shape.side // 4
    return nn.Sequential(
        nn.Conv2d(shape.channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(64 * quarter * quarter, 128),
        nn.ReLU(),
        nn.Linear(128, shape.classes),
    )


def resnet18(shape: Shape) -> nn.Module:
    """ResNet-18 of torchvision, not pretrained, with the usual change for small images (He et al. 2016, section 4.2).

    The first convolution is 3 x 3 with stride 1 instead of 7 x 7 with stride 2, and the pooling after it is left out.
    """
    from fedge.workloads.vision import models

    net: nn.Module = models.resnet18(weights=None, num_classes=shape.classes)
    net.conv1 = nn.Conv2d(shape.channels, 64, kernel_size=3, stride=1, padding=1, bias=False)
    net.maxpool = nn.Identity()
    return net


def _mobilenet_v3(size: str, shape: Shape) -> nn.Module:
    from fedge.workloads.vision import models

    build = {"small": models.mobilenet_v3_small, "large": models.mobilenet_v3_large}[size]
    net: nn.Module = build(weights=None, num_classes=shape.classes)
    stem = net.get_submodule("features.0")
    assert isinstance(stem, nn.Sequential)
    stem[0] = nn.Conv2d(shape.channels, 16, kernel_size=3, stride=1, padding=1, bias=False)
    return net


def mobilenet_v3_small(shape: Shape) -> nn.Module:
    """MobileNetV3-Small of torchvision, not pretrained; the first convolution has stride 1 instead of 2."""
    return _mobilenet_v3("small", shape)


def mobilenet_v3_large(shape: Shape) -> nn.Module:
    """MobileNetV3-Large of torchvision, not pretrained; the first convolution has stride 1 instead of 2."""
    return _mobilenet_v3("large", shape)


MODELS: Mapping[str, Callable[[Shape], nn.Module]] = {
    "digits-cnn": digits_cnn,
    "lenet5": lenet5,
    "small-cnn": small_cnn,
    "resnet18": resnet18,
    "mobilenet-v3-small": mobilenet_v3_small,
    "mobilenet-v3-large": mobilenet_v3_large,
}
"""Every network by name."""
