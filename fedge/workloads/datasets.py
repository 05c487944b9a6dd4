"""The data sets by name: images and labels in memory, split into training and test; importing this loads no torch.

Images stay bytes until a step uses them: CIFAR-10 takes 180 MB as bytes and 740 MB as float32, and every training
process holds a copy.
"""

from __future__ import annotations

import fcntl
import importlib.util
import pickle
import socket
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedge.errors import BadInput, UnknownName
from fedge.worker.refusal import Refusal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedge.worker.sources import Data

DATA_FIELD = "data.dir"
CONNECT_TIMEOUT_S = 15.0
# Socket timeout of downloads: torchvision itself has none. Default; slow servers may need some seconds to respond.
DIGITS_TEST_SHARE = 0.2
DIGITS_SPLIT_SEED = 0
DIGITS_ALTERNATIVES = (
    "scikit-learn is not installed here, and boards never have it: take synthetic-cnn, a task of files in data.dir, "
    "or a board's own samples (data_folder)"
)


@dataclass(frozen=True, slots=True)
class DatasetSource:
    """A data set that torchvision reads.

    Attributes:
        mean: Mean of the training images per channel, for pixels from 0 to 1.
    """

    title: str
    subfolder: str
    files: tuple[str, ...]
    mean: tuple[float, ...]
    sd: tuple[float, ...]
    classes: int = 10

    def folder_below(self, root: Path) -> Path:
        """Return the folder of its files below the data folder ``root``."""
        return root / self.subfolder

    def missing_files(self, root: Path) -> tuple[str, ...]:
        """Return the names of the files that are missing."""
        return tuple(file for file in self.files if not (self.folder_below(root) / file).is_file())


_IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_CIFAR_FILES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta")

SOURCES: Mapping[str, DatasetSource] = {
    "mnist": DatasetSource("MNIST", subfolder="MNIST/raw", files=_IDX_FILES, mean=(0.1307,), sd=(0.3081,)),
    "fashionmnist": DatasetSource(
        "FashionMNIST", subfolder="FashionMNIST/raw", files=_IDX_FILES, mean=(0.2860,), sd=(0.3530,)
    ),
    "cifar10": DatasetSource(
        "CIFAR10",
        subfolder="cifar-10-batches-py",
        files=_CIFAR_FILES,
        mean=(0.4914, 0.4822, 0.4465),
        sd=(0.2470, 0.2435, 0.2616),
    ),
    "cifar100": DatasetSource(
        "CIFAR100",
        subfolder="cifar-100-python",
        files=("train", "test", "meta"),
        mean=(0.5071, 0.4865, 0.4409),
        sd=(0.2673, 0.2564, 0.2762),
        classes=100,
    ),
}
"""Data sets that torchvision fetches and reads; ``digits`` and ``synthetic`` need no files, the others are in
``federated_files.FILE_SOURCES``."""


def _reading_errors() -> tuple[type[Exception], ...]:
    """Return the errors that torchvision raises for missing or broken files and failed downloads."""
    from http.client import HTTPException

    broken = (ValueError, TypeError, AssertionError, LookupError, EOFError, pickle.UnpicklingError)
    return (OSError, RuntimeError, HTTPException, *broken)


@contextmanager
def translate_refusals() -> Iterator[None]:
    """Convert refusals of the worker's modules to ``BadInput``."""
    try:
        yield
    except Refusal as error:
        raise BadInput(error.where, error.got, error.right) from error


def load_dataset(name: str, root: Path, *, download: bool = True) -> Data:
    """Load a data set.

    Returns:
        Training and test images as bytes, their labels, and mean and standard deviation per channel.

    Raises:
        UnknownName: If the name is unknown.
        BadInput: If files are missing or broken, or scikit-learn is missing for ``digits``.
    """
    if name == "digits":
        return _load_digits()
    if name == "synthetic":
        return _load_synthetic()
    from fedge.workloads.federated_files import FILE_SOURCES

    if name in FILE_SOURCES:
        return FILE_SOURCES[name].load(name, root, DATA_FIELD)
    if name not in SOURCES:
        raise UnknownName("data set", name, ("digits", "synthetic", *SOURCES, *FILE_SOURCES))
    source = SOURCES[name]
    try:
        # Without torchvision the reader is refused.
        with translate_refusals(), _lock_data_folder(root) if download else nullcontext(False) as may_write:
            return _read_torchvision(source, root, download=may_write)
    except _reading_errors() as error:
        raise _missing_data_error(source, root, error, download=download) from error


def digits_path() -> Path | None:
    """Return the digits' file inside scikit-learn, or None if it is not at the known place."""
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    return path if path.is_file() else None


def _load_digits() -> Data:
    """Load scikit-learn's 1,797 handwritten digits (8 x 8 pixels from 0 to 16), with a fifth of each class for
    testing.
    """
    import numpy as np

    from fedge.worker.sources import Data

    table = _load_digits_table()
    images, labels = table[:, :-1].reshape(-1, 1, 8, 8), table[:, -1].astype(np.int64)
    rng = np.random.default_rng(DIGITS_SPLIT_SEED)
    test = np.zeros(len(labels), dtype=np.bool_)
    for label in range(10):
        members = rng.permutation(np.flatnonzero(labels == label))
        test[members[: round(DIGITS_TEST_SHARE * len(members))]] = True
    return Data(images[~test], labels[~test], images[test], labels[test], mean=(4.884,), sd=(6.017,), classes=10)


def _load_digits_table() -> NDArray[np.uint8]:
    """Return rows of 64 pixels and a label; read from the file because importing scikit-learn is as slow as torch."""
    import numpy as np

    path = digits_path()
    if path is not None:
        return np.loadtxt(path, delimiter=",", dtype=np.uint8)
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sklearn":
            raise
        raise BadInput(
            "workload.task", "the data set digits, which lies inside scikit-learn", DIGITS_ALTERNATIVES
        ) from error
    digits = load_digits()
    return np.column_stack([digits.data, digits.target]).astype(np.uint8)


def _load_synthetic() -> Data:
    """Generate the images of ``synthetic``, which are always the same, with classes balanced in both parts."""
    import numpy as np

    from fedge.worker.sources import Data
    from fedge.workloads import synthetic

    rng = np.random.default_rng(synthetic.SEED)
    (train_x, train_y), (test_x, test_y) = (
        synthetic.make_images(n, rng) for n in (synthetic.TRAIN_IMAGES, synthetic.TEST_IMAGES)
    )
    mean, sd = (tuple(values.tolist()) for values in (train_x.mean((0, 2, 3)), train_x.std((0, 2, 3))))
    return Data(train_x, train_y=train_y, test_x=test_x, test_y=test_y, mean=mean, sd=sd, classes=synthetic.CLASSES)


def _read_torchvision(source: DatasetSource, root: Path, *, download: bool) -> Data:
    import numpy as np

    from fedge.worker.sources import Data
    from fedge.worker.torchvision_shim import datasets

    reader = getattr(datasets, source.title)
    parts = [reader(root, train=train, download=download) for train in (True, False)]
    (train_x, train_y), (test_x, test_y) = (
        (_channels_first(np.asarray(part.data, dtype=np.uint8)), np.asarray(part.targets, dtype=np.int64))
        for part in parts
    )
    for images, labels in ((train_x, train_y), (test_x, test_y)):
        if len(images) != len(labels) or not len(labels) or not 0 <= labels.min() <= labels.max() < source.classes:
            raise ValueError(f"{len(images)} images and {len(labels)} labels do not belong together")
    mean, sd = (tuple(255 * value for value in values) for values in (source.mean, source.sd))
    return Data(train_x, train_y=train_y, test_x=test_x, test_y=test_y, mean=mean, sd=sd, classes=source.classes)


def _channels_first(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    import numpy as np

    return images[:, None] if images.ndim == 3 else np.ascontiguousarray(images.transpose(0, 3, 1, 2))


def _missing_data_error(source: DatasetSource, root: Path, error: BaseException, *, download: bool) -> BadInput:
    missing = source.missing_files(root)
    reason = textwrap.shorten(str(error) or type(error).__name__, 200, placeholder=" ...")
    folder = source.folder_below(root)
    if not missing:
        right = f"the original files {', '.join(source.files)}: delete the folder and fetch or copy them again"
        return BadInput(DATA_FIELD, f"unreadable {source.title} files in {folder} ({reason})", right)
    tried = f" (the download failed: {reason})" if download else " (downloading is switched off)"
    right = f"put {', '.join(missing)} (unpacked) into {folder}"
    return BadInput(DATA_FIELD, f"no {source.title} in {root}{tried}", right)


@contextmanager
def _lock_data_folder(root: Path) -> Iterator[bool]:
    """Lock the data folder, so that processes that start together download once; yield whether it can be written.

    A download without a response fails after ``CONNECT_TIMEOUT_S``.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock: Any = (root / ".lock").open("w", encoding="utf-8")
    except OSError:  # a read-only folder
        yield False
        return
    before_s = socket.getdefaulttimeout()
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        socket.setdefaulttimeout(CONNECT_TIMEOUT_S)
        try:
            yield True
        finally:
            socket.setdefaulttimeout(before_s)
