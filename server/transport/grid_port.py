"""The client port over Flower's Grid: push requests, then pull replies until enough have arrived or time is up."""

from __future__ import annotations

import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from flwr.app import Message

from fedge.errors import RunFailed
from fedge.protocols import Clock
from fedge.wire import ReplyMessage, RequestMessage
from server.transport.claim_terms import ClaimTerms
from server.transport.client_port import IncomingReply, LateReply, OutgoingRequest, ReplyPredicate, never_enough
from server.transport.message_codec import decode_reply, encode_request
from server.transport.node_registry import NodeAddress, NodeRegistry
from server.transport.outstanding import GIVE_UP_FACTOR, MAX_OVERHEADS, OutstandingRequests, SentRequest, reply_wait_s

POLL_S = 0.05
MIN_TRANSFER_SHARE = 0.5
"""Least share of the time beyond a board's own that counts as transfer. A default: messages without arrays wait for
polls of up to seconds, so the least that was seen may exceed what this message waited. The rate is at most doubled.
"""
FIRST_HELLO_WITHIN_S = 60.0
"""Seconds that a node has to identify itself at the start of a run. A default: Flower starts a process for every
message, which takes long on a slow board.
"""
HELLO_WITHIN_S = 30.0
"""Seconds that a node which appears during a run has to identify itself; shorter, because the round waits for it."""
BYE_WITHIN_S = 10.0
"""Seconds in which boards are told that the run is over. A default: it delays the end of the run, and a board that
misses the message is free when its claim expires.
"""
NO_HELLO_TEXT = "silence (a board that is at work for another run says nothing until its round is over)"
REJECTED_TEXT = "the SuperLink did not take its message; its log says why (too large?)"

logger = logging.getLogger(__name__)


class MessageGrid(Protocol):
    """The two methods of ``flwr.serverapp.Grid`` that move messages."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]: ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]: ...


class FlowerNode(Protocol):
    """Flower's description of a connected node."""

    @property
    def node_id(self) -> int: ...

    @property
    def last_activated_at(self) -> str: ...


class FlowerGrid(MessageGrid, Protocol):
    """The three methods of ``flwr.serverapp.Grid`` that are used."""

    def get_nodes(self) -> Iterable[FlowerNode]: ...


def push(grid: MessageGrid, messages: Sequence[Message]) -> list[str]:
    """Push messages and return their ids, with "" for each that the SuperLink refused."""
    ids = list(grid.push_messages(messages))
    return ids + [""] * (len(messages) - len(ids))  # Flower returns no ids if the whole push is too large


def poll(
    grid: MessageGrid,
    clock: Clock,
    waiting: Collection[str],
    ends_s: float,
    list_others: Callable[[], Iterable[str]] = tuple,
    *,
    every_s: float = POLL_S,
) -> Iterator[Iterable[Message]]:
    """Yield what arrives, until the caller has removed all ids from ``waiting`` or the time is up.

    Args:
        waiting: Ids of the messages whose replies are waited for.
        ends_s: Time on the clock at which the wait ends.
        list_others: Returns ids of messages whose replies are pulled too but not waited for.
        every_s: Seconds between two looks for replies.
    """
    while waiting and clock.now_s() < ends_s:
        yield grid.pull_messages((*waiting, *list_others()))
        if waiting:
            clock.sleep_s(every_s)


@dataclass(frozen=True, slots=True, eq=False)
class _ExchangeResult:
    """Outcome of an exchange: replies by node, and unanswered requests by message id."""

    replies: dict[int, IncomingReply]
    waiting: dict[str, SentRequest]


class GridPort:
    """A ``ClientPort`` and ``OverdueReplies`` over Flower; nodes are identified by the board names that they report."""

    def __init__(
        self,
        grid: FlowerGrid,
        boards: Collection[str],
        clock: Clock,
        claiming: ClaimTerms,
        connect_timeout_s: float = 120.0,
    ) -> None:
        """Create the port.

        Args:
            claiming: Claim of the run on the boards.
            connect_timeout_s: Seconds to wait for the nodes of all boards at the start of a run; one is enough then.
        """
        self._grid = grid
        self._clock = clock
        self._connect_timeout_s = connect_timeout_s
        self._claiming = claiming
        self._roll = NodeRegistry(tuple(boards))
        self._outstanding = OutstandingRequests()
        self._overheads_s: deque[float] = deque(maxlen=MAX_OVERHEADS)
        """Seconds that the newest replies took beyond their boards' work."""
        self._floors_s: dict[str, float] = {}
        """Fewest seconds by board that a message without arrays took beyond the board's own: what Flower takes."""

    def ask(
        self, questions: Mapping[str, OutgoingRequest], timeout_s: float, enough: ReplyPredicate = never_enough
    ) -> Mapping[str, IncomingReply]:
        self._pull_overdue()
        self._wait_for_nodes()
        self._identify_nodes()
        self._take_over()
        if any(question.ask.kind == "train" for question in questions.values()):
            self._claiming.begin_round(self._clock.now_s())
        replies = {
            board: reply for board, each in questions.items() if (reply := self._reply_without_asking(board, each.ask))
        }
        reached = {board: question for board, question in questions.items() if board not in replies}
        replies |= self._ask_nodes(reached, timeout_s, enough)
        for reply in replies.values():
            self._roll.record_foreign_claim(reply.answer, self._clock.now_s())
        return {board: replies[board] for board in questions}

    def busy_boards(self) -> Mapping[str, int]:
        return self._outstanding.busy_boards(self._roll.list_addresses())

    def take_late_replies(self) -> Sequence[LateReply]:
        self._pull_overdue()
        return self._outstanding.take_late_replies()

    def wait(self, timeout_s: float) -> float:
        started_s = self._clock.now_s()
        self._refresh_nodes()
        self._pull_overdue()
        while self._only_waits() and self._clock.now_s() - started_s < timeout_s:
            self._clock.sleep_s(POLL_S)
            self._refresh_nodes()
            self._pull_overdue()
            self._take_over()
        return self._clock.now_s() - started_s

    def release_boards(self) -> None:
        """Tell the claimed boards that the run is over; never raises, since the run has ended anyway."""
        try:
            self._refresh_nodes()
            busy = self.busy_boards()
            boards = [board for board in self._roll.list_available(self._clock.now_s()) if board not in busy]
            seats = self._roll.list_addresses()
            self._exchange(
                {seats[board].node: OutgoingRequest(RequestMessage("bye")) for board in boards}, BYE_WITHIN_S
            )
        except Exception as error:  # noqa: BLE001 -- the outcome of the run must not depend on this message
            logger.warning("the boards could not be told that the run is over, their claims will end: %s", error)

    def _refresh_nodes(self) -> None:
        self._roll.up = {node.node_id: node.last_activated_at for node in self._grid.get_nodes()}

    def _only_waits(self) -> bool:
        """Return True if boards are connected and each is busy or claimed by another run."""
        busy = self.busy_boards()
        if all(board in busy for board in self._roll.list_available(self._clock.now_s())):
            return bool(busy) or bool(self._roll.list_foreign_claims(self._clock.now_s()))
        return False

    def _take_over(self) -> None:
        """Release boards in the name of their run where that is over: a run that was killed could not do so itself."""
        claims, seats = self._roll.list_foreign_claims(self._clock.now_s()), self._roll.list_addresses()
        over = {board: run for board, run in claims.items() if self._claiming.is_over(run)}
        for board, run in over.items():
            logger.warning("%s worked for run %s, which is over: taken over", board, run)
            self._roll.forget_foreign_claim(board)
        self._exchange(
            {seats[board].node: OutgoingRequest(RequestMessage("bye", run=run)) for board, run in over.items()},
            BYE_WITHIN_S,
        )

    def _reply_without_asking(self, board: str, ask: RequestMessage) -> IncomingReply | None:
        """Return an error reply for a board that cannot be asked; None if it can."""
        absence = self._roll.explain_absence(board, ask.round)
        if absence is not None:
            return IncomingReply(ReplyMessage(board, error=_add_advice(board, absence)))
        held = self._roll.find_foreign_claim(board, self._clock.now_s())
        if held is not None:
            return IncomingReply(held)
        busy = self.busy_boards()
        return (
            IncomingReply(ReplyMessage(board, error=f"still at work on round {busy[board]}")) if board in busy else None
        )

    def _ask_nodes(
        self, questions: Mapping[str, OutgoingRequest], timeout_s: float, enough: ReplyPredicate
    ) -> dict[str, IncomingReply]:
        """Return a reply of every board; requests without a reply by the end become outstanding."""
        began_s, overheads_s = self._clock.now_s(), tuple(self._overheads_s)
        within_s = min(
            (reply_wait_s(timeout_s, each.within_s, overheads_s) for each in questions.values()), default=timeout_s
        )
        seats = self._roll.list_addresses()
        nodes = {seats[board].node: question for board, question in questions.items()}
        done = self._exchange(nodes, within_s, GIVE_UP_FACTOR * timeout_s, enough)
        spare = bool(done.waiting) and enough(done.replies.values())
        for message_id, sent in done.waiting.items():
            self._outstanding.sent[message_id] = dataclasses.replace(sent, spare=spare)
        waited_s = self._clock.now_s() - began_s
        silent = {
            sent.board: self._build_missing_reply(sent, within_s, waited_s, spare) for sent in done.waiting.values()
        }
        return silent | {self._roll.board_at(node): reply for node, reply in done.replies.items()}

    def _build_missing_reply(self, sent: SentRequest, within_s: float, waited_s: float, spare: bool) -> IncomingReply:
        """Build the reply of a board that sent none in time: cut off if the round has a cutoff, otherwise failed."""
        if spare:
            error = f"cancelled after {waited_s:.0f} s: enough other boards were done"
            return IncomingReply(ReplyMessage(sent.board, error=error, cut=True))
        error = _add_advice(sent.board, f"no reply within {within_s:.4g} s")
        return IncomingReply(ReplyMessage(sent.board, error=error, cut=sent.question.within_s is not None))

    def _wait_for_nodes(self) -> None:
        """Update which nodes are connected; before any board is identified, wait for the whole fleet until the timeout.

        Raises:
            RunFailed: No node connects.
        """
        started_s, wanted = self._clock.now_s(), len(self._roll.boards)
        self._refresh_nodes()
        if self._roll.has_boards:
            return
        while len(self._roll.up) < wanted and self._clock.now_s() - started_s <= self._connect_timeout_s:
            self._clock.sleep_s(POLL_S)
            self._refresh_nodes()
        if not self._roll.up:
            raise RunFailed(f"no node came up in {self._connect_timeout_s:.0f} s")

    def _identify_nodes(self) -> None:
        """Ask every new node for its board name; raise ``RunFailed`` if none belongs to the fleet."""
        unknown = self._roll.list_unidentified(self._clock.now_s())
        if not unknown:
            return
        within_s = HELLO_WITHIN_S if self._roll.has_boards else max(FIRST_HELLO_WITHIN_S, self._connect_timeout_s)
        replies = self._exchange({node: OutgoingRequest(RequestMessage("hello")) for node in unknown}, within_s).replies
        answers = {node: replies[node].answer for node in unknown if node in replies}
        self._roll.record_hellos(unknown, answers, self._clock.now_s())
        if not self._roll.has_boards:
            reasons = (answer.error for answer in answers.values() if answer.error)
            names = sorted(answer.board for answer in answers.values() if answer.error is None)
            strange = f"the boards that did, {', '.join(names)}, are not in this fleet"
            raise RunFailed(f"no board answered: {next(reasons, strange if names else NO_HELLO_TEXT)}")

    def _exchange(
        self,
        questions: Mapping[int, OutgoingRequest],
        timeout_s: float,
        kept_s: float = 0.0,
        enough: ReplyPredicate = never_enough,
    ) -> _ExchangeResult:
        """Push requests and pull replies until all or enough have arrived or the time is up.

        Args:
            timeout_s: Maximum wait in seconds of wall time.
            kept_s: Seconds after sending for which an unanswered request stays outstanding.
        """
        at_s = self._clock.now_s()
        replies, waiting = self._push(questions, at_s, at_s + kept_s)
        ends_s = at_s + timeout_s
        for pulled in poll(
            self._grid,
            self._clock,
            waiting,
            ends_s,
            list_others=lambda: self._outstanding.list_ids_except(waiting),
        ):
            fresh = 0
            for message in pulled:
                sent = waiting.pop(message.metadata.reply_to_message_id, None)
                if sent is None:
                    self._receive_late(message)
                else:
                    replies[sent.address.node] = self._decode_timed(sent, message)
                    fresh += 1
            if fresh and enough(replies.values()):
                break
        return _ExchangeResult(replies, waiting)

    def _push(
        self, questions: Mapping[int, OutgoingRequest], at_s: float, until_s: float
    ) -> tuple[dict[int, IncomingReply], dict[str, SentRequest]]:
        """Send requests; return error replies for those that the SuperLink refused, and the sent ones by message id."""
        if not questions:
            return {}, {}
        requests = {node: self._claiming.add_to_request(question) for node, question in questions.items()}
        ids = push(self._grid, [encode_request(node, question) for node, question in requests.items()])
        refused: dict[int, IncomingReply] = {}
        sent: dict[str, SentRequest] = {}
        for message_id, (node, question) in zip(ids, requests.items(), strict=True):
            board = self._roll.board_at(node)
            if message_id:
                seat = NodeAddress(node, self._roll.up.get(node, ""))
                sent[message_id] = SentRequest(seat, board=board, question=question, at_s=at_s, until_s=until_s)
            else:
                refused[node] = IncomingReply(ReplyMessage(board, error=REJECTED_TEXT))
        return refused, sent

    def _pull_overdue(self) -> None:
        """Pull replies to requests that are no longer waited for."""
        ids = self._outstanding.list_ids_except(())
        for message in self._grid.pull_messages(ids) if ids else ():
            self._receive_late(message)
        self._outstanding.drop_expired(self._clock.now_s())

    def _receive_late(self, message: Message) -> None:
        """Record a reply that no round waits for; a reply to a dropped or already answered request is ignored."""
        message_id = message.metadata.reply_to_message_id
        sent = self._outstanding.sent.get(message_id)
        if sent is not None:
            self._outstanding.record_reply(message_id, self._decode_timed(sent, message))

    def _decode_timed(self, sent: SentRequest, message: Message) -> IncomingReply:
        """Decode a reply and record how much longer it took than the board's work."""
        reply, took_s = decode_reply(sent.board, message), self._clock.now_s() - sent.at_s
        answer = reply.answer
        if answer.report is not None:
            self._overheads_s.append(max(0.0, took_s - answer.report.work_s))
        beyond_s = took_s - (answer.handled_s or 0.0)
        if sent.question.arrays is None and answer.error is None and beyond_s > 0.0:
            self._floors_s[answer.board] = min(beyond_s, self._floors_s.get(answer.board, beyond_s))
        return _add_link_rate(sent, reply, beyond_s, self._floors_s.get(answer.board, 0.0))


def _add_advice(board: str, error: str) -> str:
    """Add to the error of a board how to find its cause."""
    return f"{error}; `fedge fleet status --limit {board}` says what is wrong"


def _add_link_rate(sent: SentRequest, reply: IncomingReply, beyond_s: float, floor_s: float) -> IncomingReply:
    """Add the rate of both transfers to a real board's report: their size over the time that they took.

    An estimate: replies are looked for every ``POLL_S``, and Flower's node asks for messages once in a while, so that
    the overhead of this message may be more or less than the least of messages without arrays.

    Args:
        beyond_s: Seconds that both took beyond the board's own.
        floor_s: Seconds that messages without arrays take beyond it.
    """
    answer, asked, trained = reply.answer, sent.question.arrays, reply.trained
    if answer.report is None or answer.handled_s is None or asked is None or trained is None or beyond_s <= 0.0:
        return reply
    moved_bytes = sum(array.nbytes for arrays in (asked, trained.arrays) for array in arrays.values())
    transfer_s = max(beyond_s - floor_s, MIN_TRANSFER_SHARE * beyond_s, POLL_S)
    report = dataclasses.replace(answer.report, link_mbps=8e-6 * moved_bytes / transfer_s)
    return dataclasses.replace(reply, answer=dataclasses.replace(answer, report=report))
