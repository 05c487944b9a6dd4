"""A board's trace of a round has the joules of its row, whatever became of it; a senseless one spoils nothing."""

import dataclasses
import math

import pytest
from contracts.reports import IDLE_W, LINK, answer
from contracts.traced_rounds import hold_the_rows_joules, traced_answer, works
from hypothesis import given
from hypothesis import strategies as st

from fedge.devices.battery import BatteryCharge
from fedge.experiment import BatterySpec, LateReplySpec
from fedge.telemetry.client_rows import RoundStart
from fedge.telemetry.settlement import RoundSettlement, settle_round
from fedge.telemetry.store_records import EventRow
from fedge.telemetry.trace_operations import join_traces, make_constant_trace
from fedge.types import EMPTY_TRACE, Trace
from fedge.wire import ReplyMessage
from server.state.async_state import TaskStart, book_cancelled_task, book_finished_task, compute_task_end_s
from server.state.client_traces import TRACE_EVENT, BookedTraces, book_trace, book_traces, strip_trace

BOARDS = ("a", "b", "c")
ACTIONS = ("accept", "drop", "discount", "partial")
seconds = st.none() | st.floats(0.1, 300.0)
charges = st.none() | st.builds(
    BatteryCharge,
    st.builds(BatterySpec, capacity_wh=st.just(2.0), charging_w=st.sampled_from([0.0, 3.0])),
    st.floats(0, 7200),
)


@st.composite
def settled_rounds(draw: st.DrawFn) -> tuple[RoundSettlement, dict[str, ReplyMessage]]:
    """Rounds of three boards in which everything may happen."""
    start_s = draw(st.sampled_from([0.0, 100.0, 3e6]))
    answers = {
        board: traced_answer(board, draw(works))
        if draw(st.integers(0, 9))
        else ReplyMessage(board, error="out of memory")
        for board in BOARDS
    }
    leaves = {board: start_s + at_s for board in BOARDS if (at_s := draw(seconds)) is not None and draw(st.booleans())}
    batteries = {board: charge for board in BOARDS if (charge := draw(charges)) is not None and draw(st.booleans())}
    wanted = draw(st.sampled_from([None, None, 1, 2]))
    opening = RoundStart(2, start_s, draw(seconds), dict.fromkeys(BOARDS, IDLE_W), wanted, leaves, batteries)
    return settle_round(opening, answers, LateReplySpec(action=draw(st.sampled_from(ACTIONS)), grace=0.0)), answers


@given(settled_rounds())
def test_whatever_becomes_of_a_board_its_trace_has_the_joules_of_its_row(played):
    settled, answers = played
    told = book_traces(settled.clients, answers)

    hold_the_rows_joules(settled.clients, told.traces)
    assert told.events == ()


@given(settled_rounds())
def test_without_a_trace_the_row_alone_is_told_with_the_same_joules(played):
    settled, answers = played
    told = book_traces(settled.clients, {board: strip_trace(said) for board, said in answers.items()})

    hold_the_rows_joules(settled.clients, told.traces)
    assert told.events == ()
    assert all(len(each.trace) <= 4 for each in told.traces)


@given(works, st.floats(0.0, 1.2), charges, st.sampled_from([math.inf, 3.0, 40.0]), st.sampled_from([0.0, 20.0]))
def test_a_task_of_an_asynchronous_run_has_its_joules_the_wait_before_it_among_them(
    work, share, charge, away_s, waited_s
):
    start = TaskStart(1e5, IDLE_W, 1e5 + away_s, charge, waited_s, waited_s * 1.5)
    for said in (traced_answer("a", work), ReplyMessage("a", error="out of memory")):
        end_s = compute_task_end_s(start, said, 60.0)
        booked = book_finished_task(3, start, said, end_s)
        cut = book_cancelled_task(3, start, said, start.at_s + max(0.01, min(1.0, share)) * (end_s - start.at_s))

        for each in (booked, cut):
            if each.row.energy_j > 0:
                hold_the_rows_joules([each.row], each.traces)
                assert each.traces[0].trace.start_s[0] == pytest.approx(1e5 - waited_s)


def one(said: ReplyMessage, deadline_s: float | None = None) -> tuple[RoundSettlement, BookedTraces]:
    settled = settle_round(
        RoundStart(1, 100.0, deadline_s, {"a": IDLE_W}), {"a": said}, LateReplySpec(action="drop", grace=0.0)
    )
    return settled, book_trace(settled.clients[0], said)


def with_trace(trace: Trace) -> ReplyMessage:
    """10 s at 9 W, fetched in 0.5 s and sent in 1.5 s, and what the board says that its sensors saw."""
    return dataclasses.replace(answer("a", 10.0), trace=trace)


LINK_W = IDLE_W + LINK.radio_j / (LINK.down_s + LINK.up_s)
WHOLE = join_traces(
    [make_constant_trace(0.0, 0.5, LINK_W), make_constant_trace(0.5, 10.0, 9.0), make_constant_trace(10.5, 1.5, LINK_W)]
)


@pytest.mark.parametrize(
    ("trace", "why"),
    [
        (dataclasses.replace(WHOLE, power_w=(9.0, math.nan, 9.0)), "not finite"),
        (dataclasses.replace(WHOLE, power_w=(9.0, 1e12, 9.0)), "power_w of 1e"),
        (dataclasses.replace(WHOLE, power_w=(9.0,)), "as many"),
        (dataclasses.replace(WHOLE, start_s=(5.0, 2.0, 1.0)), "before it ends"),
        (join_traces(make_constant_trace(k / 500, 1 / 500, 9.0) for k in range(4001)), "4001 stretches; at most 4000"),
    ],
)
def test_a_trace_that_makes_no_sense_is_dropped_with_an_event_and_the_row_stays(trace, why):
    settled, told = one(with_trace(trace))
    (event,) = told.events

    hold_the_rows_joules(settled.clients, told.traces)
    assert (event.kind, event.board, event.at_s) == (TRACE_EVENT, "a", settled.clients[0].end_s)
    assert "dropped" in event.message
    assert why in event.message


def test_a_trace_that_goes_on_after_its_round_is_cut_there():
    too_long = join_traces([make_constant_trace(-5.0, 5.0, 9.0), WHOLE, make_constant_trace(12.0, 600.0, 9.0)])
    settled, told = one(with_trace(too_long))
    (event,) = told.events

    hold_the_rows_joules(settled.clients, told.traces)
    assert event.message == "its trace goes from -5.0 to 612.0 s of a round that took it 12.0 s, and was cut"


def test_a_trace_of_other_joules_than_the_report_stays_and_an_event_says_both():
    seen = join_traces(
        [
            make_constant_trace(0.0, 0.5, LINK_W),
            make_constant_trace(0.5, 10.0, 8.0),
            make_constant_trace(10.5, 1.5, LINK_W),
        ]
    )
    settled, told = one(with_trace(seen))

    assert settled.clients[0].work_j == pytest.approx(90.0)
    assert told.traces[0].trace.power_w == seen.power_w
    assert told.events == (
        EventRow(settled.end_s, 1, "a", TRACE_EVENT, "its sensors saw 80.0 J of work; its row books 90.0 J"),
    )
    almost = dataclasses.replace(seen, power_w=(LINK_W, 8.9, LINK_W))
    assert one(with_trace(almost))[1].events == ()


def test_a_gap_in_what_the_sensors_saw_stays_one():
    seen = join_traces(
        [
            make_constant_trace(0.0, 0.5, LINK_W),
            make_constant_trace(0.5, 4.0, 9.0),
            make_constant_trace(4.8, 5.7, 9.0),
            make_constant_trace(10.5, 1.5, LINK_W),
        ]
    )
    _, told = one(with_trace(seen))

    assert told.events == ()
    assert told.traces[0].trace.start_s == (100.0, 100.5, 104.8, 110.5)


def test_a_real_board_that_was_cut_off_within_a_minibatch_keeps_what_was_seen_of_it():
    said = ReplyMessage("a", error="cancelled after 6 s", cut=True, trace=make_constant_trace(0.5, 5.0, 9.0))
    settled, told = one(said, deadline_s=8.0)

    assert settled.clients[0].energy_j == pytest.approx(8.0 * IDLE_W)
    assert told.traces[0].trace == join_traces(
        [make_constant_trace(100.5, 5.0, 9.0), make_constant_trace(105.5, 2.5, IDLE_W)]
    )
    assert [event.message for event in told.events] == [
        "its sensors saw 45.0 J of 5.0 s before it was cut off; its row books 10.0 J"
    ]


def test_a_row_of_no_time_has_no_trace():
    row = one(answer("a", 10.0))[0].clients[0]
    empty = dataclasses.replace(row, down_s=0.0, work_s=0.0, up_s=0.0, wait_s=0.0, work_j=0.0, radio_j=0.0)

    assert book_trace(empty, ReplyMessage("a", error="gone")) == BookedTraces()
    assert strip_trace(with_trace(WHOLE)).trace is EMPTY_TRACE
