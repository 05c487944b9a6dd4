"""The port over Flower's Grid: finds which node is which board, pushes questions, pulls replies until time is up."""

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
from server.outstanding import GIVEN_UP, Outstanding, Sent
from server.port import Late, Question, Reply
from server.replies import UNNAMED, packed, unpacked
from server.waiting import REMEMBERED, wait_s

POLL_S = 0.05
FIRST_HELLO_WITHIN_S = 60.0
"""A node is given so long to say who it is: it starts a process for every message, which takes a slow board a while."""
HELLO_WITHIN_S = 30.0
"""One that comes up while a run is on is given less, since the round waits for it; both are chosen by us."""
SILENT_S = 60.0
"""A node that did not is asked again after so long, then after twice as long, and so on; chosen by us."""
HELD_S = 300.0
"""A board that another run holds is asked again when that ends, or after so long: its run may be over before. Asking
may mean to wait for a round of the other run, so it is done seldom. Chosen by us."""
BYE_WITHIN_S = 10.0
"""At the run's end its boards are given so long to hear of it; one that does not is free when its claim ends. Chosen by
us."""
SILENCE = "silence (a board that is at work for another run says nothing until its round is over)"


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Claim:
    """The run for which real boards work, and for how long after each answer they are kept for it."""

    run: str
    stands_s: float


@dataclass(frozen=True, slots=True)
class _Pause:
    """For how long, and until when, a node is not asked who it is."""

    length_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class _Held:
    """Until when a board is not asked, because it works for another run, and its own words for it."""

    until_s: float
    error: str


class Grid(Protocol):
    """The three calls of ``flwr.serverapp.Grid`` that are used."""

    def get_node_ids(self) -> Iterable[int]: ...

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]: ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]: ...


class GridPort:
    """A ``ClientPort`` and its ``Overdue``; boards are known by their own names, which they tell when asked."""

    def __init__(
        self,
        grid: Grid,
        boards: Collection[str],
        clock: Clock,
        connect_timeout_s: float = 120.0,
        least: int | None = None,
        claim: Claim | None = None,
    ) -> None:
        """``least`` boards must come up within ``connect_timeout_s``, all of them by default.

        ``claim`` is what real boards are told of the run; emulated ones belong to it anyway.
        """
        self._grid = grid
        self._boards = tuple(boards)
        self._clock = clock
        self._connect_timeout_s = connect_timeout_s
        self._least = len(self._boards) if least is None else least
        self._claim = claim
        self._node_of: dict[str, int] = {}
        self._strangers: set[int] = set()
        """Nodes whose board is not of this fleet."""
        self._silent: dict[int, _Pause] = {}
        self._held: dict[str, _Held] = {}
        self._outstanding = Outstanding()
        self._late: dict[str, Late] = {}
        self._overheads_s: deque[float] = deque(maxlen=REMEMBERED)
        """What the newest replies took beyond their boards' work."""

    def ask(self, questions: Mapping[str, Question], timeout_s: float) -> Mapping[str, Reply]:
        self._pull_overdue()
        self._meet(self._nodes())
        replies = {board: reply for board in questions if (reply := self._at_once(board)) is not None}
        reached = {self._node_of[board]: question for board, question in questions.items() if board not in replies}
        within_s = min((wait_s(timeout_s, q.within_s, self._seen) for q in reached.values()), default=timeout_s)
        told = self._exchange(reached, within_s, GIVEN_UP * timeout_s)
        for node, question in reached.items():
            board = self._name_of(node)
            replies[board] = told.get(node) or self._unanswered(board, question, within_s)
            self._note_holder(replies[board].answer)
        return {board: replies[board] for board in questions}

    def busy(self) -> Mapping[str, int]:
        return self._outstanding.busy(self._node_of)

    def arrived(self) -> Sequence[Late]:
        self._pull_overdue()
        late, self._late = self._late, {}
        return [late[board] for board in sorted(late)]

    def wait(self, timeout_s: float) -> None:
        started_s = self._clock.now_s()
        self._pull_overdue()
        while self.busy() and not self._free() and self._clock.now_s() - started_s < timeout_s:
            self._clock.sleep_s(POLL_S)
            self._pull_overdue()

    def farewell(self) -> None:
        """Tell the boards that were claimed that the run is over; never raises, since the run has ended anyway."""
        boards = [] if self._claim is None else [b for b in self._node_of if b not in self._held]
        try:
            bye = {self._node_of[board]: Question(Ask("bye")) for board in boards if board not in self.busy()}
            if bye:
                self._exchange(bye, BYE_WITHIN_S)
        except Exception as error:  # noqa: BLE001 -- whatever Flower says now, the run's own end is told elsewhere
            logger.warning("the boards could not be told that the run is over, their claims will end: %s", error)

    @property
    def _seen(self) -> tuple[float, ...]:
        return tuple(self._overheads_s)

    def _free(self) -> bool:
        """Whether a board that is there, and is not another run's, can be asked."""
        nodes, busy = set(self._grid.get_node_ids()), self.busy()
        there = [board for board, node in self._node_of.items() if node in nodes and board not in self._held]
        return any(board not in busy for board in there)

    def _at_once(self, board: str) -> Reply | None:
        """What is known of a board without asking it; None when it can be asked."""
        held, busy = self._held.get(board), self.busy()
        if held is not None and self._clock.now_s() < held.until_s:
            return Reply(Answer(board, error=held.error))
        self._held.pop(board, None)
        if board in busy:
            return Reply(Answer(board, error=f"still at work on round {busy[board]}"))
        return None if board in self._node_of else Reply(Answer(board, error="never connected"))

    def _unanswered(self, board: str, question: Question, waited_s: float) -> Reply:
        """The reply of a board that sent none in time; past the round's own cut it is late, otherwise it failed."""
        error = f"no reply within {waited_s:.4g} s"
        if self._claim is not None:
            error += f"; `fedge fleet status --limit {board}` says what is wrong"
        return Reply(Answer(board, error=error, cut=question.within_s is not None))

    def _note_holder(self, answer: Answer) -> None:
        """Leave a board alone that another run holds."""
        if answer.held_s is not None:
            until_s = self._clock.now_s() + min(answer.held_s, HELD_S)
            self._held[answer.board] = _Held(until_s, answer.error or "held by another run")

    def _nodes(self) -> tuple[int, ...]:
        """The nodes that are up; before any is known it waits for the whole fleet, for a while.

        Raises ``RunFailed`` when too few come up.
        """
        started_s = self._clock.now_s()
        nodes = tuple(self._grid.get_node_ids())
        while not self._node_of and len(nodes) < len(self._boards):
            if self._clock.now_s() - started_s > self._connect_timeout_s:
                break
            self._clock.sleep_s(POLL_S)
            nodes = tuple(self._grid.get_node_ids())
        if not self._node_of and len(nodes) < max(1, self._least):
            waited_s = self._connect_timeout_s
            raise RunFailed(f"{len(nodes)} of {len(self._boards)} nodes came up in {waited_s:.0f} s")
        return nodes

    def _meet(self, nodes: Collection[int]) -> None:
        """Ask every node that is new who it is; a board that came back with another node is known by that one."""
        now_s = self._clock.now_s()
        known = {*self._node_of.values(), *self._strangers}
        silent = {node for node, pause in self._silent.items() if now_s < pause.until_s}
        unknown = [node for node in nodes if node not in known | silent]
        if not unknown:
            return
        within_s = HELLO_WITHIN_S if self._node_of else max(FIRST_HELLO_WITHIN_S, self._connect_timeout_s)
        replies = self._exchange({node: Question(Ask("hello")) for node in unknown}, within_s)
        told = {node: reply.answer.board for node, reply in replies.items() if _named(reply.answer)}
        self._leave_alone(set(unknown) - set(told))
        ours = self._ours(told, nodes)
        if not ours and not self._node_of:
            reasons = (reply.answer.error for reply in replies.values() if reply.answer.error)
            strange = f"the boards that did, {', '.join(sorted(told.values()))}, are not in this fleet"
            raise RunFailed(f"no board answered: {next(reasons, strange if told else SILENCE)}")
        self._node_of |= ours
        for node in ours.values():
            self._note_holder(replies[node].answer)

    def _ours(self, told: Mapping[int, str], nodes: Collection[int]) -> dict[str, int]:
        """The fleet's boards among those that told their names; every other node is a stranger from now on.

        A second node that claims the name of a board whose node is up is one, too: two boards with one settings file.
        """
        ours: dict[str, int] = {}
        for node, board in told.items():
            if board in self._boards and board not in ours and self._node_of.get(board) not in nodes:
                ours[board] = node
                continue
            self._strangers.add(node)
            if board in self._boards:
                logger.warning("a second node says that it is %s: left alone; give every board its own name", board)
        return ours

    def _leave_alone(self, nodes: Collection[int]) -> None:
        """Nodes that did not say who they are, each left alone twice as long as the last time."""
        now_s = self._clock.now_s()
        for node in nodes:
            earlier = self._silent.get(node)
            length_s = SILENT_S if earlier is None else 2 * earlier.length_s
            self._silent[node] = _Pause(length_s, now_s + length_s)

    def _exchange(
        self, questions: Mapping[int, Question], timeout_s: float, kept_s: float | None = None
    ) -> dict[int, Reply]:
        """Push every question and pull replies until all are there or the time is up.

        With ``kept_s`` the unanswered ones are outstanding until so long after they were sent.
        """
        at_s = self._clock.now_s()
        waiting = self._pushed(questions, at_s, at_s + (kept_s or 0.0))
        replies: dict[int, Reply] = {}
        while waiting and self._clock.now_s() - at_s < timeout_s:
            for message in self._grid.pull_messages((*waiting, *self._outstanding.without(waiting))):
                sent = waiting.pop(message.metadata.reply_to_message_id, None)
                if sent is None:
                    self._receive_late(message)
                else:
                    replies[sent.node] = self._received(sent, message)
            if waiting:
                self._clock.sleep_s(POLL_S)
        if kept_s is not None:
            self._outstanding.sent |= waiting
        return replies

    def _pushed(self, questions: Mapping[int, Question], at_s: float, until_s: float) -> dict[str, Sent]:
        """What was sent, by message id; without the messages that the SuperLink did not take."""
        if not questions:
            return {}
        ids = self._grid.push_messages([packed(node, self._claiming(each)) for node, each in questions.items()])
        pairs = zip(ids, questions.items(), strict=True)
        sent = {i: Sent(node, self._name_of(node), each, at_s, until_s) for i, (node, each) in pairs}
        return {message_id: each for message_id, each in sent.items() if message_id}

    def _claiming(self, question: Question) -> Question:
        """The question with the run in whose name it is asked."""
        if self._claim is None:
            return question
        ask = dataclasses.replace(question.ask, run=self._claim.run, claim_s=self._claim.stands_s)
        return dataclasses.replace(question, ask=ask)

    def _pull_overdue(self) -> None:
        """Whatever has come in of the messages that are not waited for any more."""
        ids = self._outstanding.without(())
        for message in self._grid.pull_messages(ids) if ids else ():
            self._receive_late(message)
        self._outstanding.forget(self._clock.now_s())

    def _receive_late(self, message: Message) -> None:
        sent = self._outstanding.sent.pop(message.metadata.reply_to_message_id, None)
        if sent is not None:
            self._late[sent.board] = Late(sent.board, sent.question, self._received(sent, message))

    def _received(self, sent: Sent, message: Message) -> Reply:
        """The reply to a message, from which it is learnt what comes on top of a board's work."""
        reply = unpacked(sent.board, message)
        if reply.answer.report is not None:
            self._overheads_s.append(max(0.0, self._clock.now_s() - sent.at_s - reply.answer.report.work_s))
        return reply

    def _name_of(self, node: int) -> str:
        return next((board for board, known in self._node_of.items() if known == node), f"{UNNAMED}{node}")


def _named(answer: Answer) -> bool:
    """Whether a node has said who it is; one that another run holds does, too."""
    return answer.error is None or answer.held_s is not None
