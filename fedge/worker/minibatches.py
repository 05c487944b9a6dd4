"""Minibatches of a share of the samples: which samples, and their tensors on the device."""

from typing import Iterator, Optional, Tuple

import numpy as np
import torch
from torch import Tensor

from fedge.worker.sources import Data, Labels


class MinibatchFeed:
    """Makes minibatches from training images kept as bytes in main memory; copies to a GPU use pinned memory."""

    def __init__(self, data: Data, device: torch.device) -> None:
        self._x, self._y = torch.from_numpy(data.train_x), torch.from_numpy(data.train_y)
        self._device = device
        self._scaled = data.is_scaled
        self._mean, self._sd = (torch.tensor(v).reshape(1, -1, 1, 1).to(device) for v in (data.mean, data.sd))
        self._pinned: Optional[Tuple[Tensor, Tensor]] = None

    def minibatch(self, chosen: Labels) -> Tuple[Tensor, Tensor]:
        """Return the samples ``chosen`` on the device.

        Args:
            chosen: Sample indices (n,).

        Returns:
            Normalised float32 images (n, channels, side, side) and labels (n,).
        """
        index = torch.from_numpy(chosen)
        if self._device.type == "cpu":
            return self.normalize(self._x[index]), self._y[index]
        # The buffer is reused only after the previous step, whose end the trainer waited for.
        x, y = self._get_pinned_buffers(len(chosen))
        torch.index_select(self._x, 0, index, out=x)
        torch.index_select(self._y, 0, index, out=y)
        return self.normalize(x.to(self._device, non_blocking=True)), y.to(self._device, non_blocking=True)

    def normalize(self, x: Tensor) -> Tensor:
        """Convert byte images on the device to normalised float32; other samples stay as they are."""
        if not self._scaled:
            return x
        return (x.to(torch.float32) - self._mean) / self._sd

    def release(self) -> None:
        """Free the pinned memory."""
        self._pinned = None

    def _get_pinned_buffers(self, count: int) -> Tuple[Tensor, Tensor]:
        if self._pinned is None or len(self._pinned[1]) != count:
            x = torch.empty((count, *self._x.shape[1:]), dtype=self._x.dtype, pin_memory=True)
            self._pinned = x, torch.empty((count, *self._y.shape[1:]), dtype=self._y.dtype, pin_memory=True)
        return self._pinned


def minibatches(share: Labels, steps: int, batch_size: int, rng: "np.random.Generator") -> Iterator[Labels]:
    """Yield minibatches of exactly ``batch_size`` indices from endless, newly shuffled passes over the share.

    All are full, also across the end of an epoch and for a share smaller than one minibatch (whose samples then occur
    more than once), because a board's cost is counted in full steps and batch norm needs more than one sample.

    The share has sample indices (n,).
    """
    left = share[:0]
    for _ in range(steps):
        while len(left) < batch_size:
            left = np.concatenate([left, rng.permutation(share)])
        yield left[:batch_size]
        left = left[batch_size:]
