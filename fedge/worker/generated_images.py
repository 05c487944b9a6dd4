"""Generated images: reproducible from their parameters, and as costly to read and decode as photographs."""

import hashlib
import io
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, List, NamedTuple, Optional, Tuple

import numpy as np

from fedge.worker.refusal import Refusal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Pixels = NDArray[np.uint8]
    Field = NDArray[np.float32]
else:
    Pixels = Field = Any

VERSION = 1
"""Version of the generator: another one makes other images, in another folder."""
FOLDER = "fedge-images"
"""Folder below the storage path; it contains one folder per data set, named by its key."""
COMPLETE = ".complete"
"""File that marks a completely written data set."""
ARRAY = "images.npy"
FOLDERS = 8
"""Number of class folders. Labels do not affect the timing, so that a few are enough."""
BYTES_PER_PIXEL = 0.32
"""Default size of a JPEG in bytes per pixel; photographs of that many pixels have 0.25 to 0.4."""
HEADER_BYTES = 640
"""Constant part of a JPEG in bytes, mostly tables."""
QUALITIES = (97, 90, 80, 65, 45, 25, 10)
"""JPEG qualities to try; the highest at which an image without noise is small enough is used."""
MOST_GRAIN = 90.0
"""Upper end of the search for the standard deviation of the noise added to an image, in levels of 0 to 255."""
CANVASES = 4
"""Number of backgrounds; every image combines two. More would cost memory and start-up time only."""
SIZE_TRIAL_IMAGES = 4
"""Images encoded per trial while the noise level is calibrated to the wanted file size."""
SPARE_BYTES = 64 << 20
"""Bytes left free on a storage, so that other programs can still write there."""
MOST_SIDE = 20000
SUFFIXES = (".jpg", ".jpeg", ".png")

ImageProgress = Callable[[int, int], None]
"""Callback with the number of images made and the total."""


class BadImages(Refusal):
    """Images that cannot be generated, or a folder without usable images."""

    kind = "bad-source"


class ImageSetSpec(NamedTuple):
    """Parameters of a generated data set.

    Attributes:
        channels: 1 (grey) or 3 (colour).
        kb: Mean size of a file in units of 1000 bytes; None: ``BYTES_PER_PIXEL`` decides.
        in_memory: Whether to write one array in one file instead of JPEGs in a folder per class.
    """

    images: int
    width: int
    height: int
    channels: int = 3
    seed: int = 0
    kb: Optional[float] = None
    in_memory: bool = False

    @property
    def key(self) -> str:
        """Twelve hex digits that identify the content."""
        content = json.dumps([VERSION, list(self)])
        return hashlib.sha256(content.encode("ascii")).hexdigest()[:12]

    @property
    def file_bytes(self) -> float:
        """Mean size of one image in bytes."""
        if self.in_memory:
            return float(self.width * self.height * self.channels)
        own = HEADER_BYTES + BYTES_PER_PIXEL * self.width * self.height
        return own if self.kb is None else 1000.0 * self.kb

    @property
    def total_bytes(self) -> float:
        """Size on the storage in bytes, with up to one block of 4096 bytes lost per file."""
        return self.images * (self.file_bytes + (0 if self.in_memory else 4096))


def check_image_spec(wanted: ImageSetSpec) -> ImageSetSpec:
    """Return the specification unchanged if it is valid.

    Raises:
        BadImages: A value is out of range.
    """
    for name, most in (("images", 1 << 31), ("width", MOST_SIDE), ("height", MOST_SIDE)):
        if not 1 <= getattr(wanted, name) <= most:
            raise BadImages("images." + name.replace("images", "count"), repr(getattr(wanted, name)), f"1 to {most}")
    if wanted.channels not in (1, 3):
        raise BadImages("images.channels", repr(wanted.channels), "1 (grey) or 3 (colours)")
    if wanted.kb is not None and not 0.7 <= wanted.kb <= 1e5:
        raise BadImages("images.kb", repr(wanted.kb), "0.7 to 100000 (thousand bytes of a JPEG)")
    return wanted


def image_set_folder(storage: str, wanted: ImageSetSpec) -> Path:
    """Return the folder of the data set below a storage path, whether it exists or not."""
    return Path(storage) / FOLDER / wanted.key


def is_complete(place: Path) -> bool:
    """Return whether the data set was written completely."""
    return (place / COMPLETE).is_file()


def explain_lack_of_space(storage: str, wanted: ImageSetSpec) -> Optional[str]:
    """Return why a missing data set does not fit on the storage; None if it exists or fits."""
    if is_complete(image_set_folder(storage, wanted)):
        return None
    needed, free = wanted.total_bytes + SPARE_BYTES, shutil.disk_usage(storage).free
    if free >= needed:
        return None
    mb = "{:.0f} MB".format
    return f"{storage} has {mb(free / 1e6)} free; {wanted.images} images and a reserve need {mb(needed / 1e6)}"


def make_images(storage: str, wanted: ImageSetSpec, told: ImageProgress = lambda _done, _of: None) -> Path:
    """Generate the data set unless it exists, and return its folder.

    It is written under a temporary name; an interrupted run leaves that behind and the next one removes it.

    ``storage`` is the path of a folder on the storage to test.

    Raises:
        BadImages: The parameters are invalid, there is too little space, or Pillow is missing.
        OSError: The storage cannot be written.
    """
    check_image_spec(wanted)
    place = image_set_folder(storage, wanted)
    if is_complete(place):
        return place
    lack = explain_lack_of_space(storage, wanted)
    if lack is not None:
        raise BadImages("images", "no room for them: " + lack, "fewer or smaller ones, or another storage")
    making = place.with_name(place.name + ".making")
    for old in (making, place):
        if old.exists():
            shutil.rmtree(str(old))
    making.mkdir(parents=True)
    total = _make_image_array(making, wanted, told) if wanted.in_memory else _make_image_files(making, wanted, told)
    os.sync()  # so that a marker that is there says that all else is
    _write_file(making / COMPLETE, json.dumps({"images": wanted.images, "bytes": total}).encode("ascii"))
    making.rename(place)
    return place


def list_image_files(folder: str) -> List[Tuple[str, int]]:
    """List every image of a folder that has one folder per class.

    Returns:
        Pairs of path and class index, both in sorted order.

    Raises:
        BadImages: The folder does not exist or has no images.
    """
    if not Path(folder).is_dir():
        raise BadImages(folder, "no such folder", "a folder with a folder of images for each class")
    classes = sorted(path for path in Path(folder).iterdir() if path.is_dir() and not path.name.startswith("."))
    found = [
        (str(file), label)
        for label, kind in enumerate(classes)
        for file in sorted(kind.iterdir())
        if file.suffix.lower() in SUFFIXES
    ]
    if not found:
        raise BadImages(folder, "a folder without images", "jpg or png files in a folder for each class")
    return found


def choose_image_files(files: List[Tuple[str, int]], count: int, folder: str) -> List[Tuple[str, int]]:
    """Return ``count`` files, spread evenly over the classes.

    Raises:
        BadImages: The folder has fewer files.
    """
    if len(files) < count:
        raise BadImages(folder, f"{len(files)} images", f"at least the {count} of an epoch")
    return [files[k * len(files) // count] for k in range(count)]


def _make_image_array(folder: Path, wanted: ImageSetSpec, told: ImageProgress) -> int:
    shape = (wanted.images, wanted.height, wanted.width, wanted.channels)
    rng = np.random.RandomState(wanted.seed)
    chunk = max(1, (1 << 22) // int(np.prod(shape[1:])))
    with (folder / ARRAY).open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, wanted.images, chunk):
            count = min(chunk, wanted.images - start)
            file.write(rng.bytes(count * int(np.prod(shape[1:]))))
            told(start + count, wanted.images)
        return file.tell()


def _make_image_files(folder: Path, wanted: ImageSetSpec, told: ImageProgress) -> int:
    painter = _ImageGenerator(wanted)
    for name in range(FOLDERS):
        (folder / f"class-{name}").mkdir()
    total = 0
    for i in range(wanted.images):
        content = painter.make_jpeg(i)
        _write_file(folder / f"class-{i % FOLDERS}" / f"{i:07d}.jpg", content)
        total += len(content)
        told(i + 1, wanted.images)
    return total


def _write_file(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)


class _ImageGenerator:
    """Generator of image i: two transformed backgrounds with detail at every scale, and noise for the wanted file size.

    Photographs have about as much contrast in every octave of detail, which is what sets the cost of decoding them.
    """

    def __init__(self, wanted: ImageSetSpec) -> None:
        self._wanted = wanted
        self._image = _import_pillow()
        rng = np.random.RandomState(wanted.seed)
        shape = (wanted.height, wanted.width)
        self._canvases = [self._make_canvas(rng, shape) for _ in range(CANVASES)]
        self._tint = [
            [self._make_canvas(rng, shape) for _ in range(2)] if wanted.channels == 3 else [] for _ in range(2)
        ]
        self._grains = rng.standard_normal(shape).astype(np.float32)
        self._quality, self._grain = self._choose_quality_and_grain()

    def make_jpeg(self, i: int) -> bytes:
        """Return the content of file i."""
        return self._encode_jpeg(i, self._quality, self._grain)

    def _make_canvas(self, rng: Any, shape: Tuple[int, int]) -> Field:
        """Return noise with equal power in every octave; float32 of ``shape``, mean 0, standard deviation 1."""
        height, width = shape
        total = np.zeros(shape, np.float32)
        step = 2
        while step < 2 * max(shape):
            small = rng.standard_normal((max(2, height // step), max(2, width // step))).astype(np.float32)
            total += np.asarray(self._image.fromarray(small).resize((width, height), self._image.BICUBIC))
            step *= 2
        field: Field = (total - total.mean()) / max(1e-6, float(total.std()))
        return field

    def _make_pixels(self, i: int, grain: float) -> Pixels:
        rng = np.random.RandomState([self._wanted.seed & 0xFFFFFFFF, i])
        first, second = (self._transform_canvas(self._canvases[rng.randint(CANVASES)], rng) for _ in range(2))
        light = 128 + rng.uniform(25, 40) * first + rng.uniform(10, 25) * second
        light += grain * self._transform_canvas(self._grains, rng)
        if self._wanted.channels == 1:
            return np.asarray(np.clip(light, 0, 255), np.uint8)
        red, blue = (rng.uniform(5, 20) * self._transform_canvas(tint, rng) for tint in self._tint[rng.randint(2)])
        colours = np.stack([light + red, light - 0.5 * red - 0.2 * blue, light + blue], axis=-1)
        return np.asarray(np.clip(colours, 0, 255), np.uint8)

    @staticmethod
    def _transform_canvas(canvas: Field, rng: Any) -> Field:
        """Flip and cyclically shift the canvas at random."""
        turned = canvas[:: rng.choice((1, -1)), :: rng.choice((1, -1))]
        return np.roll(turned, (rng.randint(canvas.shape[0]), rng.randint(canvas.shape[1])), axis=(0, 1))

    def _encode_jpeg(self, i: int, quality: int, grain: float) -> bytes:
        content = io.BytesIO()
        self._image.fromarray(self._make_pixels(i, grain)).save(content, "JPEG", quality=quality)
        return content.getvalue()

    def _mean_file_bytes(self, quality: int, grain: float) -> float:
        tried = min(SIZE_TRIAL_IMAGES, self._wanted.images)
        return sum(len(self._encode_jpeg(i, quality, grain)) for i in range(tried)) / tried

    def _choose_quality_and_grain(self) -> Tuple[int, float]:
        """Quality and grain with which files have their size, as near as it goes."""
        target = self._wanted.file_bytes
        fitting = [quality for quality in QUALITIES[1:] if self._mean_file_bytes(quality, 0.0) <= target]
        quality = fitting[0] if fitting else QUALITIES[-1]
        if self._mean_file_bytes(quality, MOST_GRAIN) < target:
            quality = QUALITIES[0]
        low, high = 0.0, MOST_GRAIN
        for _ in range(10):
            middle = (low + high) / 2
            low, high = (middle, high) if self._mean_file_bytes(quality, middle) < target else (low, middle)
        return quality, (low + high) / 2


def _import_pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        right = "Pillow (the package python3-pil), or a folder of images of your own"
        raise BadImages("images", "no Pillow to make them with", right) from error
    return Image
