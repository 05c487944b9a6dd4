"""Over Flower's Grid: boards are found by name, replies come in any order or not at all, nothing waits for ever."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import pytest
from contracts.reports import answer
from contracts.timed_grid import Up
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedge.clock import SimulatedClock
from fedge.errors import RunFailed
from fedge.flower.messages import ensure_identity
from fedge.wire import ReplyMessage, RequestMessage, from_json, to_json
from server.transport.claim_terms import ClaimTerms
from server.transport.client_port import OutgoingRequest
from server.transport.grid_port import GridPort

MODEL = {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}


class FakeGrid:
    """Nodes 11, 12, ... are the boards a, b, ...; each answers after ``delay`` pulls, as ``behave`` says."""

    def __init__(self, boards: str = "ab", silent: str = "", broken: str = "", delay: int = 2) -> None:
        ensure_identity()
        self.boards = {11 + i: board for i, board in enumerate(boards)}
        self.silent, self.broken, self.delay = silent, broken, delay
        self.bare = ""
        self.residual: np.ndarray | None = None
        self.mute = False
        self.handled_s: float | None = None
        self.names: dict[str, str] = {}
        self.claims: dict[str, str] = {}
        self.sent: dict[str, Message] = {}
        self.asked: list[tuple[str, RequestMessage]] = []
        self.pulls = 0

    def get_nodes(self) -> Iterable[Up]:
        return [Up(node) for node in self.boards]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message_id = f"m{len(self.sent)}"
            self.sent[message_id] = message
            ids.append(message_id)
        self.pulls = 0
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.pulls += 1
        if self.pulls < self.delay:
            return []
        replies = [self._reply(message_id) for message_id in sorted(message_ids, reverse=True)]
        return [reply for reply in replies if reply is not None]

    def _reply(self, message_id: str) -> Message | None:
        sent = self.sent[message_id]
        board = self.boards[sent.metadata.dst_node_id]
        ask = from_json(RequestMessage, str(sent.content.config_records["fedge"]["ask"]))
        self.asked.append((board, ask))
        if board in self.silent and (ask.kind != "hello" or self.mute):
            return None
        if board in self.broken and ask.kind != "hello":
            reply = Message(Error(8, "ClientApp stopped responding."), reply_to=sent)
        else:
            reply = Message(self._content(board, ask), reply_to=sent)
        reply.metadata.__dict__["_reply_to_message_id"] = message_id
        return reply

    def _content(self, board: str, ask: RequestMessage) -> RecordDict:
        if ask.kind == "hello":
            return RecordDict({"fedge": ConfigRecord({"answer": to_json(ReplyMessage(self.names.get(board, board)))})})
        said = to_json(dataclasses.replace(answer(self.claims.get(board, board), 5.0), handled_s=self.handled_s))
        if board in self.bare:
            return RecordDict({"fedge": ConfigRecord({"answer": said})})
        content = RecordDict(
            {
                "fedge": ConfigRecord({"answer": said}),
                "arrays": ArrayRecord({name: Array(value + 1) for name, value in MODEL.items()}),
                "metrics": MetricRecord({"loss": 0.25, "accuracy": 0.75}),
            }
        )
        if self.residual is not None:
            content["residual"] = ArrayRecord({"residual": Array(self.residual)})
        return content


def questions(boards: str = "ab") -> dict[str, OutgoingRequest]:
    return {board: OutgoingRequest(RequestMessage("train", 1), MODEL) for board in boards}


def test_what_an_encoding_left_out_stays_on_the_board():
    grid = FakeGrid("a")
    grid.residual = np.arange(6, dtype=np.float32)
    asked = {"a": OutgoingRequest(RequestMessage("train", 1, trainable=("w",)), MODEL)}
    trained = GridPort(grid, "a", SimulatedClock(), ClaimTerms("run")).ask(asked, 10.0)["a"].trained
    assert trained.residual is None


def test_the_link_of_a_real_board_is_measured_beyond_its_own_time():
    grid, clock = FakeGrid("a", delay=12), SimulatedClock()
    grid.handled_s = 1.5
    began_s = clock.now_s()
    port = GridPort(grid, "a", clock, ClaimTerms("run"))
    port.ask({}, 1.0)
    named_s = clock.now_s()
    grid.delay = 60
    report = port.ask(questions("a"), 10.0)["a"].answer.report
    trained_s = clock.now_s()
    front = {"a": OutgoingRequest(RequestMessage("front"))}
    grid.delay = 35
    port.ask(front, 10.0)
    fastest_s = clock.now_s() - trained_s - 1.5
    grid.delay = 60
    again = port.ask(questions("a"), 10.0)["a"].answer.report

    assert 0.0 < fastest_s < named_s - began_s
    both_s = trained_s - named_s - 1.5
    moved_mbit = 8e-6 * 2 * MODEL["w"].nbytes
    assert report.link_mbps == pytest.approx(moved_mbit / (both_s - (named_s - began_s)))
    assert again.link_mbps == pytest.approx(moved_mbit / (both_s - fastest_s))


def test_half_of_the_time_beyond_the_boards_own_counts_as_transfer_whatever_other_messages_took():
    grid, clock = FakeGrid("a", delay=60), SimulatedClock()
    grid.handled_s = 0.0
    port = GridPort(grid, "a", clock, ClaimTerms("run"))
    port.ask({}, 10.0)
    named_s = clock.now_s()
    report = port.ask(questions("a"), 10.0)["a"].answer.report

    both_s = clock.now_s() - named_s
    assert report.link_mbps == pytest.approx(8e-6 * 2 * MODEL["w"].nbytes / (0.5 * both_s))


def test_no_link_is_measured_where_a_board_reports_no_time_of_its_own_or_clocks_disagree():
    for handled_s in (None, 1e6):
        grid = FakeGrid("a")
        grid.handled_s = handled_s
        report = GridPort(grid, "a", SimulatedClock(), ClaimTerms("run")).ask(questions("a"), 10.0)["a"].answer.report
        assert report.link_mbps is None


def test_a_silent_board_is_a_reply_with_an_error_once_the_time_is_up():
    clock = SimulatedClock()
    replies = GridPort(FakeGrid(silent="b"), "ab", clock, ClaimTerms("run")).ask(questions(), 5.0)

    assert replies["a"].answer.error is None
    assert replies["b"].answer.error == "no reply within 5 s; `fedge fleet status --limit b` says what is wrong"
    assert 5.0 <= clock.now_s() < 6.0


def test_nodes_that_never_come_up_end_the_run():
    port = GridPort(FakeGrid(boards=""), "ab", SimulatedClock(), ClaimTerms("run"), connect_timeout_s=3.0)

    with pytest.raises(RunFailed, match="no node came up in 3 s"):
        port.ask(questions(), 5.0)


def test_a_report_without_its_arrays_is_a_failure_of_that_board_only():
    grid = FakeGrid()
    grid.bare = "a"
    replies = GridPort(grid, "ab", SimulatedClock(), ClaimTerms("run")).ask(questions(), 5.0)

    assert (replies["a"].answer.error or "").startswith("unreadable reply: KeyError")
    assert replies["a"].answer.report is None
    assert replies["b"].answer.error is None


def test_a_board_that_speaks_for_another_is_not_believed():
    grid = FakeGrid()
    grid.claims = {"a": "b"}
    replies = GridPort(grid, "ab", SimulatedClock(), ClaimTerms("run")).ask(questions(), 5.0)

    assert replies["a"].answer.error == "unreadable reply: it speaks for b"
    assert replies["b"].answer == answer("b", 5.0)


def test_a_board_that_comes_back_with_another_node_is_used_again():
    grid = FakeGrid()
    port = GridPort(grid, "ab", SimulatedClock(), ClaimTerms("run"))
    port.ask(questions(), 10.0)
    grid.boards = {11: "a", 17: "b"}

    replies = port.ask(questions(), 10.0)

    assert {board: reply.answer.error for board, reply in replies.items()} == {"a": None, "b": None}


def test_a_fleet_goes_on_with_the_boards_that_came_and_takes_the_others_when_they_come():
    grid, clock = FakeGrid("a"), SimulatedClock()
    port = GridPort(grid, "ab", clock, ClaimTerms("run"), 7.0)

    first = port.ask(questions(), 10.0)
    waited_s = clock.now_s()
    grid.boards = {11: "a", 12: "b"}
    second = port.ask(questions(), 10.0)

    assert (first["a"].answer.error, first["b"].answer.error) == (
        None,
        "never connected; `fedge fleet status --limit b` says what is wrong",
    )
    assert second["b"].answer.error is None
    assert waited_s < 8.0
    assert clock.now_s() - waited_s < 1.0


def test_a_board_of_another_fleet_is_asked_for_its_name_once_and_left_alone():
    grid = FakeGrid("abx")
    port = GridPort(grid, "ab", SimulatedClock(), ClaimTerms("run"))
    port.ask(questions(), 10.0)
    port.ask(questions(), 10.0)

    assert [ask.kind for board, ask in grid.asked if board == "x"] == ["hello"]


def test_only_boards_of_another_fleet_end_the_run_with_their_names():
    with pytest.raises(RunFailed, match="x, y, are not in this fleet"):
        GridPort(FakeGrid("xy"), "ab", SimulatedClock(), ClaimTerms("run")).ask(questions(), 10.0)


def test_a_second_node_with_a_boards_name_is_left_alone_while_the_first_is_up():
    grid = FakeGrid("ab")
    port = GridPort(grid, "ab", SimulatedClock(), ClaimTerms("run"))
    port.ask(questions(), 10.0)
    grid.boards = {11: "a", 12: "b", 13: "x"}
    grid.names = {"x": "a"}

    for _ in range(3):
        port.ask(questions(), 10.0)

    asked = [ask.kind for board, ask in grid.asked if board == "x"]
    assert asked == ["hello"]
