"""Encoding of requests and decoding of replies; anything wrong with a reply becomes its ``error``."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from fedge.errors import RunFailed, describe_error, one_line
from fedge.flower.messages import build_message, from_array_record, name_part, to_array_record
from fedge.types import Floats32, TrainResult
from fedge.wire import InvalidMessage, ReplyMessage, from_json, to_json
from server.transport.client_port import LOST_PROCESS_TEXT, IncomingReply, OutgoingRequest

UNNAMED_PREFIX = "node "
"""Prefix of the name of a node that has not reported its board name."""
_TYPES = {"train": MessageType.TRAIN, "evaluate": MessageType.EVALUATE}
_ERROR_TEXTS = {
    5: "the board was lost: it is off or cut off, or its SuperNode ended",
    8: "its client ended in the middle of its work; out of memory? its log says more",
}
"""What Flower's NODE_UNAVAILABLE and CLIENT_APP_CRASHED mean for a user."""
_LOST_PROCESS = re.compile(
    r"<class 'ray\.exceptions\.(Actor\w*Error|RayActorError|WorkerCrashedError|NodeDiedError|OutOfMemoryError"
    r"|OwnerDiedError)'>"
)
"""Reasons of Ray's own in Flower's simulation, which never replaces an actor that has ended: every later message that
the actor would get fails as well. Errors of a ClientApp have other types.
"""


def encode_request(node: int, question: OutgoingRequest) -> Message:
    """Encode a request to a real board's node as a Flower message."""
    content = RecordDict({"fedge": ConfigRecord({"ask": to_json(question.ask)})})
    if question.arrays is not None:
        content["arrays"] = to_array_record(question.arrays)
    return _address_content(content, question, node)


def encode_group(
    node: int, questions: Mapping[int, OutgoingRequest], arrays: ArrayRecord | None, run: tuple[str, str]
) -> Message:
    """Encode requests that any node answers as the boards with these numbers; they have the same kind and arrays.

    The measurements of peers, most of a request, are the same for many boards: they are sent once.

    Args:
        arrays: The global model of all these requests if the clients are to train, else None.
        run: The experiment as JSON, and the folder of the run or "".
    """
    experiment, folder = run
    asks = [question.ask for question in questions.values()]
    shared = {id(ask.shared): ask.shared for ask in asks}
    places = {key: place for place, key in enumerate(shared)}
    record = ConfigRecord(
        {
            "experiment": experiment,
            "folder": folder,
            "boards": list(questions),
            "asks": [to_json(replace(ask, shared=())) for ask in asks],
            "shared": [to_json(measurements) for measurements in shared.values()],
            "shared_of": [places[id(ask.shared)] for ask in asks],
        }
    )
    content = RecordDict({"fedge": record})
    if arrays is not None:
        content["arrays"] = arrays
    for place, question in enumerate(questions.values()):
        if question.residual is not None:
            content[name_part("residual", place)] = to_array_record({"residual": question.residual})
    return _address_content(content, next(iter(questions.values())), node)


def _address_content(content: RecordDict, question: OutgoingRequest, node: int) -> Message:
    return build_message(content, _TYPES.get(question.ask.kind, MessageType.QUERY), node)


def read_process(reply: Message) -> int | None:
    """Return the id of the process that answered for a group of emulated clients; None if it is not known."""
    process = None if reply.has_error() else reply.content.config_records["fedge"].get("process")
    return process if isinstance(process, int) else None


def decode_group(questions: Mapping[str, OutgoingRequest], reply: Message) -> dict[str, IncomingReply]:
    """Decode the reply to a group of requests to emulated clients, as ``decode_reply`` does; by board, in order."""
    return {
        board: decode_reply(board, reply, (place, question))
        for place, (board, question) in enumerate(questions.items())
    }


def check_processes(boards: Collection[str], reply: Message) -> None:
    """Raise ``RunFailed`` if a process of the simulation has ended: the run would count its clients as failed."""
    if reply.has_error() and (lost := _LOST_PROCESS.match(str(reply.error.reason))):
        first, *others = boards
        work = f"it worked for {first} and {len(others)} more" if others else f"{first} worked"
        raise RunFailed(f"{LOST_PROCESS_TEXT} ({lost[1]}) while {work}; out of memory?")


def decode_reply(board: str, reply: Message, emulated: tuple[int, OutgoingRequest] | None = None) -> IncomingReply:
    """Decode a Flower message; a reply in the name of another client than ``board`` is rejected.

    Args:
        emulated: Of an emulated client, its place in the group of the message, and the request: what its encodings left
            out is kept here. None for a real board, which keeps it.

    Returns:
        The reply, with ``error`` if Flower reports an error or the content is invalid.
    """
    if reply.has_error():
        code, reason = reply.error.code, reply.error.reason
        words = (
            f"{_ERROR_TEXTS[code]} (Flower error {code})"
            if code in _ERROR_TEXTS
            else f"Flower error {code}: {one_line(reason)}"
        )
        return IncomingReply(ReplyMessage(board, error=words))
    try:
        if emulated is None:
            return _decode_content(board, reply.content, None)
        place, question = emulated
        return _decode_content(board, _take_part(reply.content, place), question)
    except Exception as error:  # noqa: BLE001 -- a reply may contain anything, and must not end the server
        return IncomingReply(ReplyMessage(board, error=f"unreadable reply: {describe_error(error)}"))


def _take_part(content: RecordDict, place: int) -> RecordDict:
    """Return the reply of the client at this place of a group, as a client alone would send it."""
    answers: Any = content.config_records["fedge"]["answers"]
    part = RecordDict({"fedge": ConfigRecord({"answer": str(answers[place])})})
    for name in ("arrays", "metrics", "residual"):
        if (named := name_part(name, place)) in content:
            part[name] = content[named]
    return part


def _decode_content(board: str, content: RecordDict, emulated: OutgoingRequest | None) -> IncomingReply:
    answer = from_json(ReplyMessage, str(content.config_records["fedge"]["answer"]))
    if answer.error is not None:  # the text of a board, or of a task on it, goes to terminals and pages
        answer = replace(answer, error=one_line(answer.error))
    names = {answer.board} | ({answer.report.board} if answer.report else set())
    if names != {board} and not board.startswith(UNNAMED_PREFIX):
        raise InvalidMessage(f"it speaks for {', '.join(sorted(names))}")
    if answer.report is None or answer.cut:
        return IncomingReply(answer)
    arrays = from_array_record(content.array_records["arrays"])
    metrics: dict[str, Any] = dict(content.metric_records["metrics"])
    loss, accuracy = float(metrics.pop("loss")), float(metrics.pop("accuracy"))
    added = {name: float(value) for name, value in metrics.items()}
    residual = None if emulated is None else _read_residual(content, emulated)
    return IncomingReply(answer, TrainResult(arrays, loss, accuracy, added, residual=residual))


def _read_residual(content: RecordDict, question: OutgoingRequest) -> Floats32 | None:
    """Return what a client's encoding left out: at most as many values as it was asked to train; None for nothing."""
    kept, sent = content.array_records.get("residual"), question.arrays or {}
    if kept is None:
        return None
    residual = np.asarray(kept["residual"].numpy(), dtype=np.float32)
    most = sum(sent[name].size for name in question.ask.trainable)
    if residual.ndim != 1 or len(residual) > most:
        raise InvalidMessage(f"a residual of shape {residual.shape}; the model has {most} trained values")
    return residual
