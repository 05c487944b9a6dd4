"""Boards that wait draw what their batteries hold and no more, before a task and after their last one."""

import dataclasses

import numpy as np
import pytest
from contracts.reports import IDLE_W, LINK, LOW, answer, front
from hypothesis import given
from hypothesis import strategies as st

from fedge.devices.battery import BatteryCharge
from fedge.experiment import BatterySpec, Experiment, FleetEntry
from fedge.types import Measurement, TrainResult
from fedge.wire import ReplyMessage
from server.state.async_state import (
    AsyncRunState,
    TaskStart,
    book_cancelled_task,
    book_finished_task,
    compute_task_end_s,
    restore_async_state,
)
from server.state.checkpoint import ClientHistory, FleetState, PendingResult, RunState
from server.state.fleet_availability import build_availability

START = TaskStart(100.0, IDLE_W, waited_s=20.0, waited_j=7.0)
BATTERY = BatterySpec(capacity_wh=1.0)


def unlike() -> ReplyMessage:
    """A probe of 16 s at 4 W before 20 s at 9 W."""
    told = answer("a", 20.0)
    assert told.report is not None
    said = dataclasses.replace(told.report, probes=(Measurement(LOW, 4, 3.5, 4.0, warm_up_s=2.0),))
    return dataclasses.replace(told, report=said)


@given(st.floats(0.5, 38.0))
def test_a_task_costs_the_same_whether_the_run_ends_or_its_board_leaves(seconds):
    start = dataclasses.replace(START, charge=BatteryCharge(BATTERY, 3_000.0))
    ended = book_cancelled_task(3, start, unlike(), START.at_s + seconds).row
    left = book_finished_task(
        3, dataclasses.replace(start, leaves_s=START.at_s + seconds), unlike(), START.at_s + seconds
    ).row

    assert (ended.status, ended.end_s, ended.wait_s, ended.loss) == ("cancelled", START.at_s + seconds, 20.0, None)
    for column in ("charge", "work_s", "work_j", "energy_j", "down_s", "up_s", "radio_j", "steps", "probes", "probe_s"):
        assert getattr(ended, column) == pytest.approx(getattr(left, column))


def test_a_task_whose_battery_runs_empty_costs_what_was_in_it():
    start = dataclasses.replace(START, charge=BatteryCharge(BATTERY, 80.0))
    booked = book_finished_task(3, start, unlike(), compute_task_end_s(start, unlike(), 60.0))

    assert booked.row.status == "failed"
    assert booked.row.energy_j == pytest.approx(7.0 + 80.0)
    assert booked.charge.left_j == 0.0


def test_a_board_without_a_report_idled_as_long_as_its_battery_lasted():
    start = dataclasses.replace(START, charge=BatteryCharge(BATTERY, 50.0))
    booked = book_finished_task(3, start, ReplyMessage("a", error="out of memory"), 160.0)

    assert (booked.row.energy_j, booked.row.wait_s, booked.row.charge) == (7.0 + 50.0, 80.0, 0.0)


def run_state(left_j: float, charging_w: float, clock_s: float = 0.0) -> AsyncRunState:
    """A board with a battery and one on mains, whose rows reach up to 0 s."""
    battery = BatterySpec(capacity_wh=1.0, charging_w=charging_w)
    fleet = (FleetEntry(device="nano", name="a", battery=battery), FleetEntry(device="nano", name="b"))
    boards = ("a-1", "b-1")
    histories = {"a-1": ClientHistory(charge_j=left_j), "b-1": ClientHistory()}
    fronts = dict.fromkeys(boards, front())
    state = RunState(1, FleetState(clock_s, fronts=fronts, histories=histories), {"w": np.zeros(1)})
    return restore_async_state(build_availability(Experiment(fleet=fleet)), state)


@pytest.mark.parametrize(("left_j", "charging_w", "drawn_j"), [(72.0, 0.0, 72.0), (0.0, 0.5, 500.0), (3e3, 0.0, 2e3)])
def test_idling_at_the_end_is_billed_as_far_as_the_battery_went(left_j, charging_w, drawn_j):
    state = run_state(left_j, charging_w, 1_000.0)
    assert state.cancel_in_flight().joules == pytest.approx(drawn_j + IDLE_W * 1_000.0)
    assert not state.to_run_state({}).pending


def test_a_wait_before_a_task_is_billed_as_far_as_the_battery_went():
    start = run_state(72.0, 0.5).build_task_start("a-1", 100.0)

    assert (start.waited_s, start.waited_j) == (100.0, 72.0 + 0.5 * 100.0)
    assert start.charge.left_j == 0.0
    assert run_state(72.0, 0.5).build_task_start("b-1", 100.0).waited_j == IDLE_W * 100.0


@pytest.mark.parametrize("board", ["a-1", "b-1"])
def test_a_tasks_row_holds_the_wait_before_it(board):
    one = run_state(3_000.0, 0.0)
    one.begin_task(PendingResult(1, 50.0, 62.0, answer(board, 10.0), TrainResult({}, 0.5, 0.5)))
    assert one.finish_next_task()

    task_j = 10.0 * 9.0 + LINK.radio_j + (LINK.down_s + LINK.up_s) * IDLE_W
    assert one.rows[0].energy_j == pytest.approx(50.0 * IDLE_W + task_j)
    assert one.rows[0].wait_s == 50.0
    left_j = one.histories[board].charge_j
    assert left_j is None if board == "b-1" else left_j == pytest.approx(3_000.0 - 50.0 * IDLE_W - task_j)
