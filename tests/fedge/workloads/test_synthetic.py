"""The synthetic images: the same from the same seed, classes alike, nothing else to tell them by, and learnable."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.types import TrainOptions
from fedge.workloads import datasets, load_task, synthetic


def made(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    return synthetic.make_images(count, np.random.default_rng(seed))


def test_one_seed_gives_the_same_images_and_another_seed_gives_others():
    (x, y), (again_x, again_y), (other_x, _) = made(20, 3), made(20, 3), made(20, 4)

    assert np.array_equal(x, again_x)
    assert np.array_equal(y, again_y)
    assert not np.array_equal(x, other_x)


@given(st.integers(1, 60), st.integers(0, 2**31))
def test_classes_differ_by_one_image_at_most(count, seed):
    x, y = made(count, seed)
    counts = np.bincount(y, minlength=synthetic.CLASSES)

    assert (x.shape, x.dtype) == ((count, 3, synthetic.SIDE, synthetic.SIDE), np.uint8)
    assert len(counts) == synthetic.CLASSES
    assert counts.max() - counts.min() <= 1


def test_colours_say_nothing_of_the_class():
    x, y = made(2_000, 0)
    # Crosses cover less than squares, but two classes of one shape differ in their stripes' direction only.
    means = np.array([x[y == label].mean((0, 2, 3)) for label in range(synthetic.CLASSES)])
    error = np.array([x[y == label].mean((2, 3)).std(0) / np.sqrt((y == label).sum()) for label in range(10)])

    assert (np.abs(means[0::2] - means[1::2]) < 5 * (error[0::2] + error[1::2])).all()


def test_the_data_set_needs_no_files_and_is_balanced_in_both_parts(tmp_path):
    once, again = (datasets.load_dataset("synthetic", tmp_path, download=False) for _ in range(2))

    assert np.array_equal(once.train_x, again.train_x)
    assert (len(once.train_y), len(once.test_y)) == (synthetic.TRAIN_IMAGES, synthetic.TEST_IMAGES)
    assert not list(tmp_path.iterdir())
    for labels in (once.train_y, once.test_y):
        assert np.bincount(labels).tolist() == [len(labels) // synthetic.CLASSES] * synthetic.CLASSES
    scaled = (once.train_x - np.reshape(once.mean, (3, 1, 1))) / np.reshape(once.sd, (3, 1, 1))
    assert np.abs(scaled.mean((0, 2, 3))).max() < 1e-6
    assert np.abs(scaled.std((0, 2, 3)) - 1).max() < 1e-6


@pytest.mark.slow
def test_one_client_with_all_the_data_learns_it_but_not_at_once():
    task = load_task("synthetic-cnn")
    arrays, accuracy = task.initial_arrays(0), []
    for epoch in range(5):
        options = TrainOptions(synthetic.TRAIN_IMAGES // 16, 16, 0.02)
        arrays = task.train(arrays, np.arange(synthetic.TRAIN_IMAGES), epoch, options).arrays
        accuracy.append(task.evaluate(arrays)[1])

    assert task.evaluate(task.initial_arrays(0))[1] < 0.2
    assert accuracy[0] < 0.85 < accuracy[-1]
