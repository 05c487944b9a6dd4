"""Boards that wait draw what their batteries hold and no more, before a task and after their last one."""

from __future__ import annotations

import numpy as np
import pytest
from contracts.reports import IDLE_W, LINK, answer, front

from fedge.experiment import BatterySpec, Experiment, FleetEntry
from fedge.types import TrainResult
from server.state.async_state import AsyncRunState, restore_async_state
from server.state.checkpoint import ClientHistory, FleetState, PendingResult, RunState
from server.state.fleet_availability import build_availability


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
def test_idling_at_the_end_is_billed_as_far_as_the_battery_went(
    left_j: float, charging_w: float, drawn_j: float
) -> None:
    assert run_state(left_j, charging_w, 1_000.0).cancel_in_flight() == pytest.approx(drawn_j + IDLE_W * 1_000.0)


def test_a_wait_before_a_task_is_billed_as_far_as_the_battery_went() -> None:
    start = run_state(72.0, 0.5).build_task_start("a-1", 100.0)

    assert (start.waited_s, start.waited_j) == (100.0, 72.0 + 0.5 * 100.0)
    assert start.charge is not None
    assert start.charge.left_j == 0.0
    assert run_state(72.0, 0.5).build_task_start("b-1", 100.0).waited_j == IDLE_W * 100.0


@pytest.mark.parametrize("board", ["a-1", "b-1"])
def test_a_tasks_row_holds_the_wait_before_it(board: str) -> None:
    one = run_state(3_000.0, 0.0)
    one.begin_task(PendingResult(1, 50.0, 62.0, answer(board, 10.0), TrainResult({}, 0.5, 0.5)))
    assert one.finish_next_task()

    task_j = 10.0 * 9.0 + LINK.radio_j + (LINK.down_s + LINK.up_s) * IDLE_W
    assert one.rows[0].energy_j == pytest.approx(50.0 * IDLE_W + task_j)
    assert one.rows[0].wait_s == 50.0
    left_j = one.histories[board].charge_j
    assert left_j is None if board == "b-1" else left_j == pytest.approx(3_000.0 - 50.0 * IDLE_W - task_j)
