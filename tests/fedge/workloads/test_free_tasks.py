"""Tasks of any shape: text and tables, with an optimiser, a metric and natural groups of their own."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="tasks train with torch")

from contracts.free_tasks import CHARACTERS, TABLE
from hypothesis import given
from hypothesis import strategies as st

from experiments.backends.local_backend import run_local
from experiments.spec.experiment_checks import check_experiment
from experiments.spec.experiment_loader import load_experiment
from fedge.errors import BadInput
from fedge.experiment import DataSpec
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, RoundRow
from fedge.types import TrainOptions
from fedge.worker.refusal import Refusal
from fedge.worker.sources import check_data, free_data, read, write_file
from fedge.workloads import load_task
from fedge.workloads.image_task import ImageTask
from fedge.workloads.partitions import split_samples

EXPERIMENT = """
name: free
rounds: 4
backend: local
fleet: [{device: nano, count: 2}, {device: agx-orin-64gb}]
workload: {task: task.py, batch_size: 8, local_epochs: 1, learning_rate: 0.02}
"""


def write_task(folder: Path, text: str) -> Path:
    (folder / "task.py").write_text(text, encoding="utf-8")
    (folder / "exp.yaml").write_text(EXPERIMENT, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("text", "partition", "least"), [(CHARACTERS, "natural", 0.5), (TABLE, "iid", 0.3)], ids=["text", "table"]
)
def test_an_own_task_runs_from_its_file_to_rows(tmp_path, text, partition, least):
    write_task(tmp_path, text)
    experiment = load_experiment(tmp_path / "exp.yaml", [f"data.partition={partition}"])
    check_experiment(experiment)
    (tmp_path / "run").mkdir()

    run_local(experiment, tmp_path / "run", lambda: None)

    rounds = read_rows(tmp_path / "run", RoundRow)
    assert rounds[-1].loss < rounds[0].loss
    assert rounds[-1].accuracy > least
    assert all(row.status == "done" for row in read_rows(tmp_path / "run", ClientRow))


def test_a_missing_folder_is_refused_also_where_the_task_s_own_data_ignores_it(tmp_path):
    file = str(write_task(tmp_path, TABLE) / "task.py")
    load_task(file, data_dir=tmp_path)
    with pytest.raises(BadInput, match=r"data\.dir: got '.*nothing', which is not there and which data\(source\) in"):
        load_task(file, data_dir=tmp_path / "nothing")


def test_the_optimiser_of_the_file_is_used_and_a_seed_fixes_every_bit(tmp_path):
    folder = write_task(tmp_path, CHARACTERS)

    def train(text: str) -> dict[str, np.ndarray]:
        (folder / "task.py").write_text(text, encoding="utf-8")
        task = load_task(str(folder / "task.py"))
        assert isinstance(task, ImageTask)
        start = task.initial_arrays(1)
        return dict(task.train(start, np.arange(64), 2, TrainOptions(5, 8, 0.01, 0.9)).arrays)

    adam, again, sgd = train(CHARACTERS), train(CHARACTERS), train(CHARACTERS.replace("def optimizer", "def _unused"))

    for name, values in adam.items():
        np.testing.assert_array_equal(values, again[name])
    assert any(not np.array_equal(values, sgd[name]) for name, values in adam.items())


def test_a_proximal_term_pulls_towards_the_start_with_any_optimiser(tmp_path):
    task = load_task(str(write_task(tmp_path, CHARACTERS) / "task.py"))
    assert isinstance(task, ImageTask)
    start = task.initial_arrays(1)

    def distance(mu: float) -> float:
        trained = task.train(start, np.arange(64), 2, TrainOptions(20, 8, 0.01, 0.9, proximal_mu=mu)).arrays
        return sum(float(np.square(trained[name] - start[name]).sum()) for name in start)

    assert distance(100.0) < distance(0.0)


def test_free_samples_survive_a_file(tmp_path):
    rng = np.random.default_rng(0)
    data = free_data(
        *(rng.normal(size=size).astype(np.float32) for size in ((6, 3, 2), (6, 4), (2, 3, 2), (2, 4))), classes=4
    )
    write_file(tmp_path / "free.npz", data)

    back = read({"file": str(tmp_path / "free.npz")})

    assert not back.is_scaled
    np.testing.assert_array_equal(back.train_x, data.train_x)
    np.testing.assert_array_equal(back.test_y, data.test_y)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_y": np.zeros(3, dtype=np.int64)}, "6 samples train_x with 3 train_y"),
        ({"train_y": np.arange(6)}, "labels from 0 to 3"),
        ({"test_x": np.zeros((2, 4), dtype=np.float32)}, "one shape for both"),
        ({"train_x": np.array(["a"] * 6)}, "a numpy array of float32 or int64 or uint8 or bool"),
        ({"train_y": np.zeros(6, dtype=np.int32)}, "train_y int32; .* int64 or float32"),
        ({"groups": np.zeros(6)}, "groups float64 of shape"),
        ({"groups": np.zeros(5, dtype=np.int64)}, "one group per training sample"),
    ],
)
def test_inconsistent_samples_are_refused(changes, message):
    samples, labels = np.zeros((8, 3), dtype=np.float32), np.zeros(8, dtype=np.int64)
    right = free_data(samples[:6], labels[:6], samples[6:], labels[6:], classes=4)

    with pytest.raises(Refusal, match=message):
        check_data(right._replace(**changes), "data")


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12), clients=st.integers(1, 12), seed=st.integers(0, 9))
def test_natural_groups_stay_whole_and_every_client_has_one(sizes, clients, seed):
    labels = np.repeat(np.arange(len(sizes)) * 7, sizes)
    settings, rng = DataSpec(partition="natural"), np.random.default_rng(seed)
    if clients > len(sizes):
        with pytest.raises(BadInput, match=r"groups for|clients"):
            split_samples(settings, labels, clients, rng)
        return

    parts = split_samples(settings, labels, clients, rng)

    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    assert all(len(part) for part in parts)
    assert sum(len(np.unique(labels[part])) for part in parts) == len(sizes)


def test_natural_groups_need_a_task_that_names_them(tmp_path):
    write_task(tmp_path, TABLE)

    with pytest.raises(BadInput, match="names no groups"):
        check_experiment(load_experiment(tmp_path / "exp.yaml", ["data.partition=natural"]))


def test_a_network_of_no_images_is_not_narrowed(tmp_path):
    task = load_task(str(write_task(tmp_path, TABLE) / "task.py"))
    assert isinstance(task, ImageTask)

    with pytest.raises(BadInput, match="a network for images"):
        task.narrow_shapes(0.5)
