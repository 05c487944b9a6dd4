"""Trainable networks by name, each built for a given image shape and number of classes."""

from typing import Callable, Dict

from torch import nn

from fedge.worker.task_shape import Shape


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
    from fedge.worker.torchvision_shim import models

    net: nn.Module = models.resnet18(num_classes=shape.classes)
    net.conv1 = nn.Conv2d(shape.channels, 64, kernel_size=3, stride=1, padding=1, bias=False)
    net.maxpool = nn.Identity()
    return net


def _mobilenet_v3(size: str, shape: Shape) -> nn.Module:
    from fedge.worker.torchvision_shim import models

    build = {"small": models.mobilenet_v3_small, "large": models.mobilenet_v3_large}[size]
    net: nn.Module = build(num_classes=shape.classes)
    stem = net.get_submodule("features.0")
    assert isinstance(stem, nn.Sequential)
    stem[0] = nn.Conv2d(shape.channels, 16, kernel_size=3, stride=1, padding=1, bias=False)
    return net


def mobilenet_v3_small(shape: Shape) -> nn.Module:
    """Build torchvision's MobileNetV3-Small without pretrained weights; its first convolution has stride 1, not 2."""
    return _mobilenet_v3("small", shape)


def mobilenet_v3_large(shape: Shape) -> nn.Module:
    """Build torchvision's MobileNetV3-Large without pretrained weights; its first convolution has stride 1, not 2."""
    return _mobilenet_v3("large", shape)


def imagenet_resnet18(shape: Shape) -> nn.Module:
    """Build torchvision's unmodified ResNet-18 for large images, without pretrained weights."""
    from fedge.worker.torchvision_shim import models

    net: nn.Module = models.resnet18(num_classes=shape.classes)
    return net


def imagenet_resnet50(shape: Shape) -> nn.Module:
    """Build torchvision's unmodified ResNet-50 for large images, without pretrained weights.

    Args:
        shape: Only its ``classes`` count; images must have 3 channels.
    """
    from fedge.worker.torchvision_shim import models

    net: nn.Module = models.resnet50(num_classes=shape.classes)
    return net


def imagenet_mobilenet_v3_large(shape: Shape) -> nn.Module:
    """Build torchvision's unmodified MobileNetV3-Large for large images, without pretrained weights."""
    from fedge.worker.torchvision_shim import models

    net: nn.Module = models.mobilenet_v3_large(num_classes=shape.classes)
    return net


def vit_b16(shape: Shape) -> nn.Module:
    """Build torchvision's ViT-B/16 without pretrained weights, for images whose side is a multiple of 16 pixels.

    References:
        Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021.
    """
    from fedge.worker.torchvision_shim import models, require_function

    net: nn.Module = require_function(models, "vit_b_16")(image_size=shape.side, num_classes=shape.classes)
    return net


MODELS: Dict[str, Callable[[Shape], nn.Module]] = {
    "digits-cnn": digits_cnn,
    "lenet5": lenet5,
    "small-cnn": small_cnn,
    "resnet18": resnet18,
    "mobilenet-v3-small": mobilenet_v3_small,
    "mobilenet-v3-large": mobilenet_v3_large,
    "resnet18-imagenet": imagenet_resnet18,
    "resnet50-imagenet": imagenet_resnet50,
    "mobilenet-v3-large-imagenet": imagenet_mobilenet_v3_large,
    "vit-b16": vit_b16,
}
"""Every network by name; each value builds a fresh one for a ``Shape``."""
