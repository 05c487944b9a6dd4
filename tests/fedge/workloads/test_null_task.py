"""Nobody learns anything from nothing."""

from __future__ import annotations

import numpy as np

from fedge.registry import load_named
from fedge.types import TrainOptions
from fedge.workloads.null_task import NULL_TASK, NullTask


def test_nothing_is_learnt_from_nothing() -> None:
    task = NullTask()
    arrays = task.initial_arrays(1)
    training = task.start(arrays, np.arange(3), 1, TrainOptions(1, 1, 0.1))
    training.advance(5)

    assert training.result().arrays is arrays
    assert task.evaluate(arrays) == (0.0, 0.0)


def test_the_tasks_name_leads_to_it() -> None:
    assert load_named("task", NULL_TASK, {}) is NullTask
