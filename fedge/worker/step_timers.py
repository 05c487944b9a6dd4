"""Timing of a step's copy and computation, and of loading: data sets, batches and loaders with time stamps.

A step is timed by CUDA events on a GPU, otherwise by the monotonic clock. Each sample is stamped where it is loaded,
and the stamps travel with the batch.
Stamps are from ``time.monotonic``, which on Linux is one clock for all processes of a machine, also in containers.
"""

import io
import time
from typing import TYPE_CHECKING, Any, Callable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import default_collate

from fedge.worker.generated_images import BadImages, Pixels
from fedge.worker.refusal import one_line
from fedge.worker.task_shape import BadTask
from fedge.worker.tasks import cross_entropy

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
        workers: Number of worker processes; 0 loads in the training process.
        prefetch: Batches prepared ahead by each worker.
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


def make_loader(samples: _Set, how: TimedLoaderSettings, batches: List[List[int]]) -> _Loader:
    """Return a PyTorch loader of these batches of sample indices, which starts new workers for every epoch."""
    beside = {"prefetch_factor": how.prefetch, "multiprocessing_context": FORK} if how.workers else {}
    return DataLoader(
        samples,
        batch_sampler=batches,
        num_workers=how.workers,
        collate_fn=collate_timed,
        pin_memory=how.pinned,
        **beside,  # type: ignore[arg-type]
    )


def drain_iterator(iterator: Iterator[Any]) -> None:
    """Exhaust an epoch's iterator, upon which torch ends its workers."""
    for _ in iterator:
        pass


class StepOutcome(NamedTuple):
    """Results and times of one step.

    Attributes:
        loss: Loss, a scalar tensor on the device.
        scores: Scores (n, classes), on the device.
        labels: Labels (n,), on the device.
        copy_s: Seconds of the copy to the device; 0 on the host.
        done_s: When the device had finished, on the monotonic clock.
    """

    loss: Tensor
    scores: Tensor
    labels: Tensor
    copy_s: float
    compute_s: float
    done_s: float


StepFunction = Callable[[Tensor, Tensor], Tuple[Tensor, Tensor]]
"""Maps images and labels on the device to loss and scores (n, classes)."""


def make_step_function(net: nn.Module, kind: str, learning_rate: float, momentum: float) -> StepFunction:
    """Return a function that runs one step.

    ``train`` is one step of SGD (forward, backward, update), ``infer`` a forward pass.
    """
    if kind == "infer":
        net.eval()
        return lambda images, labels: _infer_step(net, images, labels)
    net.train()
    optimiser = torch.optim.SGD(net.parameters(), lr=learning_rate, momentum=momentum)
    return lambda images, labels: _train_step(net, optimiser, images, labels)


def _train_step(net: nn.Module, optimiser: Any, images: Tensor, labels: Tensor) -> Tuple[Tensor, Tensor]:
    optimiser.zero_grad()
    scores = _compute_scores(net, images)
    loss = cross_entropy(scores, labels)
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    return loss.detach(), scores.detach()


def _infer_step(net: nn.Module, images: Tensor, labels: Tensor) -> Tuple[Tensor, Tensor]:
    with torch.no_grad():
        scores = _compute_scores(net, images)
    return scores.new_zeros(()), scores


def _compute_scores(net: nn.Module, images: Tensor) -> Tensor:
    given = net(images)
    scores: Any = given if isinstance(given, Tensor) else getattr(given, "logits", given)
    if getattr(scores, "ndim", 0) != 2 or len(scores) != len(images):
        got = f"{type(scores).__name__} of shape {tuple(getattr(scores, 'shape', ()))} for {len(images)} images"
        raise BadTask("model", got, "a row of scores for each image")
    found: Tensor = scores
    return found


def time_on_host(work: StepFunction) -> Callable[[Tensor, Tensor], StepOutcome]:
    """Return a timed step function for the CPU, where nothing is copied."""

    def step(images: Tensor, labels: Tensor) -> StepOutcome:
        begun_s = now_s()
        loss, scores = work(images, labels)
        done_s = now_s()
        return StepOutcome(loss, scores=scores, labels=labels, copy_s=0.0, compute_s=done_s - begun_s, done_s=done_s)

    return step


def time_on_cuda(work: StepFunction, device: torch.device) -> Callable[[Tensor, Tensor], StepOutcome]:
    """Return a timed step function for a GPU.

    Copies from pinned memory do not block the host; at the end of each step the host waits for the device. Without that
    wait the parts of a step would overlap with those of the next, and would not add up.
    """
    event: Any = torch.cuda.Event
    begun, copied, done = (event(enable_timing=True) for _ in range(3))

    def step(images: Tensor, labels: Tensor) -> StepOutcome:
        begun.record()
        there = images.to(device, non_blocking=True)
        truth = labels.to(device, non_blocking=True)
        copied.record()
        loss, scores = work(there, truth)
        done.record()
        done.synchronize()
        done_s = now_s()
        return StepOutcome(
            loss,
            scores=scores,
            labels=truth,
            copy_s=begun.elapsed_time(copied) / 1e3,
            compute_s=copied.elapsed_time(done) / 1e3,
            done_s=done_s,
        )

    return step
