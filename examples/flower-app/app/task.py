"""Network, data, training and test of the app; nothing here knows of fedge."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """A network for images of 8 x 8 pixels in ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10)
        )

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.layers(images)
        return scores


def load_data(partition: int, partitions: int, batch_size: int) -> tuple[DataLoader[tuple[Tensor, ...]], ...]:
    """Return the loaders of a partition's training and test samples."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    own = torch.arange(partition, len(labels), partitions)
    split = int(0.8 * len(own))
    generator = torch.Generator().manual_seed(partition)
    return (
        DataLoader(TensorDataset(images[own[:split]], labels[own[:split]]), batch_size, True, generator=generator),
        DataLoader(TensorDataset(images[own[split:]], labels[own[split:]]), batch_size),
    )


def train(net: Net, loader: DataLoader[tuple[Tensor, ...]], epochs: int, learning_rate: float) -> float:
    """Train with Adam and return the mean loss."""
    optimiser = torch.optim.Adam(net.parameters(), lr=learning_rate)
    losses = []
    net.train()
    for _ in range(epochs):
        for images, labels in loader:
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(net(images), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


def test(net: Net, loader: DataLoader[tuple[Tensor, ...]]) -> tuple[float, float]:
    """Return mean loss and accuracy."""
    loss, right, count = 0.0, 0, 0
    net.eval()
    with torch.no_grad():
        for images, labels in loader:
            scores = net(images)
            loss += float(nn.functional.cross_entropy(scores, labels, reduction="sum"))
            right += int((scores.argmax(1) == labels).sum())
            count += len(labels)
    return loss / count, right / count
