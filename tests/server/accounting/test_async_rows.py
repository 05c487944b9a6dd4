"""A task's row: what was done of it when it ended, and the wait before it, as far as the battery went."""

from __future__ import annotations

import dataclasses

import pytest
from contracts.reports import IDLE_W, LINK, LOW, answer
from hypothesis import given
from hypothesis import strategies as st

from fedge.devices.battery import BatteryCharge
from fedge.experiment import BatterySpec
from fedge.types import Measurement
from fedge.wire import ReplyMessage
from server.accounting.async_rows import TaskStart, book_cancelled_task, book_finished_task, compute_task_end_s

START = TaskStart(100.0, IDLE_W, waited_s=20.0, waited_j=7.0)
BATTERY = BatterySpec(capacity_wh=1.0)


def unlike() -> ReplyMessage:
    """A probe of 16 s at 4 W before 20 s at 9 W."""
    told = answer("a", 20.0)
    assert told.report is not None
    said = dataclasses.replace(told.report, probes=(Measurement(LOW, 4, 3.5, 4.0, warm_up_s=2.0),))
    return dataclasses.replace(told, report=said)


def test_a_task_under_way_at_the_end_is_billed_for_the_parts_done() -> None:
    row = book_cancelled_task(3, START, unlike(), 112.0).row

    assert (row.status, row.work_s, row.work_j, row.steps) == ("cancelled", 11.5, 46.0, 2)
    assert (row.probes, row.probe_s, row.probe_j) == (1, 11.5, 46.0)
    assert row.energy_j == pytest.approx(7.0 + 46.0 + 0.5 * IDLE_W + 0.25 * LINK.radio_j)


@given(st.floats(0.5, 38.0))
def test_a_task_costs_the_same_whether_the_run_ends_or_its_board_leaves(seconds: float) -> None:
    ended = book_cancelled_task(3, START, unlike(), START.at_s + seconds).row
    left = book_finished_task(
        3, dataclasses.replace(START, leaves_s=START.at_s + seconds), unlike(), START.at_s + seconds
    ).row

    for column in ("work_s", "work_j", "energy_j", "down_s", "up_s", "radio_j", "steps", "probes", "probe_s"):
        assert getattr(ended, column) == pytest.approx(getattr(left, column))


def test_a_task_whose_battery_runs_empty_costs_what_was_in_it() -> None:
    start = dataclasses.replace(START, charge=BatteryCharge(BATTERY, 80.0))
    booked = book_finished_task(3, start, unlike(), compute_task_end_s(start, unlike(), 60.0))

    assert booked.row.status == "failed"
    assert booked.row.energy_j == pytest.approx(7.0 + 80.0)
    assert booked.charge is not None
    assert booked.charge.left_j == 0.0


def test_a_board_without_a_report_idled_as_long_as_its_battery_lasted() -> None:
    start = dataclasses.replace(START, charge=BatteryCharge(BATTERY, 50.0))
    booked = book_finished_task(3, start, ReplyMessage("a", error="out of memory"), 160.0)

    assert (booked.row.energy_j, booked.row.wait_s, booked.row.charge) == (7.0 + 50.0, 80.0, 0.0)
