"""Data sets of LEAF and AG News: small files of the original layout made on the spot, read, split and trained on."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="tasks train with torch")

from experiments.backends.local_backend import run_local
from experiments.spec.experiment_checks import check_experiment
from experiments.spec.experiment_loader import load_experiment
from fedge.client.board_session import prepare_source
from fedge.costs.layered_work import count_priced_bytes
from fedge.errors import BadInput
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import RoundRow
from fedge.worker.sources import read
from fedge.workloads import datasets, load_task
from fedge.workloads.federated_files import BLANK, LETTERS, number_words

WRITERS = {"f0000_14": 24, "f0001_41": 40, "f0002_08": 16}
TOPICS = ("striker goal match", "shares market profit", "senate vote treaty", "chip software orbit")
TEXT = "The board waits. The mode fits. The round ends, and all boards rest. " * 4
EXPERIMENT = """
name: files
rounds: 3
backend: local
fleet: [{device: nano, count: 2}, {device: agx-orin-64gb}]
workload: {task: TASK, batch_size: 8, local_epochs: 4, learning_rate: RATE}
data: {partition: PARTITION, dir: ., download: false}
"""


def write_leaf(folder: Path, users: dict[str, dict[str, list]]) -> None:
    """LEAF's layout: for either part some JSON files with users, their numbers of samples, and their samples."""
    for part, share in (("train", slice(None)), ("test", slice(0, 4))):
        for number, name in enumerate(users):
            chosen = {key: values[share] for key, values in users[name].items()}
            content = {"users": [name], "num_samples": [len(chosen["y"])], "user_data": {name: chosen}}
            (folder / part).mkdir(parents=True, exist_ok=True)
            (folder / part / f"all_data_{number}.json").write_text(json.dumps(content), encoding="utf-8")


def write_femnist(root: Path) -> None:
    """White paper with a black bar, whose row says the class."""
    users, rng = {}, np.random.default_rng(0)
    for name, count in WRITERS.items():
        labels = rng.integers(0, 4, count)
        images = np.ones((count, 28, 28))
        for image, label in zip(images, labels, strict=True):
            image[5 * label + 2 : 5 * label + 5] = 0.0
        users[name] = {"x": images.reshape(count, -1).tolist(), "y": labels.tolist()}
    write_leaf(root / "femnist" / "data", users)


def write_shakespeare(root: Path) -> None:
    starts = range(0, len(TEXT) - 81, 3)
    text = {"x": [TEXT[i : i + 80] for i in starts], "y": [TEXT[i + 80] for i in starts]}
    write_leaf(root / "shakespeare" / "data", dict.fromkeys(("HAMLET", "MACBETH", "PUCK"), text))


def write_news(root: Path) -> None:
    rng = np.random.default_rng(0)
    (root / "ag_news_csv").mkdir(parents=True)
    for part, count in (("train", 96), ("test", 32)):
        with (root / "ag_news_csv" / f"{part}.csv").open("w", newline="", encoding="utf-8") as file:
            for label in rng.integers(0, 4, count):
                words = rng.permutation([*TOPICS[label].split(), "today", "said", 'a "quote"'])
                csv.writer(file, quoting=csv.QUOTE_ALL).writerow([label + 1, words[0], " ".join(words[1:])])


WRITE = {"femnist-cnn": write_femnist, "shakespeare-lstm": write_shakespeare, "agnews-transformer": write_news}


@pytest.mark.parametrize(
    ("task", "partition", "rate", "least"),
    [
        ("femnist-cnn", "natural", 0.05, 0.9),
        ("shakespeare-lstm", "natural", 1.0, 0.3),
        ("agnews-transformer", "dirichlet", 0.05, 0.9),
    ],
)
def test_a_task_learns_from_its_files_and_costs_what_its_layers_cost(task, partition, rate, least, tmp_path):
    WRITE[task](tmp_path)
    text = EXPERIMENT.replace("TASK", task).replace("PARTITION", partition).replace("RATE", str(rate))
    (tmp_path / "exp.yaml").write_text(text, encoding="utf-8")
    experiment = load_experiment(tmp_path / "exp.yaml")
    check_experiment(experiment)
    (tmp_path / "run").mkdir()

    run_local(experiment, tmp_path / "run", lambda: None)

    rounds = read_rows(tmp_path / "run", RoundRow)
    assert rounds[-1].loss < rounds[0].loss
    assert rounds[-1].accuracy > least
    arrays = load_task(task, tmp_path).initial_arrays(1)
    sizes = sum(array.size for array in arrays.values())
    assert count_priced_bytes(experiment.fleet[0], experiment.workload) == 4 * sizes


def test_writers_are_the_natural_clients_and_pixels_are_bytes(tmp_path):
    write_femnist(tmp_path)

    data = datasets.load_dataset("femnist", tmp_path, download=False)

    assert data.groups is not None
    np.testing.assert_array_equal(np.bincount(data.groups), list(WRITERS.values()))
    assert set(np.unique(data.train_x)) == {0, 255}
    assert (data.classes, len(data.test_x)) == (62, 12)


def test_a_real_board_gets_the_writer_that_an_emulated_one_has(tmp_path):
    write_femnist(tmp_path)
    text = EXPERIMENT.replace("TASK", "femnist-cnn").replace("PARTITION", "natural").replace("RATE", "0.1")
    (tmp_path / "exp.yaml").write_text(text, encoding="utf-8")
    experiment = load_experiment(tmp_path / "exp.yaml")

    parts = [read(dict(prepare_source(experiment, i, tmp_path / "state", None))) for i in range(3)]

    assert sorted(len(part.train_y) for part in parts) == sorted(WRITERS.values())


def test_a_text_predicts_itself_shifted_by_one_character(tmp_path):
    write_shakespeare(tmp_path)

    data = datasets.load_dataset("shakespeare", tmp_path, download=False)

    np.testing.assert_array_equal(data.train_x[0, 1:], data.train_y[0, :-1])
    assert "".join(LETTERS[i] for i in data.train_y[0]) == TEXT[1:81]
    assert LETTERS[BLANK] == " "


def test_words_have_the_same_numbers_everywhere_and_short_texts_are_padded():
    assert number_words("Board, BOARD board's", 6).tolist() == [3599, 3599, 3599, 1929, 0, 0]


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        ("femnist", "femnist/data/train/a.json", '{"users": ["a"]}', "unreadable files in .*femnist/data .*KeyError"),
        ("agnews", "ag_news_csv/train.csv", "class,title\n", "unreadable files in .*ag_news_csv .*ValueError"),
        ("agnews", "ag_news_csv/train.csv", '"5","a","b"\n', "labels from 0 to 3"),
        ("agnews", "ag_news_csv/train.csv", '"1","' + 140_000 * "a" + '"\n', "unreadable .*field larger than"),
        (
            "shakespeare",
            "shakespeare/data/train/a.json",
            '{"users": ["a"], "user_data": {"a": {"x": ["to be"], "y": ["!"]}}}',
            r"samples of shape \(5,\)",
        ),
    ],
)
def test_files_of_another_form_are_one_clear_line(name, file, content, message, tmp_path):
    for part in ("train", "test"):
        path = tmp_path / file.replace("train", part)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")

    with pytest.raises(BadInput, match=message) as caught:
        datasets.load_dataset(name, tmp_path, download=False)
    assert "\n" not in str(caught.value)


def test_missing_files_are_named_with_their_folder_and_origin(tmp_path):
    with pytest.raises(BadInput, match=r"no train/\*.json and no test/\*.json in .*femnist/data; the files of LEAF"):
        datasets.load_dataset("femnist", tmp_path)
