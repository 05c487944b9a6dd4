"""Trainable networks by name, each built for a given image shape and number of classes."""

from functools import partial
from typing import Callable, Dict

from torch import nn

from fedge.worker.task_shape import Shape
from fedge.worker.text_networks import character_lstm, text_transformer


def digits_cnn(shape: Shape) -> nn.Module:
    """Build a CNN of two convolutions and one dense layer, about 6 thousand parameters for 8 x 8 images.

    Group normalisation keeps it stable at learning rates where it would otherwise diverge, and unlike batch norm it has
    no running statistics, which clients with different classes could not average well.

    References:
        Hsieh et al., "The Non-IID Data Quagmire of Decentralized Machine Learning", ICML 2020.
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
    """Build LeNet-5 with ReLU and max pooling; images narrower than 32 pixels are padded by 2 on each side.

    References:
        LeCun et al., "Gradient-Based Learning Applied to Document Recognition", 1998.
    """
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
    """Build a CNN of three convolutions, two poolings, dropout and two dense layers: half a million parameters."""
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
    """Build torchvision's ResNet-18 without pretrained weights, with the usual stem for small images.

    The first convolution is 3 x 3 with stride 1 instead of 7 x 7 with stride 2, and the pooling after it is removed.

    References:
        He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, section 4.2.
    """
    net = build_torchvision("resnet18", shape)
    net.conv1 = nn.Conv2d(shape.channels, 64, kernel_size=3, stride=1, padding=1, bias=False)
    net.maxpool = nn.Identity()
    return net


def mobilenet_v3(name: str, shape: Shape) -> nn.Module:
    """Build a MobileNetV3 of torchvision's without pretrained weights; its first convolution has stride 1, not 2."""
    net = build_torchvision(name, shape)
    stem = net.get_submodule("features.0")
    assert isinstance(stem, nn.Sequential)
    stem[0] = nn.Conv2d(shape.channels, 16, kernel_size=3, stride=1, padding=1, bias=False)
    return net


def build_torchvision(name: str, shape: Shape, **options: int) -> nn.Module:
    """Build torchvision's unmodified network ``name`` for large images with 3 channels, without pretrained weights.

    Raises:
        BadTask: This release of torchvision does not have it.
    """
    from fedge.worker.torchvision_shim import models, require_function

    net: nn.Module = require_function(models, name)(num_classes=shape.classes, **options)
    return net


def vit_b16(shape: Shape) -> nn.Module:
    """Build torchvision's ViT-B/16 without pretrained weights, for images whose side is a multiple of 16 pixels.

    References:
        Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021.
    """
    return build_torchvision("vit_b_16", shape, image_size=shape.side)


MODELS: Dict[str, Callable[[Shape], nn.Module]] = {
    "digits-cnn": digits_cnn,
    "lenet5": lenet5,
    "small-cnn": small_cnn,
    "resnet18": resnet18,
    "mobilenet-v3-small": partial(mobilenet_v3, "mobilenet_v3_small"),
    "mobilenet-v3-large": partial(mobilenet_v3, "mobilenet_v3_large"),
    "resnet18-imagenet": partial(build_torchvision, "resnet18"),
    "resnet50-imagenet": partial(build_torchvision, "resnet50"),
    "mobilenet-v3-large-imagenet": partial(build_torchvision, "mobilenet_v3_large"),
    "vit-b16": vit_b16,
    "text-transformer": text_transformer,
    "character-lstm": character_lstm,
}
"""Every network by name; each value builds a fresh one for a ``Shape``."""
