"""A task file: the network and the data that clients train.

An experiment uses it with ``workload: {task: own_task.py}``. A board runs this file under its own Python, so it uses
only the syntax and libraries of that Python (3.6 and torch 1.10 on a Nano), and imports no file beside it.
"""

import numpy as np
from torch import nn

from fedge.worker.sources import Data


def model(shape):
    """Return the network for ``shape.channels``, ``shape.side`` and ``shape.classes``, which follow from the data."""
    side = shape.side // 2
    layers = [nn.Conv2d(shape.channels, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(8 * side * side, shape.classes)]
    return nn.Sequential(*layers)


def data(source):
    """Return the samples: here bars in one of four rows, as bytes of shape (n, channels, side, side).

    Args:
        source: ``{"folder": path}`` or ``{"file": path}`` of the experiment's ``data.dir``; empty without one.
    """
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 480)
    images = rng.integers(0, 60, (480, 1, 16, 16), dtype=np.uint8)
    for image, label in zip(images, labels):
        image[0, 4 * label : 4 * label + 3] += 150
    return Data(images[:400], labels[:400], images[400:], labels[400:], mean=(58.0,), sd=(64.0,), classes=4)
