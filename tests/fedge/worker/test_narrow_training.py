"""The trainer at a width below one: full arrays in, leading blocks out, the same bits for the same seed."""

import importlib.util

import numpy as np
import pytest

pytest.importorskip("torch")

from fedge.worker import builtin_tasks, sources, tasks
from fedge.worker.narrow_networks import CannotNarrow
from fedge.worker.subnetwork_arrays import array_shapes, leading_slices
from fedge.worker.trainer import Trainer, TrainingOptions

DATA = sources.read(builtin_tasks.synthetic_source("synthetic-cnn", 64))


@pytest.fixture(scope="module")
def trainer():
    return Trainer(tasks.make_builtin_task("synthetic-cnn"), DATA, threads=1)


def trained(trainer, width, steps=3, seed=4):
    training = trainer.start(trainer.initial_arrays(1), None, seed, TrainingOptions(steps, 8, 0.05, width=width))
    training.advance(steps)
    return training.result()


def test_training_gives_the_leading_blocks_moved(trainer):
    start = trainer.initial_arrays(1)

    result = trained(trainer, 0.5)

    assert array_shapes(result.arrays) == trainer.narrow_shapes(0.5)
    places = leading_slices(array_shapes(start), array_shapes(result.arrays))
    assert all(not np.array_equal(value, start[name][places[name]]) for name, value in result.arrays.items())
    assert result.loss > 0


def test_the_same_seed_gives_the_same_bits_whatever_was_trained_between(trainer):
    first = trained(trainer, 0.5)
    trained(trainer, 0.25)
    trained(trainer, 1.0)
    again = trained(trainer, 0.5)
    assert all(np.array_equal(value, again.arrays[name]) for name, value in first.arrays.items())


def test_a_full_training_is_not_touched_by_narrow_ones():
    fresh, used = (Trainer(tasks.make_builtin_task("synthetic-cnn"), DATA, threads=1) for _ in range(2))
    trained(used, 0.25)
    want, got = trained(fresh, 1.0), trained(used, 1.0)
    assert all(np.array_equal(value, got.arrays[name]) for name, value in want.arrays.items())


def test_a_narrow_training_ends_when_another_begins(trainer):
    training = trainer.start(trainer.initial_arrays(1), None, 1, TrainingOptions(3, 8, 0.05, width=0.5))
    trained(trainer, 1.0)
    with pytest.raises(Exception, match="ended by another"):
        training.advance(1)


def test_a_network_that_cannot_be_narrow_is_refused():
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not here")
    trainer = Trainer(
        tasks.make_builtin_task("vit-b16-cifar10"),
        sources.read({"synthetic": {"samples": 4, "channels": 3, "side": 32, "classes": 2}}),
        threads=1,
    )
    with pytest.raises(CannotNarrow, match="VisionTransformer"):
        trainer.narrow_shapes(0.5)
