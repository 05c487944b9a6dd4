"""Columns of clients: deviations as large as those of emulated boards, offsets that are learnt, idle batteries."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.client import emulated
from fedge.client.round_state import count_steps
from fedge.decisions.selection.oort import select_oort
from fedge.decisions.selection.selector_options import complete_options
from fedge.devices.board_kinds import build_kind
from fedge.devices.mode_surface import BOARD_DEVIATION
from fedge.experiment import (
    AvailabilitySpec,
    BatterySpec,
    DataSpec,
    Experiment,
    ExplorationSpec,
    FleetEntry,
    LinkSpec,
    MemorySpec,
    PolicySpec,
    WorkloadSpec,
    list_boards,
)
from fedge.seeds import make_generator
from fedge.studies.fleet import client_columns
from fedge.studies.fleet.client_columns import (
    build_board_experiment,
    build_fleet_columns,
    build_run_experiment,
    count_board_steps,
    select_oort_rows,
    start_state,
)
from fedge.studies.fleet.column_study import simulate_round
from fedge.types import ClientStatus, SelectionContext, TrainingScale
from fedge.wire import RequestMessage
from fedge.workloads import NullTask
from fedge.workloads.partitions import split_samples

NANO = FleetEntry(name="nano", device="nano", count=40)


def experiment(*entries: FleetEntry) -> Experiment:
    return Experiment(fleet=entries, exploration=ExplorationSpec(modes=6), rounds=5)


def test_clients_deviate_from_their_kind_as_boards_do():
    columns = build_fleet_columns(experiment(NANO.model_copy(update={"count": 500})), None)

    for deviation in (columns.log_time, columns.log_power):
        low, high = np.log1p(BOARD_DEVIATION)
        assert low <= np.abs(deviation).min() < 0.015
        assert 0.07 < np.abs(deviation).max() <= high
        assert abs(np.mean(deviation > 0) - 0.5) < 0.1
    work_s = columns.steps * columns.kinds[0].surface.step_s[columns.kinds[0].top]
    assert 19.5 < work_s.min() < 22.0
    assert 38.0 < work_s.max() < 40.5


def test_columns_move_the_same_model_over_the_same_links_as_the_clients_of_a_run():
    vit = FleetEntry(name="vit", device="nano", cost="vit-b16-cifar10", link=LinkSpec(down_mbps=10, up_mbps=5))
    asked = experiment(NANO.model_copy(update={"count": 1}), vit)
    columns = build_fleet_columns(asked, None)

    links = [emulated.load_client(asked, i).setup.transfer(RequestMessage("front"), None) for i in (0, 1)]
    assert columns.down_s.tolist() == [link.down_s for link in links]
    assert columns.up_s.tolist() == [link.up_s for link in links]
    assert (columns.radio_w * columns.link_s).tolist() == pytest.approx([link.radio_j for link in links])
    assert columns.up_s.min() > 18.0


def test_entries_of_one_board_and_workload_share_a_kind():
    other = FleetEntry(name="others", device="nano", battery=BatterySpec(capacity_wh=10))
    columns = build_fleet_columns(experiment(NANO, other, FleetEntry(device="tx2")), 30)

    assert len(columns.kinds) == 2
    assert columns.kind.tolist() == [0] * 41 + [1]
    assert np.isinf(columns.capacity_j[[0, 2]]).all()
    assert columns.capacity_j[1] == 36_000.0
    assert (columns.steps == 30).all()


def test_a_client_learns_its_own_offsets():
    asked = experiment(NANO)
    columns = build_fleet_columns(asked, None)
    state = start_state(columns, 1)
    for number in range(1, 6):
        state, _ = simulate_round(columns, asked, state, number)
    own = state.record.estimate_offsets()

    for learnt, true in ((own.time, columns.log_time), (own.power, columns.log_power)):
        off = (learnt - learnt.mean()) - (true - true.mean())
        assert np.sqrt(np.mean(off**2)) < 0.2 * true.std()
    assert (own.time_sd < 0.006).all()


def test_pooled_measurements_are_freed_of_their_clients_offsets():
    asked = experiment(NANO)
    columns = build_fleet_columns(asked, None)
    state = start_state(columns, 1)
    for number in range(1, 6):
        state, _ = simulate_round(columns, asked, state, number)
    kind, known = columns.kinds[0], state.knowledge[0]
    true_s = kind.surface.step_s[kind.candidates[known.rows]]
    apart = np.log(known.predictions.step_s[known.rows] / true_s)

    assert len(known.rows) == 6
    assert apart.std() < 0.012, "eight clients that deviate by 5 % each would leave 1.8 %"


def test_idle_boards_draw_from_their_batteries_and_charge_them():
    battery = BatterySpec(capacity_wh=1.0, charge=0.5, charging_w=0.5)
    columns = build_fleet_columns(experiment(NANO.model_copy(update={"battery": battery, "count": 3})), 30)
    state = start_state(columns, 1)
    after = client_columns.drain_idle(columns, state, np.array([True, False, True]), 100.0)
    drawn_j = 100.0 * (columns.waiting_w(np.arange(3)) - 0.5)

    assert (state.left_j - after.left_j).tolist() == pytest.approx([drawn_j[0], 0.0, drawn_j[2]])
    empty = client_columns.drain_idle(columns, state, np.ones(3, dtype=np.bool_), 1e6)
    assert empty.left_j.tolist() == [0.0] * 3


def test_availability_alternates_with_its_mean_lengths():
    entry = NANO.model_copy(update={"count": 2000, "availability": AvailabilitySpec(on_s=300.0, off_s=100.0)})
    columns = build_fleet_columns(experiment(entry), 30)
    state, rng = start_state(columns, 1), np.random.default_rng(1)
    present = [state.on.mean()]
    for until_s in (50.0, 400.0, 5000.0):
        state = client_columns.advance_clock(columns, state, until_s, rng)
        present.append(state.on.mean())
        assert (state.switch_s > until_s).all()

    assert present == pytest.approx([0.75] * 4, abs=0.04)


CLIENTS, COUNT, ROUND, DRAWS = 12, 4, 30, 1500


def test_oort_takes_each_client_as_often_as_the_selector_of_a_run():
    seconds = np.linspace(10.0, 40.0, CLIENTS)
    last_round = np.array([0, 0, 0, *range(20, 29)])
    clients = [
        ClientStatus(f"b{i:02}", samples=10, loss=0.0 if last_round[i] else None, busy_s=float(seconds[i]),
                     last_round=int(last_round[i]) or None)
        for i in range(CLIENTS)
    ]  # fmt: skip
    rng, other = np.random.default_rng(1), np.random.default_rng(2)
    options, counts = complete_options("oort", {}), np.zeros((2, CLIENTS))
    for _ in range(DRAWS):
        rows = select_oort_rows(seconds, last_round, rng, number=ROUND, count=COUNT, options=options)
        assert len(set(rows.tolist())) == COUNT
        counts[0][rows] += 1
        chosen = select_oort(clients, SelectionContext(ROUND, COUNT), other).boards
        counts[1][[int(name[1:]) for name in chosen]] += 1

    assert np.abs(counts[0] - counts[1]).max() < 0.08 * DRAWS


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
