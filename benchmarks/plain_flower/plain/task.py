"""Model, training and test, which Flower's quickstart keeps in task.py; images come from files of arrays."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedge.worker.architectures import MODELS
from fedge.worker.task_shape import Shape


def network(name: str, channels: int, size: int) -> nn.Module:
    """Return one of fedge's own networks for square images of ten classes, so that both sides train the same."""
    return MODELS[name](Shape(channels, size, 10))


def images(folder: Path, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (n, channels, size, size) from -1 to 1, and labels (n,)."""
    x, y = (np.load(folder / f"{part}_{axis}.npy") for axis in "xy")
    return torch.from_numpy(x).float() / 127.5 - 1.0, torch.from_numpy(y)


def train(net: nn.Module, folder: Path, steps: int, batch_size: int, rate: float, momentum: float) -> dict[str, float]:
    """Run ``steps`` steps of SGD and return the mean loss and their seconds."""
    x, y = images(folder, "train")
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=momentum)
    net.train()
    total, begun_s = 0.0, time.perf_counter()
    for step in range(steps):
        if step * batch_size % len(x) == 0:
            order = torch.randperm(len(x))
        start = step * batch_size % len(x)
        chosen = order[start : start + batch_size]
        optimizer.zero_grad()
        loss = criterion(net(x[chosen]), y[chosen])
        loss.backward()
        optimizer.step()
        total += loss.item()
    return {"train_loss": total / steps, "train_s": time.perf_counter() - begun_s, "num-examples": len(x)}


def test(net: nn.Module, folder: Path) -> dict[str, float]:
    """Return mean loss and accuracy over the test images."""
    x, y = images(folder, "test")
    net.eval()
    with torch.no_grad():
        scores = net(x)
        loss = nn.functional.cross_entropy(scores, y).item()
    return {"loss": loss, "accuracy": float((scores.argmax(1) == y).float().mean())}
