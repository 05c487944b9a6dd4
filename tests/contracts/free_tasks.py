"""Task files whose samples are no images: a text, rows of a table, a language model; data made on the spot."""

import json
from pathlib import Path

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
LANGUAGE_MODEL = """
import torch
from fedge.worker.language_models import causal_lm, read_texts

TINY = dict(model_type="llama", vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)


def model(shape):
    return causal_lm(TINY, rank=8, alpha=16)


def optimizer(parameters, learning_rate, momentum):
    return torch.optim.AdamW(parameters, lr=learning_rate)


def data(source):
    return read_texts(source, TINY, context=24)
"""
SENTENCE = "the board waits. the mode fits. the round ends. "


def write_texts(folder: Path) -> None:
    """Texts of three groups, for training and for testing."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, times in (("train", 20), ("test", 5)):
        lines = [json.dumps({"text": SENTENCE * times, "group": group}) for group in ("ann", "ben", "cem")]
        (folder / f"{part}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
