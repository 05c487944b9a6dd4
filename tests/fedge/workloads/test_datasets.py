"""Data sets: the embedded digits, files of the original formats made on the spot, and clear words where they lack."""

import builtins
import gzip
import hashlib
import pickle
import socket
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest

from fedge.errors import BadInput, UnknownName
from fedge.worker.torchvision_shim import datasets as torchvision_datasets
from fedge.workloads import datasets, load_task

N_TRAIN, N_TEST = 30, 20


def write_idx(path: Path, array: np.ndarray) -> None:
    """The IDX format: two zero bytes, 8 for unsigned bytes, the number of axes, each length big-endian, the bytes."""
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + array.astype(np.uint8).tobytes())


def write_mnist(root: Path, title: str = "MNIST") -> dict[str, np.ndarray]:
    rng, made = np.random.default_rng(0), {}
    for part, n in (("train", N_TRAIN), ("t10k", N_TEST)):
        made[f"{part}-images-idx3-ubyte"] = rng.integers(0, 256, (n, 28, 28))
        made[f"{part}-labels-idx1-ubyte"] = rng.permutation(n) % 10
    for name, array in made.items():
        write_idx(root / title / "raw" / name, array)
    return made


def write_cifar(root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict]:
    """Batches in CIFAR-10's pickle format; torchvision compares checksums, so it is told those of these files."""
    folder, rng, made = root / "cifar-10-batches-py", np.random.default_rng(0), {}
    folder.mkdir(parents=True)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        labels = [int(label) for label in rng.permutation(10)]
        made[name] = {"data": rng.integers(0, 256, (10, 3072)).astype(np.uint8), "labels": labels}
    made["batches.meta"] = {"label_names": [f"class {i}" for i in range(10)]}
    sums = {}
    for name, content in made.items():
        raw = pickle.dumps(content, protocol=2)
        (folder / name).write_bytes(raw)
        sums[name] = hashlib.md5(raw).hexdigest()
    reader = torchvision_datasets.CIFAR10
    monkeypatch.setattr(reader, "train_list", [[f"data_batch_{i}", sums[f"data_batch_{i}"]] for i in range(1, 6)])
    monkeypatch.setattr(reader, "test_list", [["test_batch", sums["test_batch"]]])
    monkeypatch.setattr(reader, "meta", {**reader.meta, "md5": sums["batches.meta"]})
    return made


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """Every request is refused; gives the time limits that were in force."""
    limits: list[float | None] = []

    def refuse(*args, **kwargs):
        limits.append(socket.getdefaulttimeout())
        raise URLError("network is unreachable")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    return limits


def test_the_digits_are_split_once_and_for_all_with_every_class_alike(tmp_path):
    once, again = (datasets.load_dataset("digits", tmp_path) for _ in range(2))
    assert np.array_equal(once.train_x, again.train_x)
    assert (len(once.train_y), len(once.test_y)) == (1438, 359)
    assert once.train_x.shape[1:] == (1, 8, 8)
    assert once.train_x.max() == 16
    tested = np.bincount(once.test_y) / (np.bincount(once.train_y) + np.bincount(once.test_y))
    assert np.abs(tested - 0.2).max() < 0.005
    assert once.mean[0] == pytest.approx(once.train_x.mean(), abs=0.05)
    assert once.sd[0] == pytest.approx(once.train_x.std(), abs=0.05)


def test_no_digit_is_both_for_training_and_for_testing(tmp_path):
    images = datasets.load_dataset("digits", tmp_path)
    train, test = ({x.tobytes() for x in part} for part in (images.train_x, images.test_x))
    assert not train & test


def test_the_digits_also_come_through_scikit_learns_own_reader(tmp_path, monkeypatch):
    expected = datasets.load_dataset("digits", tmp_path)
    monkeypatch.setattr(datasets, "digits_path", lambda: None)
    assert np.array_equal(datasets.load_dataset("digits", tmp_path).train_x, expected.train_x)


def test_without_scikit_learn_the_digits_are_refused_with_what_to_take_instead(tmp_path, monkeypatch):
    for name in ("sklearn", "sklearn.datasets"):
        monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(BadInput, match=r"digits, which lies inside scikit-learn.*boards never have it.*synthetic-cnn"):
        datasets.load_dataset("digits", tmp_path)


def test_another_package_that_is_missing_is_not_taken_for_scikit_learn(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "digits_path", lambda: None)
    monkeypatch.delitem(sys.modules, "sklearn.datasets", raising=False)
    monkeypatch.setattr(builtins, "__import__", _without("joblib", "sklearn.datasets", builtins.__import__))

    with pytest.raises(ModuleNotFoundError, match="joblib"):
        datasets.load_dataset("digits", tmp_path)


def _without(missing: str, within: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """The import statement on a machine where ``within`` is there and what it needs, ``missing``, is not."""

    def imported(name: str, *rest: Any, **more: Any) -> Any:
        if name == within:
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
        return real(name, *rest, **more)

    return imported


@pytest.mark.parametrize(("name", "title"), [("mnist", "MNIST"), ("fashionmnist", "FashionMNIST")])
@pytest.mark.parametrize("download", [True, False])
def test_idx_files_are_read_as_they_are(name, title, download, tmp_path, no_network):
    made = write_mnist(tmp_path, title)
    images = datasets.load_dataset(name, tmp_path, download=download)
    assert np.array_equal(images.train_x[:, 0], made["train-images-idx3-ubyte"])
    assert np.array_equal(images.test_y, made["t10k-labels-idx1-ubyte"])
    assert (images.train_x.dtype, images.train_y.dtype) == (np.uint8, np.int64)
    assert no_network == []


def test_cifar_batches_are_read_channel_by_channel(tmp_path, monkeypatch):
    made = write_cifar(tmp_path, monkeypatch)
    images = datasets.load_dataset("cifar10", tmp_path, download=False)
    assert images.train_x.shape == (50, 3, 32, 32)
    assert np.array_equal(images.train_x[10:20].reshape(10, -1), made["data_batch_2"]["data"])
    assert images.test_y.tolist() == made["test_batch"]["labels"]


@pytest.mark.parametrize("task", ["mnist-lenet5", "mnist-cnn", "cifar10-cnn"])
def test_a_task_trains_on_files_of_the_original_format(task, tmp_path, monkeypatch):
    from fedge.types import TrainOptions

    if task.startswith("mnist"):
        write_mnist(tmp_path)
    else:
        write_cifar(tmp_path, monkeypatch)
    built = load_task(task, data_dir=tmp_path, download=False)
    start = built.initial_arrays(0)
    trained = built.train(start, np.arange(30), 0, TrainOptions(40, 10, 0.02))
    assert built.evaluate(trained.arrays) != built.evaluate(start)
    assert trained.loss < 2.4


def test_absent_files_are_named_with_their_folder_when_the_download_fails(tmp_path, no_network):
    with pytest.raises(BadInput) as caught:
        datasets.load_dataset("mnist", tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"data.dir: got no MNIST in {tmp_path} (the download failed: ")
    assert "network is unreachable" in message
    assert "put train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels" in message
    assert message.endswith(f"(unpacked) into {tmp_path / 'MNIST' / 'raw'}")


def test_a_silent_network_is_given_a_time_limit_that_does_not_outlive_the_download(tmp_path, no_network):
    before_s = socket.getdefaulttimeout()
    with pytest.raises(BadInput):
        datasets.load_dataset("cifar10", tmp_path)
    assert set(no_network) == {datasets.CONNECT_TIMEOUT_S}
    assert socket.getdefaulttimeout() == before_s


def test_nothing_is_fetched_when_downloading_is_switched_off(tmp_path, no_network):
    with pytest.raises(BadInput, match=r"downloading is switched off.*put data_batch_1, .*batches\.meta"):
        datasets.load_dataset("cifar10", tmp_path / "absent", download=False)
    assert no_network == []
    assert not (tmp_path / "absent").exists()


def test_only_what_is_missing_is_asked_for(tmp_path):
    write_mnist(tmp_path)
    (tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(BadInput, match=r"put t10k-labels-idx1-ubyte \(unpacked\) into"):
        datasets.load_dataset("mnist", tmp_path, download=False)


def test_a_download_is_unpacked_and_read(tmp_path, monkeypatch):
    made = write_mnist(tmp_path / "server")
    packed = {f"{name}.gz": gzip.compress((tmp_path / "server/MNIST/raw" / name).read_bytes()) for name in made}
    sums = [(name, hashlib.md5(raw).hexdigest()) for name, raw in packed.items()]
    asked: list[str] = []

    def serve(url: str, filename, chunk_size: int = 0) -> None:
        asked.append(url)
        Path(filename).write_bytes(packed[url.rsplit("/", 1)[1]])

    monkeypatch.setattr(torchvision_datasets.MNIST, "resources", sums)
    monkeypatch.setattr("torchvision.datasets.utils._get_redirect_url", lambda url, max_hops: url)
    monkeypatch.setattr("torchvision.datasets.utils._urlretrieve", serve)
    for _ in range(2):
        images = datasets.load_dataset("mnist", tmp_path / "here")
        assert np.array_equal(images.train_x[:, 0], made["train-images-idx3-ubyte"])
    assert len(asked) == 4


@pytest.mark.parametrize("raw", [b"", b"\0\0\x08\x03\0\0\0\x05", b"not an IDX file at all, but long enough"])
def test_a_broken_file_is_one_clear_line(raw, tmp_path):
    write_mnist(tmp_path)
    (tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte").write_bytes(raw)
    with pytest.raises(BadInput, match=r"unreadable MNIST files in .*delete the folder"):
        datasets.load_dataset("mnist", tmp_path, download=False)


def test_images_and_labels_of_different_number_are_refused(tmp_path):
    write_mnist(tmp_path)
    write_idx(tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte", np.zeros(7))
    with pytest.raises(BadInput, match="30 images and 7 labels"):
        datasets.load_dataset("mnist", tmp_path, download=False)


def test_a_changed_cifar_file_is_refused(tmp_path, monkeypatch):
    write_cifar(tmp_path, monkeypatch)
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(b"cut short")
    with pytest.raises(BadInput, match="unreadable CIFAR10 files"):
        datasets.load_dataset("cifar10", tmp_path, download=False)


def test_a_folder_that_cannot_be_written_is_read_without_downloading(tmp_path, no_network):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BadInput, match="no MNIST in"):
        datasets.load_dataset("mnist", tmp_path / "file" / "data")
    assert no_network == []


def test_an_unknown_data_set_lists_the_known_ones(tmp_path):
    with pytest.raises(UnknownName, match="known: digits, synthetic, mnist, fashionmnist, cifar10"):
        datasets.load_dataset("imagenet", tmp_path)


def test_the_files_asked_for_are_those_that_torchvision_looks_for():
    for name in ("mnist", "fashionmnist"):
        reader = getattr(torchvision_datasets, datasets.SOURCES[name].title)
        assert datasets.SOURCES[name].files == tuple(file.removesuffix(".gz") for file, _ in reader.resources)
    cifar = [file for file, _ in (*torchvision_datasets.CIFAR10.train_list, *torchvision_datasets.CIFAR10.test_list)]
    assert datasets.SOURCES["cifar10"].files == (*cifar, "batches.meta")
