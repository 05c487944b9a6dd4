"""Real boards that are given up waiting for: not asked while at work, their late replies told and never mixed up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import pytest
from contracts.timed_grid import MODEL, START_S, TimedGrid
from flwr.app import Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedge.clock import SimulatedClock
from fedge.errors import RunFailed
from fedge.wire import RequestMessage
from server.transport.claim_terms import INITIAL_CLAIM_S, ClaimTerms
from server.transport.client_port import IncomingReply, OutgoingRequest
from server.transport.grid_port import REJECTED_TEXT, GridPort
from server.transport.node_registry import MAX_FOREIGN_CLAIM_S
from server.transport.outstanding import GIVE_UP_FACTOR, INITIAL_ALLOWANCE_S, MAX_OVERHEADS, reply_wait_s

RUN = "digits (run-1, abcd)"


def questions(number: int, boards: str = "ab", within_s: float | None = None) -> dict[str, OutgoingRequest]:
    return {board: OutgoingRequest(RequestMessage("train", number), MODEL, within_s) for board in boards}


def port_of(grid: TimedGrid, boards: str = "ab") -> GridPort:
    return GridPort(grid, boards, grid.clock, ClaimTerms(RUN))


def grid_of(boards: str = "ab", **work_s: float) -> TimedGrid:
    return TimedGrid(SimulatedClock(), boards, work_s)


def errors(replies: dict) -> dict[str, str | None]:
    return {board: reply.answer.error for board, reply in replies.items()}


def test_the_round_goes_on_without_a_board_once_its_time_and_the_allowance_are_over():
    grid = grid_of(a=5.0, b=500.0)
    port = port_of(grid)
    replies = port.ask(questions(1, within_s=10.0), 600.0)

    assert replies["a"].answer.error is None
    assert replies["b"].answer.cut
    assert grid.clock.now_s() == pytest.approx(START_S + 10.0 + INITIAL_ALLOWANCE_S, abs=0.2)
    assert replies["b"].answer.error == "no reply within 70 s; `fedge fleet status --limit b` says what is wrong"


def test_what_replies_took_beyond_their_work_shortens_the_wait():
    grid = grid_of(a=5.0, b=5.0)
    port = port_of(grid)
    port.ask(questions(1, within_s=10.0), 600.0)
    grid.work_s["b"] = 500.0
    began_s = grid.clock.now_s()
    port.ask(questions(2, within_s=10.0), 600.0)

    assert grid.clock.now_s() - began_s == pytest.approx(10.0 + 15.0, abs=0.2)


def test_a_board_at_work_on_an_earlier_round_is_not_asked_and_says_so():
    grid = grid_of(a=5.0, b=500.0)
    port = port_of(grid)
    port.ask(questions(3, within_s=10.0), 600.0)
    replies = port.ask(questions(4, within_s=10.0), 600.0)

    assert errors(replies) == {"a": None, "b": "still at work on round 3"}
    assert [number for board, kind, number in grid.asked if (board, kind) == ("b", "train")] == [3]
    assert port.busy_boards() == {"b": 3}


def test_a_late_reply_is_told_once_with_its_question_and_its_board_is_free():
    grid = grid_of(a=5.0, b=100.0)
    port = port_of(grid)
    port.ask(questions(1, within_s=10.0), 600.0)
    assert port.take_late_replies() == []
    grid.clock.sleep_s(60.0)
    (late,) = port.take_late_replies()

    assert (late.board, late.question.ask.round) == ("b", 1)
    assert late.question.arrays is MODEL
    assert late.reply.trained is not None
    assert port.take_late_replies() == []
    assert port.busy_boards() == {}


def test_a_late_reply_that_comes_while_a_round_is_waited_for_does_not_count_as_that_rounds():
    grid = grid_of(a=30.0, b=100.0)
    port = port_of(grid)
    port.ask(questions(1, within_s=30.0), 600.0)
    replies = port.ask(questions(2, within_s=30.0), 600.0)
    late = port.take_late_replies()

    assert errors(replies) == {"a": None, "b": "still at work on round 1"}
    assert [(one.board, one.question.ask.round) for one in late] == [("b", 1)]


def test_when_everybody_who_is_there_is_busy_it_waits_for_the_first():
    grid = grid_of("abc", a=200.0, b=300.0)
    port = port_of(grid, "abc")
    port.ask(questions(1, "ab", within_s=10.0), 600.0)
    grid.lost.add(13)
    port.wait(600.0)

    assert port.busy_boards() == {"b": 1}
    assert grid.clock.now_s() == pytest.approx(START_S + START_S + 200.0, abs=0.2)


def test_it_does_not_wait_longer_than_a_reply_may_take_and_not_at_all_while_one_is_free():
    grid = grid_of(a=5.0, b=500.0)
    port = port_of(grid)
    port.ask(questions(1, within_s=10.0), 600.0)
    began_s = grid.clock.now_s()
    port.wait(100.0)
    assert grid.clock.now_s() == began_s

    grid.lost.add(11)
    port.wait(100.0)
    assert grid.clock.now_s() == pytest.approx(began_s + 100.0, abs=0.2)
    assert port.busy_boards() == {"b": 1}


def test_a_message_that_was_lost_in_a_restart_keeps_its_board_busy_for_a_while_only():
    grid = grid_of(a=5.0, b=1e9)
    port = port_of(grid)
    port.ask(questions(1, within_s=10.0), 600.0)
    grid.work_s["b"], grid.free_s = 5.0, {}
    grid.clock.sleep_s(GIVE_UP_FACTOR * 600.0)
    replies = port.ask(questions(2), 600.0)

    assert errors(replies) == {"a": None, "b": None}


def test_a_board_that_is_lost_while_it_is_overdue_is_told_and_asked_again_when_it_is_back():
    grid = grid_of(a=5.0, b=500.0)
    port = port_of(grid)
    port.ask(questions(1, within_s=10.0), 600.0)
    grid.lost = {12}
    (late,) = port.take_late_replies()
    grid.lost, grid.free_s, grid.work_s["b"] = set(), {}, 5.0
    replies = port.ask(questions(2), 600.0)

    assert late.reply.answer.error == (
        "the board was lost: it is off or cut off, or its SuperNode ended (Flower error 5)"
    )
    assert errors(replies) == {"a": None, "b": None}


@pytest.mark.parametrize("same_mark", [True, False])
def test_a_board_whose_node_was_started_anew_has_forgotten_its_message_and_is_asked_again(same_mark):
    grid = grid_of(a=5.0, b=1e9)
    port = port_of(grid)
    port.ask(questions(1, within_s=10.0), 600.0)
    grid.work_s["b"], grid.free_s = 5.0, {}
    grid.activated = {} if same_mark else {12: "2026-01-02T03:04:05+00:00"}
    replies = port.ask(questions(2, within_s=10.0), 600.0)

    assert errors(replies) == {"a": None, "b": "still at work on round 1" if same_mark else None}
    assert port.busy_boards() == ({"b": 1} if same_mark else {})


def test_a_board_that_is_gone_is_not_asked_and_its_row_says_since_which_round():
    grid = grid_of(a=5.0, b=5.0)
    port = port_of(grid)
    port.ask(questions(1), 600.0)
    grid.lost = {12}
    gone = [port.ask(questions(number), 600.0)["b"].answer.error for number in (2, 3)]
    grid.lost = set()
    back = port.ask(questions(4), 600.0)

    cure = "; `fedge fleet status --limit b` says what is wrong"
    assert gone == [f"connection lost since round 2{cure}"] * 2
    assert [number for board, kind, number in grid.asked if (board, kind) == ("b", "train")] == [1, 4]
    assert errors(back) == {"a": None, "b": None}


def done(count: int) -> Callable[[Collection[IncomingReply]], bool]:
    return lambda replies: sum(reply.trained is not None for reply in replies) >= count


def test_the_round_goes_on_as_soon_as_enough_replies_are_in_and_the_others_stay_busy():
    grid = grid_of("abc", a=20.0, b=30.0, c=500.0)
    port = port_of(grid, "abc")
    began_s = grid.clock.now_s()
    replies = port.ask(questions(1, "abc"), 600.0, done(2))

    assert errors(replies) == {"a": None, "b": None, "c": "cancelled after 32 s: enough other boards were done"}
    assert replies["c"].answer.cut
    assert grid.clock.now_s() - began_s == pytest.approx(2 * START_S + 30.0, abs=0.2)
    assert port.busy_boards() == {"c": 1}
    grid.clock.sleep_s(500.0)
    (late,) = port.take_late_replies()
    assert (late.board, late.spare) == ("c", True)


@pytest.mark.parametrize("all_of_it", [True, False])
def test_a_message_that_the_superlink_does_not_take_is_told_at_once(monkeypatch, all_of_it):
    grid = grid_of(a=5.0, b=5.0)
    port = port_of(grid)
    port.ask(questions(1), 600.0)
    if all_of_it:
        monkeypatch.setattr(grid, "push_messages", lambda _: [])
    grid.refused = {12}
    began_s = grid.clock.now_s()
    replies = port.ask(questions(2), 600.0)

    assert errors(replies) == {"a": REJECTED_TEXT if all_of_it else None, "b": REJECTED_TEXT}
    assert grid.clock.now_s() - began_s < 10.0
    assert port.busy_boards() == {}


def test_a_second_reply_to_a_message_and_one_to_a_message_never_sent_change_nothing(
    monkeypatch,
):
    grid = grid_of(a=5.0, b=5.0)
    pull = grid.pull_messages

    def doubled(ids: Iterable[str]) -> list[Message]:
        came = [*pull(ids), *pull(ids)]
        strange = Message(RecordDict(), reply_to=grid.passed["m0"].message)
        strange.metadata.__dict__["_reply_to_message_id"] = "never sent"
        return [strange, *came]

    monkeypatch.setattr(grid, "pull_messages", doubled)
    port = port_of(grid)
    replies = port.ask(questions(1), 600.0)

    assert errors(replies) == {"a": None, "b": None}
    assert port.take_late_replies() == []
    assert port.busy_boards() == {}


def test_every_question_is_asked_in_the_name_of_the_run():
    grid = grid_of()
    port_of(grid).ask(questions(1), 600.0)

    assert {(each.ask.run, each.ask.claim_s) for each in grid.passed.values()} == {(RUN, INITIAL_CLAIM_S)}


def test_a_board_of_another_run_is_left_alone_for_a_while_and_the_others_work():
    grid = grid_of(a=5.0, b=5.0)
    grid.holders = {"b": 900.0}
    port = port_of(grid)
    first = port.ask(questions(1), 600.0)
    grid.clock.sleep_s(100.0)
    second = port.ask(questions(2), 600.0)
    asked = [kind for board, kind, _ in grid.asked if board == "b"]
    grid.holders = {}
    grid.clock.sleep_s(MAX_FOREIGN_CLAIM_S)
    third = port.ask(questions(3), 600.0)

    refusal = 'b works for run "other" (for 900 s more)'
    assert [errors(each) for each in (first, second, third)] == [
        {"a": None, "b": refusal},
        {"a": None, "b": refusal},
        {"a": None, "b": None},
    ]
    assert asked == ["hello"]


def test_a_board_of_a_run_that_is_over_is_taken_over_at_once():
    grid = grid_of(a=5.0, b=5.0)
    grid.holders = {"b": 900.0}
    claiming = ClaimTerms(RUN, is_over="other".__eq__)
    port = GridPort(grid, "ab", grid.clock, claiming=claiming)

    assert errors(port.ask(questions(1), 600.0)) == {"a": None, "b": None}
    byes = [(each.board, each.ask.run) for each in grid.passed.values() if each.ask.kind == "bye"]
    assert byes == [("b", "other")]


def test_at_the_end_every_board_that_worked_for_the_run_hears_of_it():
    grid = grid_of("abc", a=5.0, b=500.0)
    grid.holders = {"c": 900.0}
    port = port_of(grid, "abc")
    port.ask(questions(1, "abc", within_s=10.0), 600.0)
    began_s = grid.clock.now_s()
    port.release_boards()

    assert [board for board, kind, _ in grid.asked if kind == "bye"] == ["a"]
    assert grid.clock.now_s() - began_s == pytest.approx(START_S, abs=0.2)


def test_a_farewell_that_cannot_be_said_is_no_failure():
    grid = grid_of()
    port = port_of(grid)
    port.ask(questions(1), 600.0)

    def broken(_: object) -> list[str]:
        raise ConnectionError("the SuperLink is gone")

    grid.push_messages = broken  # type: ignore[method-assign, assignment]
    port.release_boards()


def test_boards_that_stay_silent_may_be_at_work_for_another_run():
    grid = grid_of(a=5.0, b=5.0)
    grid.free_s = {11: 1e6, 12: 1e6}

    with pytest.raises(RunFailed, match="at work for another run"):
        port_of(grid).ask(questions(1), 600.0)


OVERHEADS = st.lists(st.floats(0.0, 1e4), max_size=2 * MAX_OVERHEADS)


@given(OVERHEADS.filter(bool), st.floats(0.0, 1e4))
def test_a_reply_that_takes_no_longer_than_those_before_is_waited_for(seen, within_s):
    newest = seen[-MAX_OVERHEADS:]

    assert reply_wait_s(1e9, within_s, seen) >= within_s + max(newest)


@given(OVERHEADS, st.one_of(st.none(), st.floats(0.0, 1e4)), st.floats(1.0, 1e4))
def test_no_wait_is_longer_than_a_reply_may_take(seen, within_s, timeout_s):
    assert reply_wait_s(timeout_s, within_s, seen) <= timeout_s
    assert reply_wait_s(timeout_s, None, seen) == pytest.approx(timeout_s)
