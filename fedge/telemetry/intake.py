"""Decides which of a board's messages are new: pure bookkeeping per board.

A board may report only itself, so that it cannot affect another's rows. Within a stream its numbers increase; over all
streams its stretches do not go back in time. Repeated messages, overtaken ones, and those accepted before a restart of
the server are thereby told apart from new ones.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from fedge.telemetry.board_messages import MOST_SEQ, OVERLAP_S, STREAM, trace_bounds_s
from fedge.telemetry.live_records import BoardProgress, TelemetryBatch
from fedge.telemetry.store_records import SampleRow
from fedge.telemetry.strict_json import (
    BOARD,
    MalformedJson,
    NumberRange,
    check_fields,
    check_int,
    check_number,
    check_pattern,
    parse_json,
)
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
ANY_TIME = NumberRange(-1.0, 1e12)


@dataclass(frozen=True, slots=True)
class BoardLedger:
    """The server's knowledge of one board; times are unix times.

    Attributes:
        streams: Name and last accepted number of each stream, the newest stream last.
        end_s: End of its last stretch.
        heard_s: When its last accepted message arrived, on the server's clock.
        progress: Its last reported progress.
        latest: Its last stretch since the server was started.
        lost: Stretches that the board had to drop in its present stream.
        counts: Number of messages by outcome.
    """

    streams: tuple[tuple[str, int], ...] = ()
    """Name and last accepted number of each stream, the newest stream last."""
    end_s: float = 0.0
    """End of its last stretch."""
    heard_s: float = 0.0
    """When its last accepted message arrived, on the server's clock."""
    progress: BoardProgress | None = None
    latest: SampleRow | None = None
    """Its last stretch since the server was started."""
    lost: int = 0
    """Stretches that the board had to drop in its present stream."""
    counts: Mapping[str, int] = field(default_factory=dict)

    def seq(self, stream: str) -> int:
        """Return the last accepted number of a stream; 0 for an unknown one."""
        return dict(self.streams).get(stream, 0)


@dataclass(frozen=True, slots=True)
class MessageVerdict:
    """The outcome of a message, its new rows, and the board's ledger once they are stored."""

    kind: Kind
    board: str
    seq: int
    """Last accepted number of the message's stream."""
    rows: tuple[SampleRow, ...]
    ledger: BoardLedger


EMPTY_LEDGER = BoardLedger()


class Intake:
    """The ledgers of all boards. ``judge`` changes nothing: store the rows first, then ``accept``.

    Args:
        ends_s: Ends of the last rows in the store, by board: rows stored just before a crash are not accepted twice.
        most_boards: Number of boards remembered.
    """

    def __init__(self, ends_s: Mapping[str, float] | None = None, most_boards: int = MOST_BOARDS) -> None:
        self._boards: OrderedDict[str, BoardLedger] = OrderedDict()
        self._most = most_boards
        for board, end_s in (ends_s or {}).items():
            self._put(board, BoardLedger(end_s=end_s))

    def judge(self, speaker: str, batch: TelemetryBatch, now_s: float) -> MessageVerdict:
        """Classify a message without changing anything.

        Args:
            speaker: The board that sent it, as authenticated.
            batch: The message.
            now_s: Time of arrival, unix time.
        """
        heard = self._boards.get(speaker, EMPTY_LEDGER)
        last = heard.seq(batch.stream)
        kind = _classify_message(speaker, batch, heard, now_s)
        if kind != "taken":
            return MessageVerdict(kind, board=speaker, seq=last, rows=(), ledger=_count_message(heard, kind))
        rows = trace_to_rows(batch.board, batch.trace)
        progress = heard.progress if batch.progress is None else batch.progress
        after = replace(
            _count_message(heard, kind),
            streams=_with_stream_number(heard.streams, batch.stream, batch.seq),
            end_s=max(heard.end_s, trace_bounds_s(batch.trace)[1]) if rows else heard.end_s,
            heard_s=now_s,
            progress=progress,
            latest=rows[-1] if rows else heard.latest,
            lost=batch.lost,
        )
        return MessageVerdict(kind, board=speaker, seq=batch.seq, rows=rows, ledger=after)

    def accept(self, verdict: MessageVerdict) -> None:
        """Apply a verdict after its rows were stored."""
        self._put(verdict.board, verdict.ledger)

    def refuse(self, speaker: str, kind: Kind) -> None:
        """Count a message that could not be decoded."""
        self._put(speaker, _count_message(self._boards.get(speaker, EMPTY_LEDGER), kind))

    def counts(self, board: str) -> Mapping[str, int]:
        """Return the number of a board's messages by outcome; every outcome is present."""
        counted = self._boards.get(board, EMPTY_LEDGER).counts
        return {kind: counted.get(kind, 0) for kind in KINDS}

    def boards(self) -> dict[str, BoardLedger]:
        """Return the ledgers by board, sorted by name."""
        return dict(sorted(self._boards.items()))

    def _put(self, board: str, heard: BoardLedger) -> None:
        self._boards[board] = heard
        self._boards.move_to_end(board)
        while len(self._boards) > self._most:
            self._boards.popitem(last=False)


def trace_to_rows(board: str, trace: Trace) -> tuple[SampleRow, ...]:
    """Convert a trace to rows, one per stretch, outside of any round."""
    return tuple(
        SampleRow(
            at_s=trace.start_s[i],
            span_s=trace.span_s[i],
            round=0,
            board=board,
            power_w=trace.power_w[i],
            temperature_c=trace.temperature_c[i],
            cpu_mhz=trace.cpu_mhz[i],
            gpu_mhz=trace.gpu_mhz[i],
            mem_mhz=trace.mem_mhz[i],
            cpu_load=trace.cpu_load[i],
            gpu_load=trace.gpu_load[i],
            mem_load=trace.mem_load[i],
            rails_w={rail: watts for rail, column in trace.rails_w.items() if (watts := column[i]) is not None},
        )
        for i in range(len(trace))
    )


def encode_intake(intake: Intake) -> bytes:
    """Encode streams, ends and counts as JSON; progress is not saved."""
    books = {
        board: {"streams": heard.streams, "end_s": heard.end_s, "heard_s": heard.heard_s, "counts": heard.counts}
        for board, heard in intake._boards.items()  # noqa: SLF001  the same file's own
    }
    return json.dumps({"version": VERSION, "boards": books}, separators=(",", ":")).encode("utf-8")


def decode_intake(data: bytes, ends_s: Mapping[str, float] | None = None, most_boards: int = MOST_BOARDS) -> Intake:
    """Restore a saved intake.

    Args:
        data: Output of ``encode_intake``.
        ends_s: Ends of the last rows in the store, by board; they correct the saved ones.
        most_boards: Number of boards remembered.

    Raises:
        MalformedJson: The data is invalid or of another version.
    """
    said = check_fields(parse_json(data), "books", ("version", "boards"), ("version", "boards"))
    if said["version"] != VERSION or type(said["boards"]) is not dict:
        raise MalformedJson(f"books: got version {said['version']!r}; {VERSION} is right")
    ends_s = ends_s or {}
    intake = Intake({board: end_s for board, end_s in ends_s.items() if board not in said["boards"]}, most_boards)
    for board, value in said["boards"].items():
        heard = _parse_ledger(value)
        end_s = max(heard.end_s, ends_s.get(board, heard.end_s))
        intake._put(check_pattern(board, "board", BOARD), replace(heard, end_s=end_s))  # noqa: SLF001  as above
    return intake


def _parse_ledger(value: object) -> BoardLedger:
    names = ("streams", "end_s", "heard_s", "counts")
    said = check_fields(value, "board", names, names)
    if type(said["streams"]) is not list or type(said["counts"]) is not dict:
        raise MalformedJson("books: streams are a list, counts an object")
    if not all(type(pair) is list and len(pair) == 2 for pair in said["streams"]):
        raise MalformedJson("books: a stream is its name and its last number")
    return BoardLedger(
        streams=tuple(
            (check_pattern(name, "stream", STREAM), check_int(seq, "seq", 1, MOST_SEQ)) for name, seq in said["streams"]
        ),
        end_s=check_number(said["end_s"], "end_s", ANY_TIME),
        heard_s=check_number(said["heard_s"], "heard_s", ANY_TIME),
        counts={
            kind: check_int(count, "count", 0, MOST_SEQ) for kind, count in said["counts"].items() if kind in KINDS
        },
    )


def _classify_message(speaker: str, batch: TelemetryBatch, heard: BoardLedger, now_s: float) -> Kind:
    if batch.board != speaker:
        return "foreign"
    if batch.seq <= heard.seq(batch.stream):
        return "duplicate"
    if batch.progress is not None and batch.progress.at_s > now_s + AHEAD_S:
        return "future"
    if not batch.trace:
        return "taken"
    start_s, end_s = trace_bounds_s(batch.trace)
    if end_s > now_s + AHEAD_S:
        return "future"
    return "out-of-order" if start_s < heard.end_s - OVERLAP_S else "taken"


def _count_message(heard: BoardLedger, kind: Kind) -> BoardLedger:
    return replace(heard, counts={**heard.counts, kind: heard.counts.get(kind, 0) + 1})


def _with_stream_number(streams: tuple[tuple[str, int], ...], stream: str, seq: int) -> tuple[tuple[str, int], ...]:
    """Return the streams with one more accepted number, which makes its stream the newest; the oldest are dropped."""
    others = tuple(each for each in streams if each[0] != stream)
    return (*others, (stream, seq))[-STREAMS:]
