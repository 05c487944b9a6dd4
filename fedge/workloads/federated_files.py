"""Data sets with natural clients or texts, from their original files: LEAF's FEMNIST and Shakespeare, AG News.

References:
    Caldas et al., "LEAF: A Benchmark for Federated Settings", arXiv:1812.01097.
    Zhang et al., "Character-level Convolutional Networks for Text Classification", NeurIPS 2015.
"""

from __future__ import annotations

import csv
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedge.errors import BadInput, describe_error
from fedge.json_reader import read_json
from fedge.worker.builtin_tasks import SHAPES
from fedge.worker.refusal import Refusal
from fedge.worker.task_shape import VOCABULARY

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedge.worker.sources import Data

LETTERS = "\n !\"&'(),-.0123456789:;>?" + "ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""Characters of LEAF's Shakespeare in its order; their places are the labels. Any other counts as a blank."""
BLANK = LETTERS.index(" ")
WORD = re.compile(r"[a-z0-9]+")
PIXEL_SCALE = 255.0
"""LEAF's pixels are fractions, 1 for white paper."""
Pair = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class FileSource:
    """A data set whose files are read here.

    Attributes:
        files: Its files, as patterns below the folder: for training, then for testing.
    """

    folder: str
    files: tuple[str, str]
    origin: str
    read: Callable[[list[Path], list[Path]], Data]

    def folder_below(self, root: Path) -> Path:
        """Return the folder of its files below the data folder ``root``."""
        return root / self.folder

    def missing_files(self, root: Path) -> tuple[str, ...]:
        """Return the patterns that no file matches."""
        return tuple(pattern for pattern in self.files if not any(self.folder_below(root).glob(pattern)))

    def load(self, name: str, root: Path, where: str) -> Data:
        """Load the data set called ``name``; an error names the field ``where``.

        Raises:
            BadInput: Files are missing or not of this form.
        """
        from fedge.worker.sources import check_data
        from fedge.worker.tasks import data_shape

        folder = self.folder_below(root)
        if missing := self.missing_files(root):
            raise BadInput(where, f"no {' and no '.join(missing)} in {folder}", f"the files of {self.origin} there")
        train, test = (sorted(folder.glob(pattern)) for pattern in self.files)
        try:
            data = check_data(self.read(train, test), str(folder))
        except (Refusal, OSError, ValueError, KeyError, TypeError, IndexError, csv.Error) as error:
            reason = describe_error(error)
            raise BadInput(where, f"unreadable files in {folder} ({reason})", f"the files of {self.origin}") from error
        if data_shape(data) != SHAPES[name]:
            got = f"samples of shape {data_shape(data).input} in {folder}"
            raise BadInput(where, got, f"{SHAPES[name].input}, as {self.origin} has them")
        return data


def _iter_users(paths: list[Path]) -> Iterator[tuple[str, Mapping[str, list[Any]]]]:
    """Yield every user of LEAF's JSON files with their samples ``x`` and labels ``y``."""
    for path in paths:
        content = read_json(path, "LEAF's JSON")
        for user in content["users"]:
            yield user, content["user_data"][user]


def _join_users(paths: list[Path], convert: Callable[[Mapping[str, list[Any]]], Pair]) -> tuple[Any, Any, Any]:
    """Return samples, labels and the number of each sample's user; ``convert`` makes a user's arrays."""
    import numpy as np

    users = [convert(data) for _, data in _iter_users(paths) if data["y"]]
    sizes = [len(y) for _, y in users]
    x, y = (np.concatenate(part) for part in zip(*users, strict=True))
    return x, y, np.repeat(np.arange(len(users)), sizes)


def _images_of(user: Mapping[str, list[Any]]) -> Pair:
    import numpy as np

    _, side, _, _ = SHAPES["femnist"]
    pixels = np.rint(PIXEL_SCALE * np.asarray(user["x"], dtype=np.float64)).astype(np.uint8)
    return pixels.reshape(-1, 1, side, side), np.asarray(user["y"], dtype=np.int64)


def _texts_of(user: Mapping[str, list[Any]]) -> Pair:
    """Return texts as numbers, and as labels each next character, the last of which is LEAF's own label."""
    import numpy as np

    places = {letter: place for place, letter in enumerate(LETTERS)}
    whole = [text + following for text, following in zip(user["x"], user["y"], strict=True)]
    numbers = np.array([[places.get(letter, BLANK) for letter in text] for text in whole], dtype=np.int64)
    return numbers[:, :-1], numbers[:, 1:]


def _read_femnist(train: list[Path], test: list[Path]) -> Data:
    from fedge.worker.sources import Data

    train_x, train_y, groups = _join_users(train, _images_of)
    test_x, test_y, _ = _join_users(test, _images_of)
    mean, sd = (float(value) for value in (train_x.mean(), train_x.std()))
    classes = SHAPES["femnist"].classes
    return Data(train_x, train_y, test_x, test_y, mean=(mean,), sd=(sd or 1.0,), classes=classes, groups=groups)


def _read_shakespeare(train: list[Path], test: list[Path]) -> Data:
    from fedge.worker.sources import free_data

    train_x, train_y, groups = _join_users(train, _texts_of)
    test_x, test_y, _ = _join_users(test, _texts_of)
    return free_data(train_x, train_y, test_x, test_y, classes=len(LETTERS), groups=groups)


def number_words(text: str, length: int) -> NDArray[np.int64]:
    """Return the numbers of a text's first words, shape (length,), with zeros where it is shorter."""
    import numpy as np

    words = WORD.findall(text.lower())[:length]
    numbers = [1 + zlib.crc32(word.encode()) % (VOCABULARY - 1) for word in words]
    return np.array(numbers + [0] * (length - len(numbers)), dtype=np.int64)


def _read_news(train: list[Path], test: list[Path]) -> Data:
    """Read rows of class (from 1), title and description."""
    import numpy as np

    from fedge.worker.sources import free_data

    (length,), classes = SHAPES["agnews"].sample, SHAPES["agnews"].classes

    def load(path: Path) -> Pair:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [(int(row[0]) - 1, " ".join(row[1:])) for row in csv.reader(file) if row]
        labels = np.array([label for label, _ in rows], dtype=np.int64)
        return np.stack([number_words(text, length) for _, text in rows]), labels

    return free_data(*load(train[0]), *load(test[0]), classes=classes)


FILE_SOURCES: Mapping[str, FileSource] = {
    "femnist": FileSource(
        "femnist/data", ("train/*.json", "test/*.json"), "LEAF, whose data folder data.dir may be", _read_femnist
    ),
    "shakespeare": FileSource(
        "shakespeare/data",
        ("train/*.json", "test/*.json"),
        "LEAF, whose data folder data.dir may be",
        _read_shakespeare,
    ),
    "agnews": FileSource("ag_news_csv", ("train.csv", "test.csv"), "AG's news as CSV", _read_news),
}
"""Data sets that nobody downloads here; torchvision's are in ``datasets.SOURCES``."""
