"""The port over Flower's Grid: pushes questions to boards, pulls their replies until time is up or enough are there."""

from __future__ import annotations

import dataclasses
import logging
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from flwr.app import Message

from fedge.errors import RunFailed
from fedge.interfaces import Clock
from fedge.wire import Answer, Ask
from server.claiming import Claiming
from server.outstanding import GIVEN_UP, Outstanding, Sent
from server.port import Enough, Late, Question, Reply, never_enough
from server.replies import packed, unpacked
from server.roll_call import RollCall, Seat
from server.waiting import REMEMBERED, wait_s

POLL_S = 0.05
FIRST_HELLO_WITHIN_S = 60.0
"""A node is given so long to say who it is: it starts a process for every message, which takes a slow board a while."""
HELLO_WITHIN_S = 30.0
"""One that comes up while a run is on is given less, since the round waits for it; both are chosen by us."""
BYE_WITHIN_S = 10.0
"""At the run's end its boards are given so long to hear of it; one that does not is free when its claim ends. Chosen by
us."""
SILENCE = "silence (a board that is at work for another run says nothing until its round is over)"
REFUSED = "the SuperLink did not take its message; its log says why (too large?)"

logger = logging.getLogger(__name__)


class Node(Protocol):
    """What Flower tells of a node that is up."""

    @property
    def node_id(self) -> int: ...

    @property
    def last_activated_at(self) -> str: ...


class Grid(Protocol):
    """The three calls of ``flwr.serverapp.Grid`` that are used."""

    def get_nodes(self) -> Iterable[Node]: ...

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]: ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]: ...


@dataclass(frozen=True, slots=True, eq=False)
class _Exchanged:
    """What came of some messages: replies by node, and what is unanswered still, by message id."""

    replies: dict[int, Reply]
    waiting: dict[str, Sent]


class GridPort:
    """A ``ClientPort`` and its ``Overdue``; boards are known by their own names, which they tell when asked."""

    def __init__(
        self,
        grid: Grid,
        boards: Collection[str],
        clock: Clock,
        connect_timeout_s: float = 120.0,
        least: int | None = None,
        claiming: Claiming | None = None,
    ) -> None:
        """``least`` boards must come up within ``connect_timeout_s``, all of them by default.

        ``claiming`` is what real boards are told of the run; emulated ones belong to it anyway.
        """
        self._grid = grid
        self._clock = clock
        self._connect_timeout_s = connect_timeout_s
        self._least = len(boards) if least is None else least
        self._claiming = claiming
        self._roll = RollCall(tuple(boards))
        self._outstanding = Outstanding()
        self._overheads_s: deque[float] = deque(maxlen=REMEMBERED)
        """What the newest replies took beyond their boards' work."""

    def ask(
        self, questions: Mapping[str, Question], timeout_s: float, enough: Enough = never_enough
    ) -> Mapping[str, Reply]:
        self._pull_overdue()
        self._gather()
        self._meet()
        if self._claiming is not None and any(question.ask.kind == "train" for question in questions.values()):
            self._claiming.round_begins(self._clock.now_s())
        replies = {board: reply for board, each in questions.items() if (reply := self._at_once(board, each.ask))}
        reached = {board: question for board, question in questions.items() if board not in replies}
        replies |= self._asked(reached, timeout_s, enough)
        for reply in replies.values():
            self._roll.hold(reply.answer, self._clock.now_s())
        return {board: replies[board] for board in questions}

    def busy(self) -> Mapping[str, int]:
        return self._outstanding.busy(self._roll.seats())

    def arrived(self) -> Sequence[Late]:
        self._pull_overdue()
        return self._outstanding.taken()

    def wait(self, timeout_s: float) -> None:
        started_s = self._clock.now_s()
        self._look()
        self._pull_overdue()
        while self.busy() and not self._free() and self._clock.now_s() - started_s < timeout_s:
            self._clock.sleep_s(POLL_S)
            self._look()
            self._pull_overdue()

    def farewell(self) -> None:
        """Tell the boards that were claimed that the run is over; never raises, since the run has ended anyway."""
        if self._claiming is None:
            return
        try:
            self._look()
            busy = self.busy()
            boards = [board for board in self._roll.ours(self._clock.now_s()) if board not in busy]
            seats = self._roll.seats()
            self._exchange({seats[board].node: Question(Ask("bye")) for board in boards}, BYE_WITHIN_S)
        except Exception as error:  # noqa: BLE001 -- whatever Flower says now, the run's own end is told elsewhere
            logger.warning("the boards could not be told that the run is over, their claims will end: %s", error)

    def _look(self) -> None:
        """See which nodes are up now."""
        self._roll.up = {node.node_id: node.last_activated_at for node in self._grid.get_nodes()}

    def _free(self) -> bool:
        """Whether a board that is there, and is not another run's, can be asked."""
        busy = self.busy()
        return any(board not in busy for board in self._roll.ours(self._clock.now_s()))

    def _at_once(self, board: str, ask: Ask) -> Reply | None:
        """What is known of a board without asking it; None when it can be asked."""
        absence = self._roll.absence(board, ask.round, self._clock.now_s())
        if absence is not None:
            told = absence if self._roll.seat(board) else self._with_cure(board, absence)
            return Reply(Answer(board, error=told))
        busy = self.busy()
        return Reply(Answer(board, error=f"still at work on round {busy[board]}")) if board in busy else None

    def _with_cure(self, board: str, error: str) -> str:
        """The error with what to do about it, where that is a real board's."""
        if self._claiming is None:
            return error
        return f"{error}; `fedge fleet status --limit {board}` says what is wrong"

    def _asked(self, questions: Mapping[str, Question], timeout_s: float, enough: Enough) -> dict[str, Reply]:
        """A reply of every board; whoever has sent none by the end is outstanding."""
        began_s, seen = self._clock.now_s(), tuple(self._overheads_s)
        within_s = min((wait_s(timeout_s, each.within_s, seen) for each in questions.values()), default=timeout_s)
        seats = self._roll.seats()
        nodes = {seats[board].node: question for board, question in questions.items()}
        done = self._exchange(nodes, within_s, GIVEN_UP * timeout_s, enough)
        spare = bool(done.waiting) and enough(done.replies.values())
        for message_id, sent in done.waiting.items():
            self._outstanding.sent[message_id] = dataclasses.replace(sent, spare=spare)
        waited_s = self._clock.now_s() - began_s
        silent = {sent.board: self._unanswered(sent, within_s, waited_s, spare) for sent in done.waiting.values()}
        return silent | {self._roll.name_of(node): reply for node, reply in done.replies.items()}

    def _unanswered(self, sent: Sent, within_s: float, waited_s: float, spare: bool) -> Reply:
        """The reply of a board that sent none in time; past the round's own cut it is late, otherwise it failed."""
        if spare:
            error = f"cancelled after {waited_s:.0f} s: enough other boards were done"
            return Reply(Answer(sent.board, error=error, cut=True))
        error = self._with_cure(sent.board, f"no reply within {within_s:.4g} s")
        return Reply(Answer(sent.board, error=error, cut=sent.question.within_s is not None))

    def _gather(self) -> None:
        """See who is up; before any board is known it waits for the whole fleet, for a while.

        Raises ``RunFailed`` when too few come up.
        """
        started_s, wanted = self._clock.now_s(), len(self._roll.boards)
        self._look()
        if self._roll.begun:
            return
        while len(self._roll.up) < wanted and self._clock.now_s() - started_s <= self._connect_timeout_s:
            self._clock.sleep_s(POLL_S)
            self._look()
        if len(self._roll.up) < max(1, self._least):
            raise RunFailed(f"{len(self._roll.up)} of {wanted} nodes came up in {self._connect_timeout_s:.0f} s")

    def _meet(self) -> None:
        """Ask every node that is new who it is; raises ``RunFailed`` when none is a board of the fleet."""
        unknown = self._roll.unknown(self._clock.now_s())
        if not unknown:
            return
        within_s = HELLO_WITHIN_S if self._roll.begun else max(FIRST_HELLO_WITHIN_S, self._connect_timeout_s)
        replies = self._exchange({node: Question(Ask("hello")) for node in unknown}, within_s).replies
        answers = {node: replies[node].answer for node in unknown if node in replies}
        self._roll.heard(unknown, answers, self._clock.now_s())
        if not self._roll.begun:
            reasons = (answer.error for answer in answers.values() if answer.error)
            names = sorted(answer.board for answer in answers.values() if answer.error is None)
            strange = f"the boards that did, {', '.join(names)}, are not in this fleet"
            raise RunFailed(f"no board answered: {next(reasons, strange if names else SILENCE)}")

    def _exchange(
        self,
        questions: Mapping[int, Question],
        timeout_s: float,
        kept_s: float = 0.0,
        enough: Enough = never_enough,
    ) -> _Exchanged:
        """Push every question and pull replies until all are there, or enough, or the time is up.

        ``kept_s`` is for how long after it was sent an unanswered one is outstanding, if it is to be.
        """
        at_s = self._clock.now_s()
        replies, waiting = self._pushed(questions, at_s, at_s + kept_s)
        while waiting and self._clock.now_s() - at_s < timeout_s:
            fresh = 0
            for message in self._grid.pull_messages((*waiting, *self._outstanding.without(waiting))):
                sent = waiting.pop(message.metadata.reply_to_message_id, None)
                if sent is None:
                    self._receive_late(message)
                else:
                    replies[sent.seat.node] = self._received(sent, message)
                    fresh += 1
            if fresh and enough(replies.values()):
                break
            if waiting:
                self._clock.sleep_s(POLL_S)
        return _Exchanged(replies, waiting)

    def _pushed(
        self, questions: Mapping[int, Question], at_s: float, until_s: float
    ) -> tuple[dict[int, Reply], dict[str, Sent]]:
        """What the SuperLink did not take, as replies by node, and what was sent, by message id."""
        if not questions:
            return {}, {}
        asked = {
            node: question if self._claiming is None else self._claiming.on(question)
            for node, question in questions.items()
        }
        ids = list(self._grid.push_messages([packed(node, question) for node, question in asked.items()]))
        ids += [""] * (len(asked) - len(ids))  # of a push that is too large as a whole nothing is told
        refused: dict[int, Reply] = {}
        sent: dict[str, Sent] = {}
        for message_id, (node, question) in zip(ids, asked.items(), strict=True):
            board = self._roll.name_of(node)
            if message_id:
                seat = Seat(node, self._roll.up.get(node, ""))
                sent[message_id] = Sent(seat, board, question, at_s, until_s)
            else:
                refused[node] = Reply(Answer(board, error=REFUSED))
        return refused, sent

    def _pull_overdue(self) -> None:
        """Whatever has come in of the messages that are not waited for any more."""
        ids = self._outstanding.without(())
        for message in self._grid.pull_messages(ids) if ids else ():
            self._receive_late(message)
        self._outstanding.forget(self._clock.now_s())

    def _receive_late(self, message: Message) -> None:
        """A reply that no round waits for; one to a message that is given up, or answered already, is nobody's."""
        message_id = message.metadata.reply_to_message_id
        sent = self._outstanding.sent.get(message_id)
        if sent is not None:
            self._outstanding.came(message_id, self._received(sent, message))

    def _received(self, sent: Sent, message: Message) -> Reply:
        """The reply to a message, from which it is learnt what comes on top of a board's work."""
        reply = unpacked(sent.board, message)
        if reply.answer.report is not None:
            self._overheads_s.append(max(0.0, self._clock.now_s() - sent.at_s - reply.answer.report.work_s))
        return reply
