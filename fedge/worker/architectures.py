"""Trainable networks by name, each built for a given image shape and number of classes."""

from functools import partial
from typing import Callable, Dict

from torch import Tensor, nn

from fedge.worker.task_shape import VOCABULARY, Shape


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


FAR = -1e4
"""Attention score of padding: large enough to count for nothing, and finite, so that an empty text gives no NaN."""


class AttentionBlock(nn.Module):
    """Self-attention and two dense layers, each after a layer normalisation and added to its input.

    Attention is written out instead of taken from torch, whose layers differ between torch 1.10 and 2.x.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.split, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dense = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """Return the block's output, of the shape of ``x`` (n, length, width); ``padding`` is (n, 1, 1, length)."""
        n, length, width = x.shape
        parts = self.split(self.norm_1(x)).reshape((n, length, 3, self.heads, width // self.heads))
        query, key, value = parts.permute((2, 0, 3, 1, 4)).unbind(0)
        scores = query @ key.transpose(-2, -1) * (width // self.heads) ** -0.5
        attended = scores.masked_fill(padding, FAR).softmax(-1) @ value
        x = x + self.join(attended.transpose(1, 2).reshape(n, length, width))
        out: Tensor = x + self.dense(self.norm_2(x))
        return out


class TextTransformer(nn.Module):
    """Classifies a text by the mean of its words' vectors after some blocks of attention."""

    def __init__(self, length: int, classes: int, width: int = 64, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([AttentionBlock(width, heads) for _ in range(blocks)])
        self.scores = nn.Linear(width, classes)

    def forward(self, words: Tensor) -> Tensor:
        """Return scores (n, classes) of texts given as numbers of words (n, length)."""
        padding = words == 0
        x = self.words(words) + self.places.weight
        for block in self.blocks:
            x = block(x, padding[:, None, None])
        kept = (~padding)[:, :, None].to(x.dtype)
        scores: Tensor = self.scores((x * kept).sum(1) / kept.sum(1).clamp(min=1.0))
        return scores


class CharacterLstm(nn.Module):
    """Predicts the next character at every place of a text from all characters before it."""

    def __init__(self, symbols: int, embedding: int = 32, width: int = 128) -> None:
        super().__init__()
        self.symbols = nn.Embedding(symbols, embedding)
        self.cell = nn.LSTM(embedding, width, batch_first=True)
        self.scores = nn.Linear(width, symbols)

    def forward(self, text: Tensor) -> Tensor:
        """Return scores (n, symbols, length) of texts given as numbers of characters (n, length)."""
        scores: Tensor = self.scores(self.cell(self.symbols(text))[0])
        return scores.transpose(1, 2)


def text_transformer(shape: Shape) -> nn.Module:
    """Build a text classifier of 0.6 million parameters, most of them the words' vectors."""
    return TextTransformer(shape.sample[0], shape.classes)


def character_lstm(shape: Shape) -> nn.Module:
    """Build a language model for characters, 96 thousand parameters for 80 characters."""
    return CharacterLstm(shape.classes)


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
