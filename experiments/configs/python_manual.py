"""A character language model of the topics of Python's own manual, which every Python brings along.

``joint-text-sweep.yaml`` uses it. A topic is a group, so that under the partition ``natural`` clients know different
topics; a tenth of the blocks of each are for testing. Other versions of Python have other texts, and so other figures.
"""

import pydoc_data.topics
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from fedge.worker.architectures import CharacterLstm
from fedge.worker.sources import Data, free_data
from fedge.worker.task_shape import Shape

BLOCK = 64
"""Characters of a block; each is labelled with the character that follows."""
LONGEST = 9000
"""Characters of the longest topic that is used: with all topics a round takes some times as long."""
FIRST, SYMBOLS = 32, 96
"""Code of the first symbol, a blank, and number of symbols: printable ASCII; letters beyond it are question marks."""


def model(shape: Shape) -> torch.nn.Module:
    """Return the network: 100 thousand parameters."""
    return CharacterLstm(shape.classes)


def optimizer(parameters: Iterable[torch.nn.Parameter], learning_rate: float, momentum: float) -> torch.optim.Adam:
    """Return Adam, as SGD hardly moves an LSTM in so few steps."""
    return torch.optim.Adam(parameters, lr=learning_rate)


def data(source: dict[str, Any]) -> Data:
    """Return the blocks of all topics; ``source`` is not needed."""
    blocks, groups = [], []
    for group, text in enumerate(pydoc_data.topics.topics.values()):
        if len(text) <= LONGEST:
            codes = np.frombuffer(" ".join(text.split()).encode("ascii", "replace"), dtype=np.uint8)
            numbers = np.minimum(codes.astype(np.int64) - FIRST, SYMBOLS - 1)
            starts = range(0, len(numbers) - BLOCK, BLOCK)
            blocks += [numbers[start : start + BLOCK + 1] for start in starts]
            groups += [group] * len(starts)
    rows, origin = np.stack(blocks), np.array(groups, dtype=np.int64)
    test = np.arange(len(rows)) % 10 == 9
    train_x, test_x = rows[~test], rows[test]
    return free_data(
        train_x[:, :-1], train_x[:, 1:], test_x[:, :-1], test_x[:, 1:], classes=SYMBOLS, groups=origin[~test]
    )
