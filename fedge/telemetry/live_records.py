"""What a board tells of itself between its replies: what it does now, and its sensors, in batches that are numbered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedge.types import EMPTY_TRACE, Trace

VERSION = 1
"""Of the batch's form; a server takes no other."""
ActivityState = Literal["idle", "fetching", "probing", "training", "sending", "done", "failed"]


@dataclass(frozen=True, slots=True)
class BoardProgress:
    """What a board is doing now; ``steps_done`` of ``steps`` minibatches of the round's share."""

    board: str
    at_s: float
    """Unix time of this statement."""
    state: ActivityState
    device: str = ""
    run: str = ""
    """The name of the run that it works for; empty: none."""
    round: int = 0
    steps: int = 0
    steps_done: int = 0
    mode: str = ""
    """The power mode that is set, as ``PowerMode`` prints it."""
    power_w: float | None = None
    temperature_c: float | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class TelemetryBatch:
    """One message of a board: samples in unix time, and its progress.

    ``stream`` is new whenever the sender starts, ``seq`` counts from 1 within it: so the server knows what it has.
    """

    version: int
    board: str
    stream: str
    seq: int
    trace: Trace = EMPTY_TRACE
    progress: BoardProgress | None = None
    lost: int = 0
    """Samples that the board had to throw away so far in this stream, because nobody took them in time."""
