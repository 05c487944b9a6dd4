"""Data sources of a task: an .npz file with an optional checksum, a folder on the board, or generated noise."""

import contextlib
import hashlib
import os
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from fedge.worker.refusal import Refusal, one_line

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Pixels = NDArray[np.uint8]
    Labels = NDArray[np.int64]
else:
    Pixels = Labels = Any

ARRAY_NAMES = ("train_x", "train_y", "test_x", "test_y")
ARRAY_FILES = ", ".join(name + ".npy" for name in ARRAY_NAMES)
SCALE_NAMES = ("mean", "sd", "classes")
"""Optional arrays of a file; otherwise computed from the training images."""
FREE_SAMPLES, FREE_LABELS = ("float32", "int64", "uint8", "bool"), ("int64", "float32")
"""Types of samples that are no images and of their labels: what networks of torch take without a conversion."""
UNLABELLED = -100
"""Label of a part of a sample, such as a place in a text, that torch's losses leave out."""
GROUPS = "groups"
"""Optional array of a file: see ``Data``."""
SUFFIXES = (".png", ".jpg", ".jpeg")
CHUNK = 256
"""Images processed at a time: bounds memory, no influence on the result."""
SYNTHETIC_SEED = 0
MOST_SYNTHETIC_BYTES = 1 << 40
"""More than any board's memory: rejects absurd sizes early; smaller ones may still fail with a lack of memory."""
KINDS = '{"file": PATH, "sha256": HEX}, {"folder": PATH} or {"synthetic": {"samples", "channels", "side", "classes"}}'


class BadSource(Refusal):
    """A data source that is missing or does not hold images with labels."""

    kind = "bad-source"


class Data(NamedTuple):
    """A data set.

    Attributes:
        train_x: Training images uint8 (n, channels, side, side); other samples may have any numbers (n, ...).
        train_y: Training labels int64 (n,), counted from 0; of other samples int64 or float32 (n, ...).
        test_x: Test images, as ``train_x``.
        test_y: Test labels, as ``train_y``.
        mean: Mean of the training images per channel, in units of 0 to 255; empty: samples are used as they are.
        sd: Standard deviation of the training images per channel, in units of 0 to 255; empty as ``mean``.
        classes: Number of classes, or of scores.
        groups: Source of each training sample, such as its writer, int64 (n,), for the partition ``natural``.
    """

    train_x: Pixels
    train_y: Labels
    test_x: Pixels
    test_y: Labels
    mean: Tuple[float, ...]
    sd: Tuple[float, ...]
    classes: int
    groups: Optional[Labels] = None

    @property
    def is_scaled(self) -> bool:
        """Whether samples are images, which are scaled by ``mean`` and ``sd``."""
        return bool(self.mean)


def free_data(
    train_x: "NDArray[Any]",
    train_y: "NDArray[Any]",
    test_x: "NDArray[Any]",
    test_y: "NDArray[Any]",
    classes: int,
    groups: Optional[Labels] = None,
) -> Data:
    """Return samples of any shape and type of number, which the network gets as they are; see ``Data``."""
    return Data(train_x, train_y, test_x, test_y, mean=(), sd=(), classes=classes, groups=groups)


def class_labels(y: Labels) -> Labels:
    """Return one class per sample, for partitions by class; all 0 where samples have no single class."""
    return y if y.ndim == 1 and y.dtype.kind == "i" else np.zeros(len(y), dtype=np.int64)


def read(source: Dict[str, Any]) -> Data:
    """Read the data set that ``source`` describes.

    Args:
        source: ``{"file": path}`` is an .npz file with ``ARRAY_NAMES`` and optionally ``SCALE_NAMES``; with
            ``"sha256"`` its checksum is verified. ``{"folder": path}`` holds ``ARRAY_NAMES`` as .npy files, or images
            in ``train/CLASS/`` and ``test/CLASS/``. ``{"synthetic": sizes}`` is the noise of ``make_synthetic``.

    Raises:
        BadSource: The source is missing or invalid; the text says what would be right.
    """
    keys = set(source)
    if "file" in keys and keys <= {"file", "sha256"}:
        return _from_file(Path(source["file"]).expanduser(), source.get("sha256"))
    if keys == {"folder"}:
        return _from_folder(Path(source["folder"]).expanduser())
    if keys == {"synthetic"} and isinstance(source["synthetic"], dict):
        return _from_sizes(source["synthetic"])
    raise BadSource("data", "a source of {}".format(sorted(keys) or "nothing"), KINDS)


def find_strays(path: str, roots: Sequence[str]) -> Iterator[str]:
    """Yield the paths that lead out of ``roots``: ``path`` itself, or any link below it.

    The roots are real paths.
    """
    given = Path(path).expanduser()
    if not _is_within(given, roots):
        yield str(given)
        return
    for folder, inner, files in os.walk(str(given)):
        links = (one for one in (Path(folder) / name for name in inner + files) if one.is_symlink())
        yield from (str(link) for link in links if not _is_within(link, roots))


def compute_stamp(path: str, roots: Sequence[str]) -> str:
    """Return a hash over the names, sizes and times of a file or of all files below a folder, but not their content.

    Links to folders are followed inside the roots (real paths), each folder once.
    """
    found, given = hashlib.sha256(), str(Path(path).expanduser())
    waiting, seen = [given], set()
    with contextlib.suppress(OSError):
        found.update(_stat_bytes(given, Path(given).stat()))
    while waiting:
        folder = os.path.realpath(waiting.pop())
        if folder in seen or not _is_within(Path(folder), roots):
            continue
        seen.add(folder)
        for entry in _scan_folder(folder):
            with contextlib.suppress(OSError):  # a link that leads nowhere, a file that goes just now
                found.update(_stat_bytes(entry.path, entry.stat()))
                if entry.is_dir():
                    waiting.append(entry.path)
    return found.hexdigest()


def _scan_folder(folder: str) -> "List[os.DirEntry[str]]":
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:  # not a folder, or not there
        return []


def _stat_bytes(path: str, facts: os.stat_result) -> bytes:
    return repr((path, facts.st_size, facts.st_mtime_ns)).encode("utf-8")


def _is_within(path: Path, roots: Sequence[str]) -> bool:
    real = os.path.realpath(str(path))
    return any(real == root or real.startswith(root.rstrip("/") + "/") for root in roots)


def write_file(path: "os.PathLike[str]", data: Data) -> str:
    """Write ``data`` atomically as an .npz file that ``read`` accepts, and return the file's SHA-256."""
    target = Path(path)
    unfinished = target.with_name(target.name + ".part")
    with unfinished.open("wb") as file:
        np.savez(file, **{name: value for name, value in data._asdict().items() if value is not None})
    unfinished.replace(target)
    return file_sha256(target)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            found.update(block)
    return found.hexdigest()


def make_synthetic(samples: int, channels: int, side: int, classes: int, seed: int = SYNTHETIC_SEED) -> Data:
    """Generate noise with random labels, reproducibly: nothing to learn, but as much work as real images.

    There are ``samples`` training images, and an eighth as many, at least one, for testing.
    """
    rng = np.random.default_rng(seed)
    test = max(1, samples // 8)
    x = rng.integers(0, 256, (samples + test, channels, side, side), dtype=np.uint8)
    y = rng.integers(0, classes, samples + test)
    mean, sd = (127.5,) * channels, (73.9,) * channels  # of even noise from 0 to 255
    return Data(x[:samples], y[:samples], x[samples:], y[samples:], mean=mean, sd=sd, classes=classes)


def check_data(data: Any, where: str) -> Data:
    """Return ``data`` if its arrays are complete and consistent.

    Args:
        data: A ``Data``, or a tuple in its order.
        where: Name of the source for the error text.

    Raises:
        BadSource: An array has the wrong type, shape or range; the text names it.
    """
    if not isinstance(data, tuple) or not len(Data._fields) - 1 <= len(data) <= len(Data._fields):
        got = f"{type(data).__name__} instead of a data set"
        raise BadSource(where, got, "a fedge.worker.sources.Data({})".format(", ".join(Data._fields)))
    whole = Data(*data)
    check = _check_part if whole.is_scaled else _check_free_part
    check(where, "train", whole.train_x, whole.train_y, classes=whole.classes)
    check(where, "test", whole.test_x, whole.test_y, classes=whole.classes)
    if whole.train_x.shape[1:] != whole.test_x.shape[1:]:
        what = "images" if whole.is_scaled else "samples"
        got = f"training {what} of shape {whole.train_x.shape[1:]}, test {what} of {whole.test_x.shape[1:]}"
        raise BadSource(where, got, "one shape for both")
    _check_groups(where, whole)
    if whole.is_scaled:
        _check_scale(where, whole)
    return whole


def _check_groups(where: str, whole: Data) -> None:
    groups: Any = whole.groups
    if groups is None:
        return
    plain = isinstance(groups, np.ndarray) and groups.dtype.kind in "iu"
    if not plain or groups.shape != whole.train_y.shape[:1]:
        got = "groups {} of shape {}".format(getattr(groups, "dtype", type(groups).__name__), np.shape(groups))
        raise BadSource(where, got, f"int64 of shape ({len(whole.train_y)},), one group per training sample")


def _check_scale(where: str, whole: Data) -> None:
    channels = whole.train_x.shape[1]
    finite = np.isfinite([*whole.mean, *whole.sd]).all()
    if len(whole.mean) != channels or len(whole.sd) != channels or not finite or min(whole.sd) <= 0:
        got = f"mean {whole.mean} and sd {whole.sd}"
        raise BadSource(where, got, f"one of each per channel ({channels}), sd above 0")


def _has_samples(part: str, array: "NDArray[Any]") -> bool:
    """Return whether there is a sample with a number in it; a client without test samples can still train."""
    return array.ndim > 0 and all(array.shape[1:]) and (part == "test" or len(array) > 0)


def _check_free_part(where: str, part: str, x: Any, y: Any, classes: int) -> None:
    for name, array, types in ((part + "_x", x, FREE_SAMPLES), (part + "_y", y, FREE_LABELS)):
        if not isinstance(array, np.ndarray) or str(array.dtype) not in types or not _has_samples(part, array):
            got = "{} {}".format(name, getattr(array, "dtype", type(array).__name__))
            right = "at least one sample, as a numpy array of {}".format(" or ".join(types))
            if isinstance(array, np.ndarray) and array.dtype == np.float64:
                right = f"use {name}.astype(np.float32)"
                if array is y:
                    right += f", or {name}.astype(np.int64) for classes"
            raise BadSource(where, got, right)
        _check_finite(where, name, array)
    if len(x) != len(y):
        raise BadSource(where, f"{len(x)} samples {part}_x with {len(y)} {part}_y", "as many of both")
    known = y[y != UNLABELLED] if y.ndim > 1 else y
    if y.dtype.kind == "i" and known.size and (known.min() < 0 or known.max() >= classes):
        got = f"{part}_y from {known.min()} to {known.max()} for {classes} classes"
        right = f"labels from 0 to {classes - 1}" + (f", or {UNLABELLED} for none" if y.ndim > 1 else "")
        raise BadSource(where, got, right)


def _check_finite(where: str, name: str, array: "NDArray[Any]") -> None:
    """Refuse an array of numbers with NaN or infinity, which would spoil the network in the first step."""
    finite = np.isfinite(array) if array.dtype.kind == "f" else np.ones(1, dtype=bool)
    if not finite.all():
        place = np.unravel_index(np.argmin(finite), array.shape)
        what = "NaN" if np.isnan(array[place]) else "infinity"
        raise BadSource(where, f"{name} with {what} in sample {place[0]}", "finite numbers in every sample")


def _check_part(where: str, part: str, x: Any, y: Any, classes: int) -> None:
    for name, array in ((part + "_x", x), (part + "_y", y)):
        if not isinstance(array, np.ndarray):
            raise BadSource(where, f"{name} of type {type(array).__name__}", "a numpy array")
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[2] != x.shape[3] or not _has_samples(part, x):
        right = "uint8 of shape (n, channels, side, side), pixels from 0 to 255, at least one image; else use free_data"
        raise BadSource(where, f"{part}_x {x.dtype} of shape {x.shape}", right)
    if y.dtype != np.int64 or y.shape != x.shape[:1]:
        right = f"int64 of shape ({len(x)},), one label per image"
        raise BadSource(where, f"{part}_y {y.dtype} of shape {y.shape}", right)
    if len(y) and (y.min() < 0 or y.max() >= classes):
        got = f"{part}_y from {y.min()} to {y.max()} for {classes} classes"
        raise BadSource(where, got, f"labels from 0 to {classes - 1}")


def _from_file(path: Path, sha256: Optional[str]) -> Data:
    where = str(path)
    if not path.is_file():
        raise BadSource(where, "no such file", "an .npz file with {}".format(", ".join(ARRAY_NAMES)))
    if sha256 is not None:
        found = file_sha256(path)
        if found != sha256:
            raise BadSource(where, "a file of SHA-256 " + found, f"the one of {sha256}; copy it again")
    try:
        with np.load(str(path), allow_pickle=False) as file:
            arrays = {name: file[name] for name in (*ARRAY_NAMES, *SCALE_NAMES, GROUPS) if name in file.files}
    except (OSError, ValueError, KeyError, AttributeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        right = f"an .npz file of plain arrays, as numpy.savez writes it ({one_line(error)})"
        raise BadSource(where, "a file that cannot be read", right) from error
    return _complete_data(where, arrays)


def _from_folder(folder: Path) -> Data:
    where = str(folder)
    if (folder / "train_x.npy").is_file():
        return _complete_data(where, _load_arrays(folder))
    if (folder / "train").is_dir() and (folder / "test").is_dir():
        return _from_images(folder)
    right = f"{ARRAY_FILES} in it, or train/CLASS/ and test/CLASS/ with png or jpg images"
    raise BadSource(where, "a folder without images" if folder.is_dir() else "no such folder", right)


def _load_arrays(folder: Path) -> "Dict[str, NDArray[Any]]":
    arrays = {}
    for part in ARRAY_NAMES:
        path = folder / (part + ".npy")
        try:
            arrays[part] = np.load(str(path), allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            got = f"no readable array ({one_line(error)})"
            raise BadSource(str(path), got, "a plain array, by numpy.save") from error
    return arrays


def _complete_data(where: str, arrays: "Dict[str, NDArray[Any]]") -> Data:
    """Build the data set of a file's arrays; accept any integer labels and compute missing optional values."""
    missing = [part for part in ARRAY_NAMES if part not in arrays]
    if missing:
        raise BadSource(where, "nothing called " + ", ".join(missing), "arrays called " + ", ".join(ARRAY_NAMES))
    for part in ("train_y", "test_y"):
        if arrays[part].dtype.kind in "iu":
            arrays[part] = arrays[part].astype(np.int64, copy=False)
    for scale in SCALE_NAMES:
        if scale in arrays and arrays[scale].dtype.kind not in "iuf":
            raise BadSource(where, f"{scale} of type {arrays[scale].dtype}", "numbers, or none of it")
    train_x, train_y, test_x, test_y = (arrays[part] for part in ARRAY_NAMES)
    classes = int(arrays["classes"].ravel()[0]) if "classes" in arrays else _count_classes(train_y, test_y)
    if "mean" in arrays and "sd" in arrays:
        mean, sd = (tuple(np.ravel(arrays[scale]).tolist()) for scale in ("mean", "sd"))
    else:
        _check_part(where, "train", train_x, train_y, classes=classes)
        mean, sd = _channel_statistics(train_x)
    return check_data((train_x, train_y, test_x, test_y, mean, sd, classes, arrays.get(GROUPS)), where)


def _count_classes(*labels: "NDArray[Any]") -> int:
    return 1 + max((int(array.max()) for array in labels if array.size and array.dtype.kind in "iu"), default=0)


def _channel_statistics(images: Pixels) -> Tuple[Tuple[float, ...], Tuple[float, ...]]:
    """Return the exact mean and standard deviation per channel, without a floating-point copy of all images."""
    channels = images.shape[1]
    counts = np.zeros((channels, 256))
    for start in range(0, len(images), CHUNK):
        for channel in range(channels):
            counts[channel] += np.bincount(images[start : start + CHUNK, channel].ravel(), minlength=256)
    share, values = counts / counts.sum(1, keepdims=True), np.arange(256.0)
    mean = share @ values
    sd = np.sqrt(np.maximum(share @ values**2 - mean**2, 0.0))
    return tuple(mean.tolist()), tuple(np.where(sd > 0, sd, 1.0).tolist())


def _from_images(folder: Path) -> Data:
    classes = _list_classes(folder / "train")
    strays = sorted(set(_list_classes(folder / "test")) - set(classes))
    if strays:
        raise BadSource(str(folder / "test"), f"the class {strays[0]!r}", "only the classes below train/")
    files = {part: _list_images(folder / part, classes) for part in ("train", "test")}
    mode = _common_mode([path for part in files.values() for path, _ in part])
    (train_x, train_y), (test_x, test_y) = (_decode_images(files[part], mode) for part in ("train", "test"))
    mean, sd = _channel_statistics(train_x)
    return check_data((train_x, train_y, test_x, test_y, mean, sd, len(classes)), str(folder))


def _list_classes(folder: Path) -> List[str]:
    """Return the folders' names in sorted order; a class's label is its index."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _list_images(folder: Path, classes: List[str]) -> List[Tuple[Path, int]]:
    """Return every image below a folder with its label, in sorted order."""
    found = [
        (path, label)
        for label, name in enumerate(classes)
        if (folder / name).is_dir()
        for path in sorted((folder / name).iterdir())
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    ]
    if not found:
        raise BadSource(str(folder), "no images", "png or jpg files in one folder per class")
    return found


def _common_mode(paths: List[Path]) -> str:
    """Return the mode to decode all images with: ``L`` if all are grey, else ``RGB``; refuse different sizes."""
    first, grey = None, True
    for path in paths:
        with _open_image(path) as image:
            size, grey = image.size, grey and image.mode in {"1", "L"}
        first = first or size
        if size != first or size[0] != size[1]:
            got = f"an image of {size[0]} x {size[1]} pixels"
            wanted = f"{min(first)} x {min(first)}"
            raise BadSource(str(path), got, f"square images of one size: scale all of them to {wanted}")
    return "L" if grey else "RGB"


def _decode_images(files: List[Tuple[Path, int]], mode: str) -> Tuple[Pixels, Labels]:
    """Return images (n, channels, side, side) and labels (n,)."""
    rows = []
    for path, _ in files:
        with _open_image(path) as image:
            try:
                pixels = np.asarray(image.convert(mode), dtype=np.uint8)
            except (OSError, SyntaxError, ValueError) as error:
                raise _unreadable_error(path, error) from error
        rows.append(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))
    return np.stack(rows), np.array([label for _, label in files], dtype=np.int64)


def _open_image(path: Path) -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        right = f"Pillow (the package python3-pil), or the images as {ARRAY_FILES}"
        raise BadSource(str(path), "an image file, and no Pillow to read it", right) from error
    try:
        return Image.open(str(path))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise _unreadable_error(path, error) from error


def _unreadable_error(path: Path, error: Exception) -> BadSource:
    return BadSource(str(path), f"a file that cannot be read ({one_line(error)})", "a whole png or jpg image")


def _from_sizes(sizes: Dict[str, Any]) -> Data:
    names = ("samples", "channels", "side", "classes")
    if set(sizes) != set(names) or not all(type(sizes[name]) is int and sizes[name] > 0 for name in names):
        raise BadSource("data.synthetic", repr(sizes), "whole numbers above 0 for " + ", ".join(names))
    if 2 * sizes["samples"] * sizes["channels"] * sizes["side"] ** 2 > MOST_SYNTHETIC_BYTES or sizes["classes"] >> 32:
        raise BadSource("data.synthetic", repr(sizes), "numbers that some memory could hold")
    return make_synthetic(*(sizes[name] for name in names))
