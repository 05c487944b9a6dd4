"""Data loading with time stamps: each sample is stamped where it is loaded, and the stamps travel with the batch.

All stamps are from ``time.monotonic``, which on Linux is one clock for all processes of a machine, also in containers.
"""

import io
import time
from typing import TYPE_CHECKING, Any, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import default_collate

from fedge.worker.generated_images import BadImages, Pixels
from fedge.worker.refusal import one_line

if TYPE_CHECKING:
    _Set = Dataset[Any]
    _Loader = DataLoader[Any]
else:
    _Set, _Loader = Dataset, DataLoader

now_s = time.monotonic
MEAN, SD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's channel statistics, as torchvision's networks expect them; grey images use the middle channel's."""
FORK = "fork"
"""Start method of loader workers: PyTorch's default on Linux, independent of the Python version."""

Sample = Tuple[Tensor, int, float, float, float]
"""Image, label, and the times at which its loading began, it was read, and it was a tensor."""


class BatchStamps(NamedTuple):
    """Time stamps of one batch.

    Attributes:
        fetch_s: Seconds of reading, summed over the samples.
        preprocess_s: Seconds of decoding and transforming, summed over the samples.
        begun_s: When loading of the first sample began, on the clock of ``now_s``.
        gathered_s: When the last sample was loaded.
        made_s: When the batch was stacked.
    """

    fetch_s: float
    preprocess_s: float
    begun_s: float
    gathered_s: float
    made_s: float


class TimedBatch(NamedTuple):
    """A minibatch: images (n, channels, height, width) float32, labels (n,), and its time stamps."""

    images: Tensor
    labels: Tensor
    stamps: BatchStamps


class ImageTransform:
    """Converts images to network inputs like torchvision's usual transforms: resize, to tensor, normalise.

    The whole image is scaled, without cropping; PIL decodes all of it.
    """

    def __init__(self, shape: Tuple[int, int, int]) -> None:
        """Prepare the transform; ``shape`` is the network's channels, height and width."""
        from PIL import Image

        channels, height, width = shape
        self._mode = "L" if channels == 1 else "RGB"
        self._size = (width, height)
        self._how: Any = getattr(Image, "BILINEAR")  # noqa: B009 -- its home moved between releases
        self._open, self._made = Image.open, Image.fromarray
        self._mean = torch.tensor(MEAN if channels == 3 else MEAN[1:2]).reshape(-1, 1, 1)
        self._sd = torch.tensor(SD if channels == 3 else SD[1:2]).reshape(-1, 1, 1)

    def decode(self, content: bytes) -> Tensor:
        """Decode a file's content to a float32 tensor (channels, height, width)."""
        return self._tensor(self._open(io.BytesIO(content)))

    def convert(self, pixels: Pixels) -> Tensor:
        """Convert an array (height, width) or (height, width, 3) to a float32 tensor (channels, height, width)."""
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
    """Data set of image files: a sample is fetched by reading its whole file, then decoded."""

    def __init__(self, files: Sequence[Tuple[str, int]], prepared: ImageTransform) -> None:
        """Store the files, pairs of path and label, and the transform."""
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
            reason = one_line(str(error).partition(" <")[0])  # Pillow names an object's address
            raise BadImages(path, f"a file that cannot be read ({reason})", "a whole jpg or png image") from error
        return image, label, begun_s, fetched_s, now_s()


class ImageArray(_Set):
    """Data set of one array in memory: a sample is fetched by copying it."""

    def __init__(self, pixels: Pixels, classes: int, prepared: ImageTransform) -> None:
        """Store images (n, height, width, channels); labels are assigned cyclically."""
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
    """Stack samples into a batch; in a loader worker its tensors are in shared memory, as with torch's own function."""
    gathered_s = now_s()
    fetch_s = preprocess_s = 0.0
    for _, _, begun_s, fetched_s, done_s in samples:
        fetch_s += fetched_s - begun_s
        preprocess_s += done_s - fetched_s
    images = default_collate([sample[0] for sample in samples])
    labels = default_collate([sample[1] for sample in samples])
    stamps = BatchStamps(fetch_s, preprocess_s, samples[0][2], gathered_s, made_s=now_s())
    return TimedBatch(images, labels, stamps)


class TimedLoaderSettings(NamedTuple):
    """Settings of the loader.

    Attributes:
        batch_size: Samples per batch.
        workers: Number of worker processes; 0 loads in the training process.
        prefetch: Batches prepared ahead by each worker.
        pinned: Whether to copy batches to pinned memory.
    """

    batch_size: int
    workers: int = 0
    prefetch: int = 2
    pinned: bool = False


def plan_batches(count: int, batch_size: int, most: Optional[int], seed: int, epoch: int) -> List[List[int]]:
    """Shuffle one epoch into batches of sample indices; an incomplete last batch is dropped.

    There are at most ``most`` batches (None: no limit); ``seed`` and ``epoch`` fix the order.
    """
    order = np.random.RandomState([seed & 0xFFFFFFFF, epoch]).permutation(count)
    whole = count // batch_size
    steps = whole if most is None else min(whole, most)
    return [order[k * batch_size : (k + 1) * batch_size].tolist() for k in range(steps)]


def make_loader(
    samples: _Set, how: TimedLoaderSettings, batches: List[List[int]], collate: Any = collate_timed
) -> _Loader:
    """Return a PyTorch loader of these batches of sample indices, which starts new workers for every epoch."""
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
    """Exhaust an epoch's iterator, upon which torch ends its workers."""
    for _ in iterator:
        pass
