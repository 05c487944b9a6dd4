"""Every board works as much as was asked for, and as a board of its kind usually does otherwise."""

from hypothesis import given
from hypothesis import strategies as st

from fedge.client import emulated
from fedge.client.round_state import count_steps
from fedge.devices.board_kinds import build_kind
from fedge.experiment import DataSpec, Experiment, FleetEntry, MemorySpec, PolicySpec, WorkloadSpec, list_boards
from fedge.seeds import make_generator
from fedge.studies.fleet.step_shares import build_board_experiment, build_run_experiment, count_board_steps
from fedge.types import TrainingScale
from fedge.wire import RequestMessage
from fedge.workloads import NullTask
from fedge.workloads.partitions import split_samples


@given(st.integers(1, 60), st.integers(1, 5000), st.integers(1, 700), st.data())
def test_every_board_is_told_an_experiment_in_which_its_share_is_the_steps_asked_for(count, steps, batch_size, data):
    experiment = Experiment(
        fleet=(FleetEntry(device="nano", count=count),),
        workload=WorkloadSpec(batch_size=batch_size),
        data=DataSpec(partition="iid"),
    )
    board = list_boards(experiment)[data.draw(st.integers(0, count - 1))]

    told = build_board_experiment(experiment, board, steps)

    share = split_samples(told.data, NullTask().labels, count, make_generator(1, "partition"))[board.index]
    assert count_steps(len(share), told.workload.batch_size, told.workload.local_epochs) == steps


def test_a_board_works_about_half_a_minute_at_maxn_unless_told_otherwise():
    experiment = Experiment(
        fleet=(FleetEntry(device="agx-orin-64gb", count=8), FleetEntry(device="nano", count=8)),
    )

    steps = count_board_steps(experiment, None)

    for board in list_boards(experiment):
        average = build_kind(board, experiment.workload).average
        assert 19.0 < steps[board.name] * float(average.step_s.min()) < 41.0
    assert len(set(steps.values())) > 10, "boards hold different amounts of data"
    assert set(count_board_steps(experiment, 7).values()) == {7}


def test_no_board_of_a_study_lowers_anything_or_runs_out_of_memory():
    memory = MemorySpec(widths=(1.0, 0.5), min_batch=4)
    workload = WorkloadSpec(cost="resnet50-tinyimagenet224", batch_size=8, memory=memory)
    experiment = Experiment(fleet=(FleetEntry(device="nano", memory_mb=100.0),), workload=workload)

    asked = build_run_experiment(experiment, PolicySpec(name="maxn"), 1, 1)
    told = build_board_experiment(asked, list_boards(asked)[0], 3)
    answer, trained = emulated.answer_request(
        told, 0, RequestMessage("train", 1, policy="maxn"), NullTask().initial_arrays(1)
    )

    assert trained is not None
    assert answer.report.steps == 3
    assert answer.report.memory.used == TrainingScale(8)
    assert answer.report.memory.failures == 0
