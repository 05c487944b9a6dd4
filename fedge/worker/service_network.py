"""Network of an inference service: its own weights, on the trainer's device, without touching the random state."""

from typing import List, Optional, Sequence

import numpy as np
import torch
from torch import nn

from fedge.worker.network_arrays import load_arrays
from fedge.worker.refusal import Refusal
from fedge.worker.sources import Data, Pixels
from fedge.worker.subnetwork_arrays import Arrays
from fedge.worker.task_shape import BadTask
from fedge.worker.tasks import TrainingTask, data_shape

OWN_IMAGES = 256
"""Images of the source kept for requests that bring none. A default that bounds the memory of a service."""


class ServiceNetwork:
    """Scores images in evaluation mode; on a GPU it returns once the device is idle."""

    def __init__(
        self, task: TrainingTask, data: Data, device: str, arrays: Optional[Arrays] = None, seed: int = 0, most: int = 1
    ) -> None:
        """Build the network and its input buffer.

        The data defines the images' shape and scale, and supplies the images of requests without one. Without
        ``arrays`` the network is freshly initialised from ``seed``. ``most`` is the largest batch.

        Raises:
            BadCall: The arrays belong to another model.
            BadTask: The network cannot be built.
        """
        self.device = torch.device(device)
        self.shape = data_shape(data)
        if self.shape.sample:
            raise BadTask("service", f"samples of shape {self.shape.sample}", "a task for images")
        self._net = self._make_network(task, seed, arrays)
        self._own = torch.from_numpy(data.train_x[:OWN_IMAGES].copy())
        self._mean, self._sd = (torch.tensor(v).reshape(1, -1, 1, 1).to(self.device) for v in (data.mean, data.sd))
        # Kept, since allocating pinned memory is slow; it is reused only after the previous batch is done.
        self._x = torch.empty((most, *self._own.shape[1:]), dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        self._next = 0

    def scores(self, images: Sequence[Optional[Pixels]]) -> np.ndarray:
        """Score a batch of images.

        Args:
            images: Images uint8 (channels, side, side); None stands for one of the network's own.

        Returns:
            Scores float32 (n, classes).

        Raises:
            BadScores: The network does not return one row of scores per image.
        """
        x = self._x[: len(images)]
        for place, image in enumerate(images):
            x[place] = self._next_own_image() if image is None else torch.from_numpy(image)
        devices: List[torch.device] = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            moved = x.to(self.device, non_blocking=True)
            scores = self._net((moved.to(torch.float32) - self._mean) / self._sd)
            if getattr(scores, "ndim", 0) != 2 or len(scores) != len(images):
                got = f"scores of shape {tuple(getattr(scores, 'shape', ()))} for {len(images)} images"
                raise BadScores("the network", got, "a row of scores for each image")
            found: np.ndarray = scores.to(torch.float32).cpu().numpy()
            if devices:
                torch.cuda.synchronize(self.device)
        return found

    def _make_network(self, task: TrainingTask, seed: int, arrays: Optional[Arrays]) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            # Frozen parameters, which do not come with the arrays, are those of the trainer: of seed 0.
            torch.manual_seed(seed if arrays is None else 0)
            net = task.build(self.shape)
        if arrays is not None:
            with torch.no_grad():
                load_arrays(net, arrays)
        for weight in net.parameters():
            weight.requires_grad_(False)
        return net.to(self.device).eval()

    def _next_own_image(self) -> torch.Tensor:
        self._next = (self._next + 1) % len(self._own)
        return self._own[self._next]


class BadScores(Refusal):
    """A network whose output is not one row of scores per image."""

    kind = "failed"
