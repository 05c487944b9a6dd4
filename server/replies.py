"""Messages to and from boards: a question packed, a reply unpacked, and whatever is wrong with it as words."""

from __future__ import annotations

from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from fedge.types import TrainResult
from fedge.wire import Answer, Unreadable, from_json, to_json
from server.flower_messages import arrays_of, message, record_of
from server.port import Question, Reply

UNNAMED = "node "
"""What a node is called before it has told its board's name."""
_TYPES = {"train": MessageType.TRAIN}
_WORDS = {
    5: "the board was lost: it is off or cut off, or its SuperNode ended",
    8: "its client ended in the middle of its work; out of memory? its log says more",
}
"""What Flower's NODE_UNAVAILABLE and CLIENT_APP_CRASHED mean for a user."""


def packed(node: int, question: Question) -> Message:
    """The message to a node."""
    content = RecordDict({"fedge": ConfigRecord({"ask": to_json(question.ask)})})
    if question.arrays is not None:
        content["arrays"] = record_of(question.arrays)
    return message(content, _TYPES.get(question.ask.kind, MessageType.QUERY), node)


def unpacked(board: str, reply: Message) -> Reply:
    """The reply's values; whatever is wrong with it is an answer with ``error``."""
    if reply.has_error():
        code, reason = reply.error.code, reply.error.reason
        words = f"{_WORDS[code]} (Flower error {code})" if code in _WORDS else f"Flower error {code}: {reason}"
        return Reply(Answer(board, error=words))
    try:
        return _read(board, reply.content)
    except Exception as error:  # noqa: BLE001 -- a board may send anything; none of it may end the server
        return Reply(Answer(board, error=f"unreadable reply: {type(error).__name__}: {error}"))


def _read(board: str, content: RecordDict) -> Reply:
    answer = from_json(Answer, str(content.config_records["fedge"]["answer"]))
    names = {answer.board} | ({answer.report.board} if answer.report else set())
    if names != {board} and not board.startswith(UNNAMED):
        raise Unreadable(f"it speaks for {', '.join(sorted(names))}")
    if answer.report is None or answer.cut:
        return Reply(answer)
    arrays = arrays_of(content.array_records["arrays"])
    loss, accuracy = (float(content.metric_records["metrics"][key]) for key in ("loss", "accuracy"))  # type: ignore[arg-type]
    return Reply(answer, TrainResult(arrays, loss, accuracy))
