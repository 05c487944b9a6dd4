"""What a minibatch is loaded with: samples stamped by whoever loads them, the stamps travelling with the batch.

All stamps are of ``time.monotonic``, which on Linux is one clock for all processes of a machine, also in containers.
"""

import io
import time
from typing import TYPE_CHECKING, Any, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import default_collate

from fedge.worker.generated_images import BadImages

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Pixels = NDArray[np.uint8]
    _Set = Dataset[Any]
    _Loader = DataLoader[Any]
else:
    Pixels = Any
    _Set, _Loader = Dataset, DataLoader

now_s = time.monotonic
MEAN, SD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's channels, as torchvision's networks expect them; grey images get the middle one's."""
FORK = "fork"
"""How workers are started: as PyTorch on Linux does, whatever the Python."""

Sample = Tuple[Tensor, int, float, float, float]
"""Image, label; when its loading began, when it was read, when it was a tensor."""


class BatchStamps(NamedTuple):
    """Of one batch: seconds summed over its samples, and moments on the clock of ``now_s``."""

    fetch_s: float
    preprocess_s: float
    begun_s: float
    """When the first sample's loading began."""
    gathered_s: float
    """When the last sample was there."""
    made_s: float
    """When the batch was stacked."""


class TimedBatch(NamedTuple):
    """A minibatch: images (n, channels, height, width) float32, labels (n,), and what its making took."""

    images: Tensor
    labels: Tensor
    stamps: BatchStamps


class ImageTransform:
    """Makes a network's input of an image, as torchvision's usual transforms do: resize, to tensor, normalise.

    The whole image is scaled, without cropping; PIL decodes all of it.
    """

    def __init__(self, shape: Tuple[int, int, int]) -> None:
        """``shape`` is the network's channels, height and width."""
        from PIL import Image

        channels, height, width = shape
        self._mode = "L" if channels == 1 else "RGB"
        self._size = (width, height)
        self._how: Any = getattr(Image, "BILINEAR")  # noqa: B009 -- its home moved between releases
        self._open, self._made = Image.open, Image.fromarray
        self._mean = torch.tensor(MEAN if channels == 3 else MEAN[1:2]).reshape(-1, 1, 1)
        self._sd = torch.tensor(SD if channels == 3 else SD[1:2]).reshape(-1, 1, 1)

    def decode(self, content: bytes) -> Tensor:
        """The input that a file's content gives."""
        return self._tensor(self._open(io.BytesIO(content)))

    def convert(self, pixels: Pixels) -> Tensor:
        """The input that an array (height, width) or (height, width, 3) gives."""
        return self._tensor(self._made(pixels))

    def _tensor(self, image: Any) -> Tensor:
        if image.mode != self._mode:
            image = image.convert(self._mode)
        if image.size != self._size:
            image = image.resize(self._size, self._how)
        pixels = torch.from_numpy(np.array(image))
        planes = pixels.unsqueeze(0) if pixels.ndim == 2 else pixels.permute(2, 0, 1)
        scaled = planes.contiguous().to(torch.float32).div(255)
        return scaled.sub_(self._mean).div_(self._sd)


class ImageFiles(_Set):
    """Images in files: fetched by opening and reading all of the file, then decoded."""

    def __init__(self, files: Sequence[Tuple[str, int]], prepared: ImageTransform) -> None:
        """``files`` are paths with their labels."""
        self._files, self._prepared = files, prepared

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, i: int) -> Sample:
        begun_s = now_s()
        path, label = self._files[i]
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 -- timed: what a data set usually does
            content = file.read()
        fetched_s = now_s()
        try:
            image = self._prepared.decode(content)
        except (OSError, SyntaxError, ValueError) as error:
            reason = " ".join(str(error).partition(" <")[0].split())[:200]  # Pillow names an object's address
            raise BadImages(path, f"a file that cannot be read ({reason})", "a whole jpg or png image") from error
        return image, label, begun_s, fetched_s, now_s()


class ImageArray(_Set):
    """Images in one array in memory: fetched by copying one out of it."""

    def __init__(self, pixels: Pixels, classes: int, prepared: ImageTransform) -> None:
        """``pixels`` is (n, height, width, channels)."""
        self._pixels = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
        self._classes, self._prepared = classes, prepared

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, i: int) -> Sample:
        begun_s = now_s()
        pixels = self._pixels[i].copy()
        fetched_s = now_s()
        image = self._prepared.convert(pixels)
        return image, i % self._classes, begun_s, fetched_s, now_s()


def collate_timed(samples: Sequence[Sample]) -> TimedBatch:
    """The batch of some samples; in a worker its tensors lie in shared memory from the start, as torch does it."""
    gathered_s = now_s()
    fetch_s = preprocess_s = 0.0
    for _, _, begun_s, fetched_s, done_s in samples:
        fetch_s += fetched_s - begun_s
        preprocess_s += done_s - fetched_s
    images = default_collate([sample[0] for sample in samples])
    labels = default_collate([sample[1] for sample in samples])
    return TimedBatch(
        images,
        labels,
        BatchStamps(fetch_s, preprocess_s=preprocess_s, begun_s=samples[0][2], gathered_s=gathered_s, made_s=now_s()),
    )


class TimedLoaderSettings(NamedTuple):
    """The loader's settings."""

    batch_size: int
    workers: int = 0
    prefetch: int = 2
    pinned: bool = False


def plan_batches(count: int, batch_size: int, most: Optional[int], seed: int, epoch: int) -> List[List[int]]:
    """An epoch's batches of sample numbers, shuffled; whole ones alone, ``most`` at most."""
    order = np.random.RandomState([seed & 0xFFFFFFFF, epoch]).permutation(count)
    whole = count // batch_size
    steps = whole if most is None else min(whole, most)
    return [order[k * batch_size : (k + 1) * batch_size].tolist() for k in range(steps)]


def make_loader(
    samples: _Set, how: TimedLoaderSettings, batches: List[List[int]], collate: Any = collate_timed
) -> _Loader:
    """PyTorch's own loader, which makes its workers anew for every epoch."""
    beside = {"prefetch_factor": how.prefetch, "multiprocessing_context": FORK} if how.workers else {}
    return DataLoader(
        samples,
        batch_sampler=batches,
        num_workers=how.workers,
        collate_fn=collate,
        pin_memory=how.pinned,
        **beside,  # type: ignore[arg-type]
    )


def drain_iterator(iterator: Iterator[Any]) -> None:
    """Take the end of an epoch's batches, upon which torch ends the workers."""
    for _ in iterator:
        pass
