"""Learning tasks: one contract for all, then what is particular to images, SGD and the digits."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from fedge.errors import BadInput
from fedge.experiment import DataSpec
from fedge.protocols import LearningTask
from fedge.types import TrainOptions
from fedge.worker.architectures import MODELS
from fedge.worker.optimizers import TrainingOptions
from fedge.worker.sources import Data
from fedge.worker.tasks import TrainingTask, cross_entropy
from fedge.worker.trainer import Trainer
from fedge.workloads import load_task
from fedge.workloads.image_task import ImageTask
from fedge.workloads.partitions import split_samples

OPTIONS = TrainOptions(steps=4, batch_size=8, learning_rate=0.05)


def noise_images(channels: int = 1, side: int = 8, n: int = 64) -> Data:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (n, channels, side, side), dtype=np.uint8)
    y = rng.integers(0, 10, n)
    return Data(x, y, x[:20], y[:20], mean=(127.0,) * channels, sd=(74.0,) * channels, classes=10)


def task_with(model: str) -> TrainingTask:
    return TrainingTask(model, "", MODELS[model], cross_entropy, None)


@pytest.fixture(scope="module")
def digits() -> LearningTask:
    return load_task("digits-cnn")


def same(one, other) -> bool:
    return list(one) == list(other) and all(np.array_equal(one[name], other[name]) for name in one)


class LearningTaskContract:
    """What every learning task keeps to; a subclass gives the task."""

    @pytest.fixture(scope="class")
    @classmethod
    def task(cls) -> LearningTask:
        raise NotImplementedError

    @pytest.fixture
    def share(self, task) -> np.ndarray:
        return np.arange(0, len(task.labels), 2)

    def test_a_seed_fixes_the_first_arrays(self, task):
        assert same(task.initial_arrays(3), task.initial_arrays(3))
        assert not same(task.initial_arrays(3), task.initial_arrays(4))

    def test_a_seed_fixes_every_bit_of_training_whatever_was_trained_before(self, task, share):
        start = task.initial_arrays(1)
        once = task.train(start, share, 5, OPTIONS)
        task.train(once.arrays, share, 6, OPTIONS)
        torch.rand(7)
        again = task.train(start, share, 5, OPTIONS)
        assert same(once.arrays, again.arrays)
        assert (once.loss, once.accuracy) == (again.loss, again.accuracy)

    def test_another_seed_trains_otherwise(self, task, share):
        start = task.initial_arrays(1)
        one, other = (task.train(start, share, seed, OPTIONS).arrays for seed in (5, 6))
        assert not same(one, other)

    def test_training_leaves_the_given_arrays_alone(self, task, share):
        start = task.initial_arrays(1)
        before = {name: array.copy() for name, array in start.items()}
        trained = task.train(start, share, 5, OPTIONS).arrays
        assert same(start, before)
        assert not same(start, trained)

    def test_names_shapes_and_types_stay(self, task, share):
        start = task.initial_arrays(1)
        trained = task.train(start, share, 5, OPTIONS).arrays
        assert [(n, a.shape, a.dtype) for n, a in start.items()] == [(n, a.shape, a.dtype) for n, a in trained.items()]

    def test_testing_is_repeatable_and_leaves_no_trace(self, task, share):
        start = task.initial_arrays(1)
        loss, accuracy = task.evaluate(start)
        task.train(start, share, 5, OPTIONS)
        assert task.evaluate(start) == (loss, accuracy)
        assert np.isfinite(loss)
        assert 0 <= accuracy <= 1

    def test_there_is_a_label_for_every_training_sample(self, task):
        assert task.labels.dtype == np.int64
        assert task.labels.ndim == 1
        assert len(task.labels) > 0


class TestDigitsCnn(LearningTaskContract):
    @pytest.fixture(scope="class")
    @classmethod
    def task(cls) -> LearningTask:
        return load_task("digits-cnn")


class TestDropout(LearningTaskContract):
    @pytest.fixture(scope="class")
    @classmethod
    def task(cls) -> LearningTask:
        return ImageTask(task_with("small-cnn"), noise_images())


class TestBatchNorm(LearningTaskContract):
    @pytest.fixture(scope="class")
    @classmethod
    def task(cls) -> LearningTask:
        return ImageTask(task_with("mobilenet-v3-small"), noise_images(channels=3, side=16))


def test_a_process_that_only_divides_the_samples_imports_no_torch():
    code = (
        "import sys; from fedge.workloads import load_task\n"
        "task = load_task('digits-cnn'); print(len(task.labels), task.n_classes, 'torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout == "1438 10 False\n"


def test_a_share_of_one_sample_trains_even_with_batch_norm():
    task = ImageTask(task_with("resnet18"), noise_images())
    result = task.train(task.initial_arrays(0), np.array([3]), 0, TrainOptions(1, 4, 0.01))
    assert np.isfinite(result.loss)


def test_a_task_leaves_torch_one_thread(digits):
    assert torch.get_num_threads() == 1


def test_arrays_of_another_model_are_refused_by_name(digits):
    with pytest.raises(BadInput, match=r"model arrays: got arrays called a; this model's 10: 0\.weight"):
        digits.evaluate({"a": np.zeros(3)})
    with pytest.raises(BadInput, match=r"0\.weight of shape \(2,\); shape \(16, 1, 3, 3\)"):
        digits.evaluate({**digits.initial_arrays(0), "0.weight": np.zeros(2)})


def test_arrays_are_taken_by_name_in_any_order(digits):
    start = digits.initial_arrays(0)
    assert digits.evaluate(dict(reversed(start.items()))) == digits.evaluate(start)


@pytest.mark.parametrize(("share", "steps"), [([], 3), ([1], 0)])
def test_training_on_nothing_is_refused(digits, share, steps):
    with pytest.raises(BadInput, match="at least one of each"):
        digits.train(digits.initial_arrays(0), np.array(share, dtype=np.int64), 0, TrainOptions(steps, 8, 0.1))


@pytest.mark.parametrize("learning_rate", [0.02, 0.1])
def test_the_digits_are_learnt_when_one_client_has_them_all(digits, learning_rate):
    share = np.arange(len(digits.labels))
    trained = digits.train(digits.initial_arrays(0), share, 0, TrainOptions(900, 16, learning_rate)).arrays
    assert digits.evaluate(digits.initial_arrays(0))[1] < 0.4
    assert digits.evaluate(trained)[1] >= 0.96


def test_eight_clients_with_uneven_digits_learn_them_together(digits):
    shares = split_samples(DataSpec(alpha=1.0), digits.labels, 8, np.random.default_rng(1))
    weights = np.array([len(share) for share in shares]) / len(digits.labels)
    arrays = digits.initial_arrays(1)
    for r in range(5):
        options = [TrainOptions(2 * -(-len(share) // 16), 16, 0.05) for share in shares]
        trained = [digits.train(arrays, shares[i], 8 * r + i, options[i]).arrays for i in range(8)]
        arrays = {name: sum(w * one[name] for w, one in zip(weights, trained, strict=True)) for name in arrays}
    assert digits.evaluate(arrays)[1] >= 0.92


@pytest.mark.parametrize(
    ("model", "channels", "side"), [("digits-cnn", 1, 8), ("small-cnn", 1, 28), ("resnet18", 3, 16)]
)
@pytest.mark.parametrize("mu", [0.0, 0.2])
def test_in_process_and_in_the_worker_training_gives_the_same_bits(model, channels, side, mu):
    images, share = noise_images(channels, side), np.arange(40)
    task, trainer = ImageTask(task_with(model), images), Trainer(task_with(model), images)
    start = task.initial_arrays(4)
    trained = task.train(start, share, 7, TrainOptions(4, 8, 0.05, proximal_mu=mu))
    training = trainer.start(trainer.initial_arrays(4), share, 7, TrainingOptions(4, 8, 0.05, proximal_mu=mu))
    for _ in range(4):  # the worker's steps come one by one, with other work between
        training.advance(1)
        trainer.profile(1, 4)
        torch.rand(5)
    result = training.result()

    assert same(trained.arrays, result.arrays)
    assert (trained.loss, trained.accuracy) == (result.loss, result.accuracy)
    assert task.evaluate(trained.arrays) == trainer.evaluate(result.arrays)
