"""Task files whose samples are no images: characters of a text, and rows of a table; data made on the spot."""

CHARACTERS = """
import numpy as np
import torch
from torch import nn
from fedge.worker.sources import free_data

TEXT = "the board waits. the mode fits. the round ends. " * 60
SYMBOLS = sorted(set(TEXT))
LENGTH = 16


class Model(nn.Module):
    def __init__(self, symbols):
        super().__init__()
        self.embed = nn.Embedding(symbols, 16)
        self.cell = nn.GRU(16, 32, batch_first=True)
        self.out = nn.Linear(32, symbols)

    def forward(self, tokens):
        return self.out(self.cell(self.embed(tokens))[0])


def model(shape):
    assert shape.sample == (LENGTH,), shape
    return Model(shape.classes)


def loss(scores, labels):
    return nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


def metric(scores, labels):
    return (scores.argmax(2) == labels).float().mean()


def optimizer(parameters, learning_rate, momentum):
    return torch.optim.Adam(parameters, lr=learning_rate)


def data(source):
    tokens = np.array([SYMBOLS.index(symbol) for symbol in TEXT], dtype=np.int64)
    starts = np.arange(0, len(tokens) - LENGTH - 1, 4)
    x = np.stack([tokens[start : start + LENGTH] for start in starts])
    y = np.stack([tokens[start + 1 : start + LENGTH + 1] for start in starts])
    groups = np.repeat(np.arange(12), -(-len(x) // 12))[: len(x)]
    return free_data(x, y, x[::7], y[::7], classes=len(SYMBOLS), groups=groups)
"""
TABLE = """
import numpy as np
from torch import nn
from fedge.worker.sources import free_data


def model(shape):
    return nn.Sequential(nn.Linear(shape.sample[0], 8), nn.Tanh(), nn.Linear(8, 1))


def loss(scores, labels):
    return nn.functional.mse_loss(scores[:, 0], labels)


def metric(scores, labels):
    return 1 - nn.functional.mse_loss(scores[:, 0], labels) / labels.var()


def data(source):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 5)).astype(np.float32)
    y = (x @ np.array([1, -2, 0, 3, 1], dtype=np.float32)).astype(np.float32)
    return free_data(x[:320], y[:320], x[320:], y[320:], classes=1)
"""
