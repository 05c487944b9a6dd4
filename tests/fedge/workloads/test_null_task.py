"""The task ``none`` has samples to share out and nothing to learn."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedge.errors import UnknownName
from fedge.experiment import DataSpec, Experiment, FleetEntry, WorkloadSpec
from fedge.types import TrainOptions
from fedge.workloads import check_task, load_experiment_task
from fedge.workloads.null_task import NULL_SAMPLES, NULL_TASK, NullTask


def test_nothing_is_learnt_from_nothing() -> None:
    task = NullTask()
    arrays = task.initial_arrays(1)
    training = task.start(arrays, np.arange(3), 1, TrainOptions(1, 1, 0.1))
    training.advance(5)

    assert training.result().arrays is arrays
    assert math.isnan(training.result().loss)
    assert task.evaluate(arrays) is None


@pytest.mark.parametrize(("samples", "count"), [(None, NULL_SAMPLES), (7, 7)])
def test_an_experiment_names_it_and_its_samples(samples: int | None, count: int) -> None:
    experiment = Experiment(
        fleet=(FleetEntry(device="nano"),), workload=WorkloadSpec(task=NULL_TASK), data=DataSpec(samples=samples)
    )

    assert len(load_experiment_task(experiment).labels) == count


def test_it_is_known_by_name() -> None:
    check_task(NULL_TASK)
    with pytest.raises(UnknownName, match=NULL_TASK):
        check_task("nonne")
