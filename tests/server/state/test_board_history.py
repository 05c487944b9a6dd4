"""After a round the server knows what the boards have told by then: all, a part, or nothing."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from contracts.reports import LOW, answer, front
from hypothesis import given
from hypothesis import strategies as st

from fedge.experiment import LateReplySpec
from fedge.telemetry.client_rows import RoundStart
from fedge.telemetry.settlement import settle_round
from fedge.types import Measurement, TrainResult
from fedge.wire import ClientState, ReplyMessage
from server.state.board_history import apply_late_reports, update_histories
from server.state.checkpoint import FleetState, PendingResult

EARLIER = Measurement(LOW, 10, 2.0, 4.0)
OPEN = RoundStart(round=2, start_s=100.0, deadline_s=30.0, idle_w={})
BEFORE = FleetState(100.0, states={"a": ClientState((EARLIER,), 30.0, 90.0)}, fronts={"a": front(3.0)})


def said(board: str, work_s: float, probe_s: float = 0.0) -> ReplyMessage:
    """An answer whose state holds the earlier measurement too; with a probe of 4 minibatches before."""
    told = answer(board, work_s)
    assert told.report is not None
    report = told.report
    if probe_s:
        report = dataclasses.replace(report, probes=(Measurement(LOW, 4, probe_s / 4, 4.0),))
    state = ClientState((EARLIER, *report.parts), 40.0, 100.0 + report.busy_s)
    return dataclasses.replace(told, report=report, state=state)


def after(one: ReplyMessage, late: LateReplySpec | None = None, **opening: object) -> FleetState:
    answers = {"a": one, "b": answer("b", 10.0)}
    settled = settle_round(dataclasses.replace(OPEN, **opening), answers, late or LateReplySpec())
    return update_histories(BEFORE, 2, settled, answers)


def test_a_board_that_is_done_has_told_everything() -> None:
    told = after(said("a", 20.0))

    assert told.states["a"] == said("a", 20.0).state
    assert told.fronts["a"] == front()
    history = told.histories["a"]
    assert (history.samples, history.loss, history.accuracy, history.busy_s) == (100, 0.5, 0.8, 22.0)
    assert (history.last_round, history.rounds, history.free_at_s) == (2, 1, 122.0)


def test_the_rate_of_a_link_is_the_median_of_the_last_rounds_that_measured_it() -> None:
    fleet = BEFORE
    for rate in (*[1000.0] * 5, None, *map(float, range(1, 10))):
        told = said("a", 20.0)
        assert told.report is not None
        told = dataclasses.replace(told, report=dataclasses.replace(told.report, link_mbps=rate))
        settled = settle_round(OPEN, {"a": told}, LateReplySpec())
        fleet = update_histories(fleet, 2, settled, {"a": told})

    assert fleet.histories["a"].link_mbps == 5.0
    assert after(said("a", 20.0)).histories["a"].link_mbps is None


def test_a_board_that_was_stopped_keeps_what_it_had_measured() -> None:
    told = after(said("a", 20.0), wanted=1)  # b is done after 12 s, of which a works 11.5 s
    kept = told.states["a"]

    assert [measurement.steps for measurement in kept.measurements] == [10, 5]
    assert kept.rested_at_s == pytest.approx(112.0)
    assert told.fronts["a"] == front()
    assert (told.histories["a"].busy_s, told.histories["a"].loss, told.histories["a"].free_at_s) == (12.0, None, 112.0)


def test_a_board_stopped_in_its_probe_keeps_its_old_front() -> None:
    told = after(said("a", 20.0, probe_s=16.0), wanted=1)

    assert [measurement.steps for measurement in told.states["a"].measurements] == [10, 2]
    assert told.fronts["a"] == front(3.0)


@pytest.mark.parametrize("opening", [{"leaves_s": {"a": 104.0}}, {}])
def test_of_a_board_that_failed_nothing_new_is_known_but_that_it_rests_since(opening: dict[str, object]) -> None:
    one = said("a", 20.0) if opening else ReplyMessage("a", error="out of memory")
    told = after(one, **opening)

    # It worked until it failed: it has not cooled since its last reply at 90 s.
    assert told.states["a"] == dataclasses.replace(BEFORE.states["a"], rested_at_s=104.0 if opening else 112.0)
    assert told.fronts["a"] == BEFORE.fronts["a"]
    assert (told.histories["a"].rounds, told.histories["a"].loss) == (1, None)


def test_a_late_board_is_busy_until_its_reply_is_in_and_tells_only_then() -> None:
    one = said("a", 60.0)
    told = after(one, LateReplySpec(action="discount", grace=0.0))

    assert told.states["a"] == BEFORE.states["a"]
    assert told.histories["a"].free_at_s == 162.0
    pending = PendingResult(2, 100.0, 162.0, one, TrainResult({"w": np.zeros(1)}, 0.5, 0.8))
    assert apply_late_reports(told, [pending]).states["a"] == one.state
    assert apply_late_reports(told, [pending]).histories["a"].busy_s == 62.0
    assert apply_late_reports(told, [pending]).histories["a"].rounds == 1


def test_of_a_late_board_that_goes_away_before_it_replies_nothing_is_known() -> None:
    told = after(said("a", 60.0), LateReplySpec(action="discount", grace=0.0), leaves_s={"a": 140.0})

    assert told.states["a"] == dataclasses.replace(BEFORE.states["a"], rested_at_s=140.0)
    assert told.fronts["a"] == front(3.0)
    assert (told.histories["a"].busy_s, told.histories["a"].loss, told.histories["a"].free_at_s) == (None, None, 140.0)


def test_a_late_board_that_was_stopped_before_it_went_away_keeps_what_it_had_measured() -> None:
    told = after(said("a", 60.0), LateReplySpec(action="drop", grace=0.0), leaves_s={"a": 140.0})

    # Stopped after 30 s, of which it worked 29.5 s.
    assert [measurement.steps for measurement in told.states["a"].measurements] == [10, 4]
    assert told.states["a"].rested_at_s == pytest.approx(130.0)


def test_a_stopped_board_remembers_what_its_deadlines_allowed() -> None:
    one = said("a", 20.0)
    assert one.state is not None
    told = after(dataclasses.replace(one, state=dataclasses.replace(one.state, allowed_s=(1.5, 2.5))), wanted=1)

    assert told.states["a"].allowed_s == (1.5, 2.5)


@given(st.integers(1, 200).map(lambda quarter: quarter / 4))
def test_the_row_and_the_memory_of_a_stopped_board_count_the_same_minibatches(done_s: float) -> None:
    one = said("a", 20.0, probe_s=16.0)
    answers = {"a": one, "b": answer("b", done_s)}
    settled = settle_round(dataclasses.replace(OPEN, wanted=1), answers, LateReplySpec())
    known = update_histories(BEFORE, 2, settled, answers).states["a"].measurements[1:]

    assert settled.clients[0].steps == sum(m.steps for m in known if m != EARLIER)


def test_a_late_reply_is_applied_in_the_one_span_of_time_in_which_it_arrives() -> None:
    results = [
        PendingResult(1, 0.0, end_s, ReplyMessage(f"at-{end_s:.0f}", front=front()), TrainResult({}, 0.0, 0.0))
        for end_s in (5.0, 10.0, 15.0, 20.0)
    ]
    parts = [
        apply_late_reports(FleetState(0.0), results, after_s, until_s)
        for after_s, until_s in ((0.0, 10.0), (10.0, 12.0), (12.0, 20.0))
    ]

    assert [list(part.fronts) for part in parts] == [["at-5", "at-10"], [], ["at-15", "at-20"]]
