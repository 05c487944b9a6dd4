"""Every board works as much as was asked for, and as a board of its kind usually does otherwise."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedge import rounds
from fedge.experiment import DataSpec, Experiment, FleetEntry, MemorySpec, PolicySpec, WorkloadSpec, boards
from fedge.fleetsim import client
from fedge.fleetsim.boards import kind_of
from fedge.seeds import generator
from fedge.studies.fleet.nothing import Nothing
from fedge.studies.fleet.shares import as_asked, as_played_by, steps_of_boards
from fedge.types import Scale
from fedge.wire import Ask
from fedge.workloads.partitions import split


@given(st.integers(1, 60), st.integers(1, 5000), st.integers(1, 700), st.data())
def test_every_board_is_told_an_experiment_in_which_its_share_is_the_steps_asked_for(
    count: int, steps: int, batch_size: int, data: st.DataObject
) -> None:
    experiment = Experiment(
        fleet=(FleetEntry(device="nano", count=count),),
        workload=WorkloadSpec(batch_size=batch_size),
        data=DataSpec(partition="iid"),
    )
    board = boards(experiment)[data.draw(st.integers(0, count - 1))]

    told = as_played_by(experiment, board, steps)

    share = split(told.data, Nothing().labels, count, generator(1, "partition"))[board.index]
    assert rounds.steps_of(len(share), told.workload.batch_size, told.workload.local_epochs) == steps


def test_a_board_works_about_half_a_minute_at_maxn_unless_told_otherwise() -> None:
    experiment = Experiment(
        fleet=(FleetEntry(device="agx-orin-64gb", count=8), FleetEntry(device="nano", count=8)),
    )

    steps = steps_of_boards(experiment, None)

    for board in boards(experiment):
        average = kind_of(board, experiment.workload).average
        assert 19.0 < steps[board.name] * float(average.step_s.min()) < 41.0
    assert len(set(steps.values())) > 10, "boards hold different amounts of data"
    assert set(steps_of_boards(experiment, 7).values()) == {7}


def test_no_board_of_a_study_lowers_anything_or_runs_out_of_memory() -> None:
    memory = MemorySpec(widths=(1.0, 0.5), min_batch=4)
    workload = WorkloadSpec(cost="resnet50-tinyimagenet224", batch_size=8, memory=memory)
    experiment = Experiment(fleet=(FleetEntry(device="nano", memory_mb=100.0),), workload=workload)

    asked = as_asked(experiment, PolicySpec(name="maxn"), 1, 1)
    told = as_played_by(asked, boards(asked)[0], 3)
    answer, trained = client.answer(told, 0, Ask("train", 1, policy="maxn"), Nothing().initial_arrays(1))

    assert trained is not None
    assert answer.report is not None
    assert answer.report.steps == 3
    assert answer.report.memory is not None
    assert answer.report.memory.used == Scale(8)
    assert answer.report.memory.failures == 0
