"""Decides which of a board's messages are new: pure bookkeeping per board.

A board may report only itself, so that it cannot affect another's rows. Within a stream its numbers increase; over all
streams its stretches do not go back in time. Repeated messages, overtaken ones, and those accepted before a restart of
the server are thereby told apart from new ones.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, with_config

from fedge.strict_json import KNOWN_FIELDS, decode_json, equal_version, limit_number
from fedge.telemetry.live_records import (
    OVERLAP_S,
    BoardName,
    BoardProgress,
    MessageCount,
    SequenceNumber,
    StreamName,
    TelemetryBatch,
    trace_bounds_s,
)
from fedge.telemetry.store_records import SampleRow
from fedge.telemetry.trace_operations import OPTIONAL
from fedge.types import Trace

Kind = Literal["taken", "malformed", "huge", "duplicate", "out-of-order", "foreign", "future"]
"""Outcome of a message."""
KINDS: tuple[Kind, ...] = get_args(Kind)
MOST_BOARDS = 10_000
"""Boards remembered; beyond it the board that was silent longest is forgotten. Bounds the memory."""
STREAMS = 8
"""Streams (starts) remembered per board: batches of older ones were dropped by age or size long before."""
AHEAD_S = 60.0
"""Permitted lead of a board's clock over the server's, in seconds."""
VERSION = 1
"""Version of the saved form of the intake."""
AnyTime = Annotated[float, limit_number(-1.0, 1e12)]


@dataclass(frozen=True, slots=True)
class BoardLedger:
    """The server's knowledge of one board; times are unix times.

    Attributes:
        streams: Name and last accepted number of each stream, the newest stream last.
        heard_s: When its last accepted message arrived, on the server's clock.
        latest: Its last stretch since the server was started.
        lost: Stretches that the board had to drop in its present stream.
    """

    streams: tuple[tuple[str, int], ...] = ()
    end_s: float = 0.0
    heard_s: float = 0.0
    counts: Mapping[str, int] = field(default_factory=dict)
    progress: BoardProgress | None = None
    latest: SampleRow | None = None
    lost: int = 0

    def seq(self, stream: str) -> int:
        """Return the last accepted number of a stream; 0 for an unknown one."""
        return dict(self.streams).get(stream, 0)


@with_config(KNOWN_FIELDS)
@dataclass(frozen=True, slots=True)
class _SavedLedger:
    """The saved part of a ``BoardLedger``."""

    streams: tuple[tuple[StreamName, SequenceNumber], ...]
    end_s: AnyTime
    heard_s: AnyTime
    counts: dict[str, MessageCount]


@with_config(KNOWN_FIELDS)
@dataclass(frozen=True, slots=True)
class _SavedIntake:
    """The saved form of an ``Intake``."""

    version: Annotated[int, Field(strict=True), equal_version(VERSION)]
    boards: dict[BoardName, _SavedLedger]


@dataclass(frozen=True, slots=True)
class MessageVerdict:
    """The outcome of a message.

    Attributes:
        seq: Last accepted number of the message's stream.
        ledger: The board's ledger once they are stored.
    """

    kind: Kind
    board: str
    seq: int
    rows: tuple[SampleRow, ...]
    ledger: BoardLedger


EMPTY_LEDGER = BoardLedger()


class Intake:
    """The ledgers of all boards. ``judge`` changes nothing: store the rows first, then ``accept``.

    Args:
        ends_s: Ends of the last rows in the store, by board: rows stored just before a crash are not accepted twice.
    """

    def __init__(self, ends_s: Mapping[str, float] | None = None) -> None:
        self.ledgers: OrderedDict[str, BoardLedger] = OrderedDict()
        for board, end_s in (ends_s or {}).items():
            self.put(board, BoardLedger(end_s=end_s))

    def judge(self, speaker: str, batch: TelemetryBatch, now_s: float) -> MessageVerdict:
        """Classify a message without changing anything.

        ``speaker`` is the board that sent it, as authenticated; ``now_s`` is unix time.
        """
        ledger = self.ledgers.get(speaker, EMPTY_LEDGER)
        last = ledger.seq(batch.stream)
        kind = _classify_message(speaker, batch, ledger, now_s)
        if kind != "taken":
            return MessageVerdict(kind, board=speaker, seq=last, rows=(), ledger=_count_message(ledger, kind))
        rows = trace_to_rows(batch.board, batch.trace)
        progress = ledger.progress if batch.progress is None else batch.progress
        after = replace(
            _count_message(ledger, kind),
            streams=_with_stream_number(ledger.streams, batch.stream, batch.seq),
            end_s=max(ledger.end_s, trace_bounds_s(batch.trace)[1]) if rows else ledger.end_s,
            heard_s=now_s,
            progress=progress,
            latest=rows[-1] if rows else ledger.latest,
            lost=batch.lost,
        )
        return MessageVerdict(kind, board=speaker, seq=batch.seq, rows=rows, ledger=after)

    def accept(self, verdict: MessageVerdict) -> None:
        """Apply a verdict after its rows were stored."""
        self.put(verdict.board, verdict.ledger)

    def refuse(self, speaker: str, kind: Kind) -> None:
        """Count a message that could not be decoded."""
        self.put(speaker, _count_message(self.ledgers.get(speaker, EMPTY_LEDGER), kind))

    def boards(self) -> dict[str, BoardLedger]:
        """Return the ledgers by board, sorted by name."""
        return dict(sorted(self.ledgers.items()))

    def put(self, board: str, ledger: BoardLedger) -> None:
        """Set the ledger of a board; beyond ``MOST_BOARDS`` the one that was silent longest is forgotten."""
        self.ledgers[board] = ledger
        self.ledgers.move_to_end(board)
        while len(self.ledgers) > MOST_BOARDS:
            self.ledgers.popitem(last=False)


def trace_to_rows(board: str, trace: Trace) -> tuple[SampleRow, ...]:
    """Convert a trace to rows, one per stretch, outside of any round."""
    optional: dict[str, Any] = {name: getattr(trace, name) for name in OPTIONAL}
    return tuple(
        SampleRow(
            at_s=trace.start_s[i],
            span_s=trace.span_s[i],
            round=0,
            board=board,
            power_w=trace.power_w[i],
            rails_w={rail: watts for rail, column in trace.rails_w.items() if (watts := column[i]) is not None},
            **{name: column[i] for name, column in optional.items()},
        )
        for i in range(len(trace))
    )


def encode_intake(intake: Intake) -> bytes:
    """Encode streams, ends and counts as JSON; progress is not saved."""
    names = [item.name for item in fields(_SavedLedger)]
    ledgers = {board: {name: getattr(ledger, name) for name in names} for board, ledger in intake.ledgers.items()}
    return json.dumps({"version": VERSION, "boards": ledgers}, separators=(",", ":")).encode("utf-8")


def decode_intake(data: bytes, ends_s: Mapping[str, float] | None = None) -> Intake:
    """Restore a saved intake.

    ``ends_s`` are the ends of the last rows in the store, by board; they correct the saved ones.

    Raises:
        MalformedJson: The data is invalid or of another version.
    """
    saved, ends_s = decode_json(data, _SavedIntake, "books").boards, ends_s or {}
    intake = Intake({board: end_s for board, end_s in ends_s.items() if board not in saved})
    for board, ledger in saved.items():
        end_s = max(ledger.end_s, ends_s.get(board, ledger.end_s))
        counts: Mapping[str, int] = {name: count for name, count in ledger.counts.items() if name in KINDS}
        intake.put(board, BoardLedger(ledger.streams, end_s, ledger.heard_s, counts))
    return intake


def _classify_message(speaker: str, batch: TelemetryBatch, ledger: BoardLedger, now_s: float) -> Kind:
    if batch.board != speaker:
        return "foreign"
    if batch.seq <= ledger.seq(batch.stream):
        return "duplicate"
    if batch.progress is not None and batch.progress.at_s > now_s + AHEAD_S:
        return "future"
    if not batch.trace:
        return "taken"
    start_s, end_s = trace_bounds_s(batch.trace)
    if end_s > now_s + AHEAD_S:
        return "future"
    return "out-of-order" if start_s < ledger.end_s - OVERLAP_S else "taken"


def _count_message(ledger: BoardLedger, kind: Kind) -> BoardLedger:
    return replace(ledger, counts={**ledger.counts, kind: ledger.counts.get(kind, 0) + 1})


def _with_stream_number(streams: tuple[tuple[str, int], ...], stream: str, seq: int) -> tuple[tuple[str, int], ...]:
    """Return the streams with one more accepted number, which makes its stream the newest; the oldest are dropped."""
    others = tuple(each for each in streams if each[0] != stream)
    return (*others, (stream, seq))[-STREAMS:]
