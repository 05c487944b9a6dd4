"""Records that a board sends between its replies: its progress, and its sensor samples in numbered batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedge.types import EMPTY_TRACE, Trace

VERSION = 1
"""Version of the batch's form; a server accepts no other."""
ActivityState = Literal["idle", "fetching", "probing", "training", "sending", "done", "failed"]


@dataclass(frozen=True, slots=True)
class BoardProgress:
    """A board's current activity.

    Attributes:
        board: Name of the board.
        at_s: Unix time of the report.
        state: Activity.
        device: Kind of board.
        run: Name of the run that it works for; empty: none.
        round: Number of the round.
        steps: Steps of the round's share.
        steps_done: Steps done so far.
        mode: Current power mode, as ``PowerMode`` prints it.
        power_w: Power in watts.
        temperature_c: Hottest zone in degrees C.
        error: Why the board failed.
    """

    board: str
    at_s: float
    """Unix time of the report."""
    state: ActivityState
    device: str = ""
    run: str = ""
    """Name of the run that it works for; empty: none."""
    round: int = 0
    steps: int = 0
    steps_done: int = 0
    mode: str = ""
    """Current power mode, as ``PowerMode`` prints it."""
    power_w: float | None = None
    temperature_c: float | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class TelemetryBatch:
    """One message of a board: samples in unix time, and its progress.

    ``stream`` is new at every start of the sender, and ``seq`` counts from 1 within it, so that the server can identify
    messages that it has already accepted.
    """

    version: int
    board: str
    stream: str
    seq: int
    trace: Trace = EMPTY_TRACE
    progress: BoardProgress | None = None
    lost: int = 0
    """Samples that the board has had to drop in this stream because they could not be sent in time."""
