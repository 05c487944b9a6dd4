"""What travels between server and client, and its JSON form; nothing is pickled, everything is validated on arrival."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from fedge.errors import FedgeError
from fedge.types import EMPTY_TRACE, Front, Measurement, MemoryObservation, RoundGoal, RoundReport, Trace

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ClientState:
    """What a board remembers between rounds; the server keeps it for emulated boards, so that a run can be resumed.

    Its measurements are its own only.
    """

    measurements: tuple[Measurement, ...] = ()
    temperature_c: float | None = None
    rested_at_s: float = 0.0
    """Fleet time at which the board last stopped working."""
    allowed_s: tuple[float, ...] = ()
    """Seconds per minibatch that the deadlines of its last rounds allowed."""
    memory: tuple[MemoryObservation, ...] = ()
    """What its last tries to train taught of its memory, oldest first."""


@dataclass(frozen=True, slots=True)
class RequestMessage:
    """One question to a client: who it is, its front before any round, a round of training; or that the run is over."""

    kind: Literal["hello", "front", "train", "bye"]
    round: int = 0
    start_s: float = 0.0
    """Fleet time at which the round starts."""
    policy: str = ""
    state: ClientState = ClientState()
    goal: RoundGoal | None = None
    model_bytes: int = 0
    proximal_mu: float = 0.0
    shared: tuple[Measurement, ...] = ()
    """What other boards of its kind measured, each with its ``board``."""
    cancel_s: float | None = None
    """Real boards only: seconds of work after which the reply is of no use any more; None: it always is."""
    run: str = ""
    """Real boards only: the run that asks, by a name that it keeps when resumed; a board works for one at a time."""
    claim_s: float = 0.0
    """For how long after its answer the board is kept for that run."""


@dataclass(frozen=True, slots=True)
class ReplyMessage:
    """A client's reply; ``error`` is the reason when there is nothing else."""

    board: str
    front: Front | None = None
    report: RoundReport | None = None
    state: ClientState | None = None
    samples: int | None = None
    """How many training samples the board has; with its first front."""
    error: str | None = None
    cut: bool = False
    """Whether ``error`` is that its time was over too early; ``report`` and ``state`` are of the part that it did."""
    held_s: float | None = None
    """With ``error``: for how many seconds more the board is kept for another run."""
    recorded: bool = False
    """With its first front: whether the board is a recorded folder, of which nothing is measured."""
    trace: Trace = EMPTY_TRACE
    """What its sensors said, down-sampled; ``start_s`` counts from the round's start."""


class InvalidMessage(FedgeError):
    """A message that is not what it claims to be."""


_adapters: dict[type[Any], Any] = {}


def _adapter(record: type[Any]) -> Any:
    """The validator of a record type, built once."""
    from pydantic import TypeAdapter

    if record not in _adapters:
        _adapters[record] = TypeAdapter(record)
    return _adapters[record]


def to_json(value: object) -> str:
    """The JSON text of a record of this file or of ``fedge.types``."""
    return json.dumps(dataclasses.asdict(value), separators=(",", ":"))  # type: ignore[call-overload]


def from_json(record: type[R], text: str) -> R:
    """The record behind ``text``; raises ``InvalidMessage`` when it does not fit."""
    from pydantic import ValidationError

    try:
        value: R = _adapter(record).validate_python(json.loads(text))
    except (ValidationError, json.JSONDecodeError) as error:
        raise InvalidMessage(f"not a {record.__name__}: {error}") from error
    return value
