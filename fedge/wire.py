"""Messages between server and client and their JSON form; nothing is pickled, every message is validated on arrival."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter
from typing import Any, Literal, TypeVar

from fedge.errors import FedgeError
from fedge.json_reader import MalformedJson, parse_json
from fedge.types import (
    EMPTY_TRACE,
    EvaluationReport,
    Front,
    Measurement,
    MemoryObservation,
    ReferenceRows,
    RoundGoal,
    RoundReport,
    Trace,
)

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ClientState:
    """A client's state between rounds; the server stores it for emulated boards, so that a run can be resumed.

    Attributes:
        measurements: The board's own measurements, oldest first.
        temperature_c: Temperature at the end of its last round; None before the first.
        rested_at_s: Simulated time at which the board last finished work.
        allowed_s: Seconds per step that the deadlines of its last rounds allowed.
        memory: Memory outcomes of its last attempts to train, oldest first.
        doubts_recalled: Whether its measurements contradict what was recalled from the fleet's knowledge.
        whole_only: Real boards only: whether its worker refused a narrow network.
    """

    measurements: tuple[Measurement, ...] = ()
    temperature_c: float | None = None
    rested_at_s: float = 0.0
    allowed_s: tuple[float, ...] = ()
    memory: tuple[MemoryObservation, ...] = ()
    doubts_recalled: bool = False
    whole_only: bool = False


@dataclass(frozen=True, slots=True)
class RequestMessage:
    """A request to a client.

    Attributes:
        kind: ``hello`` requests the name, ``front`` the first offer, ``train`` a round of training,
            ``evaluate`` an evaluation of the model on the client's test samples; ``bye`` ends the run.
        model_bytes: Size of the whole model, whatever part the client receives. Emulated links move the model whose
            steps are priced, if its size is known.
        learning_rate: Learning rate of the round; None for the workload's.
        settings: Numbers of the strategy, only for mods, like the next field.
        trainable: Names of the arrays that mods see and encodings change; the others are statistics and counters.
        up_share: Bytes of the encoded update relative to the model's.
        shared: Measurements of other boards of the same kind, each with its ``board``.
        keeps_peers: Whether the client's next request is expected to come with the same ``shared``.
        recalled: The board's own measurements of earlier runs and profiles, from the fleet's knowledge.
        gives_back: Whether what the client measures is kept for later runs.
        recalls_recorded: Real boards only: whether what is recalled, also of other boards, is of recorded folders; None
            if nothing is recalled.
        references: Real boards only: tables of other workloads on such boards, from which the predictor learns.
        link_mbps: Real boards only: measured rate of the client's link in Mbit/s; None if it is not known yet.
        cancel_s: Real boards only: seconds of work after which the reply is no longer needed; None for no limit.
        run: Real boards only: identifier of the run, unchanged when it is resumed; a board works for one run at a time.
        claim_s: Seconds after the reply for which the board stays reserved for the run.
    """

    kind: Literal["hello", "front", "train", "evaluate", "bye"]
    round: int = 0
    start_s: float = 0.0
    policy: str = ""
    state: ClientState = ClientState()
    goal: RoundGoal | None = None
    model_bytes: int = 0
    proximal_mu: float = 0.0
    learning_rate: float | None = None
    shared: tuple[Measurement, ...] = ()
    keeps_peers: bool = False
    recalled: tuple[Measurement, ...] = ()
    gives_back: bool = False
    recalls_recorded: bool | None = None
    references: tuple[ReferenceRows, ...] = ()
    link_mbps: float | None = None
    cancel_s: float | None = None
    run: str = ""
    claim_s: float = 0.0
    settings: Mapping[str, float] = field(default_factory=dict)
    trainable: tuple[str, ...] = ()
    up_share: float = 1.0


@dataclass(frozen=True, slots=True)
class ReplyMessage:
    """A client's reply.

    Attributes:
        samples: Number of training samples; with the first front only.
        error: Reason of a failure; None on success.
        report: With ``error``, unless it was cut: what the client spent on a result that the server did not take.
        unfit: With ``error``: whether the training ran out of memory and nothing smaller may be tried.
        cut: Whether ``error`` is a cancellation; ``report`` and ``state`` then describe the part that was done.
        held_s: With ``error``: seconds for which the board stays reserved for another run.
        held_by: With ``held_s``: identifier of that run.
        recorded: Whether the board is a recorded folder, on which nothing is measured; also of a Flower app.
        trace: Down-sampled sensor trace; ``start_s`` counts from the round's start.
        handled_s: Real boards only, after work: seconds of wall time from the request's arrival to the reply.
    """

    board: str
    front: Front | None = None
    report: RoundReport | None = None
    state: ClientState | None = None
    samples: int | None = None
    error: str | None = None
    unfit: bool = False
    cut: bool = False
    held_s: float | None = None
    held_by: str = ""
    recorded: bool = False
    trace: Trace = EMPTY_TRACE
    handled_s: float | None = None
    evaluation: EvaluationReport | None = None

    @property
    def is_refused(self) -> bool:
        """Whether it reports work of which no result is taken; ``error`` says why."""
        return self.error is not None and self.report is not None and not self.cut


class InvalidMessage(FedgeError):
    """A message that does not match its record type."""


def to_json(value: object) -> str:
    """Return the JSON text of a record of this file or of ``fedge.types``."""
    import pydantic_core

    try:
        text = pydantic_core.to_json(value, inf_nan_mode="constants", fallback=list_fields)
    except pydantic_core.PydanticSerializationError:  # such as the name of a file that is no UTF-8
        text = json.dumps(value, default=list_fields, separators=(",", ":"), ensure_ascii=False).encode(
            "utf-8", "replace"
        )
    return text.decode()


def list_fields(value: Any) -> dict[str, Any]:
    """Return a record's fields by name; unlike ``dataclasses.asdict`` without copying what is in them."""
    if isinstance(value, Mapping):
        return dict(value)
    names, read = _field_reader(value.__class__)
    return dict(zip(names, read(value), strict=True)) if len(names) > 1 else {names[0]: read(value)}


@cache
def _field_reader(kind: Any) -> tuple[tuple[str, ...], Callable[[Any], Any]]:
    """Return the names of a record's fields and the function that reads all of them."""
    names = tuple(field.name for field in dataclasses.fields(kind))
    return names, attrgetter(*names)


def from_json(record: type[R], text: str) -> R:
    """Parse and validate a record.

    Raises:
        InvalidMessage: If ``text`` is not JSON or does not match ``record``.
    """
    from fedge.strict_json import validate_json

    try:
        # What diverges is NaN, and no reason to lose a message or a checkpoint.
        return validate_json(parse_json(text, finite=False), record, "message")
    except MalformedJson as error:
        raise InvalidMessage(f"not a {record.__name__}: {error}") from error
