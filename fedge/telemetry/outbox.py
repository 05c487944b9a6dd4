"""A board's unsent batches, the oldest first: a few in memory, and on disk while the server is unreachable."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path

from fedge.atomic_files import replace_file
from fedge.json_reader import MalformedJson
from fedge.telemetry.live_records import (
    MAX_MESSAGE_BYTES,
    VERSION,
    TelemetryBatch,
    decode_batch,
    encode_batch,
    trace_bounds_s,
)
from fedge.telemetry.trace_operations import join_traces
from fedge.types import EMPTY_TRACE, Trace

MAX_BATCH_STRETCHES = 120
"""Stretches per batch: two minutes, some 20 kB."""
MAX_UNSAVED_S = 5.0
"""Seconds after which unsent stretches are written to disk: bounds the loss on a kill, yet spares the flash memory."""


@dataclass(slots=True)
class _OpenBatch:
    """The newest batch, which is still growing, and its place in the order."""

    number: int
    seq: int
    trace: Trace = EMPTY_TRACE
    unsaved_since_s: float = 0.0
    """When it first received a stretch that is not on disk."""
    saved: int = 0
    """Number of its stretches on disk."""


class Outbox:
    """Batches in order of time; thread-safe. No method raises because of the disk.

    A batch that was returned once does not change any more: if it was accepted and the reply was lost, the server
    recognises it by its number.
    """

    def __init__(self, board: str, stream: str, spool: Spool) -> None:
        self._board, self._stream, self._spool = board, stream, spool
        self._turn = threading.Lock()
        self._seq = 0
        self._next = spool.next_number
        self._growing: _OpenBatch | None = None
        self._given: tuple[int, TelemetryBatch, float] | None = None
        """A batch that was returned and may be in memory only: number, batch, and since when it waits."""
        self._lost = 0

    @property
    def lost_stretches(self) -> int:
        """Number of stretches that were dropped."""
        with self._turn:
            return self._lost + self._spool.lost

    @property
    def has_backlog(self) -> bool:
        """Whether batches wait on disk."""
        with self._turn:
            return bool(self._spool.numbers)

    def count_lost(self, stretches: int) -> None:
        """Count dropped stretches."""
        with self._turn:
            self._lost += stretches

    def add(self, trace: Trace, now_s: float) -> None:
        """Append the newest stretches; they are dropped if the disk is full and the memory's share is used up."""
        with self._turn:
            if (
                self._growing is not None
                and len(self._growing.trace) + len(trace) > MAX_BATCH_STRETCHES
                and not self._close_open_batch(now_s)
            ):
                self._lost += len(trace)
                return
            if self._growing is None:
                self._growing = _OpenBatch(*self._next_numbers())
            if self._growing.saved == len(self._growing.trace):
                self._growing.unsaved_since_s = now_s
            self._growing.trace = join_traces([self._growing.trace, trace])

    def save(self, now_s: float, *, at_once: bool = False) -> None:
        """Write to disk what has waited too long, or everything ``at_once`` because the program ends.

        ``now_s`` is Unix time, here and in the other methods.
        """
        with self._turn:
            if self._given is not None and (at_once or now_s - self._given[2] > MAX_UNSAVED_S):
                number, batch, _ = self._given
                if self._spool.put(number, batch, now_s):
                    self._given = None
            if self._growing is not None and (at_once or now_s - self._growing.unsaved_since_s > MAX_UNSAVED_S):
                self._save_open_batch(now_s)
            self._spool.trim(now_s)

    def next_batch(self, now_s: float) -> tuple[int, TelemetryBatch]:
        """Return the batch to send next, with its number for ``mark_done``.

        Without anything to send it has no stretches, only reports the progress and is not kept.
        """
        with self._turn:
            for number in self._spool.numbers:
                if self._given is not None and self._given[0] <= number:
                    break
                if self._growing is None or number != self._growing.number:
                    batch = self._spool.read(number)
                    if batch is not None:
                        return number, batch
            if self._given is None and self._growing is not None:
                growing, self._growing = self._growing, None
                self._given = growing.number, self._build_batch(growing), min(growing.unsaved_since_s, now_s)
            if self._given is not None:
                return self._given[:2]
            # Under the same lock: stretches added before it is numbered would be sent after it, as duplicates.
            number, seq = self._next_numbers()
            return number, TelemetryBatch(VERSION, self._board, self._stream, seq)

    def mark_done(self, number: int) -> None:
        """Remove a batch that was accepted, or will never be."""
        with self._turn:
            if self._given is not None and self._given[0] == number:
                self._given = None
            self._spool.drop(number)

    def _close_open_batch(self, now_s: float) -> bool:
        """Close the growing batch; return whether another one may begin."""
        growing = self._growing
        assert growing is not None
        self._save_open_batch(now_s)
        if growing.saved < len(growing.trace):
            if self._given is not None:
                return False
            self._given = growing.number, self._build_batch(growing), growing.unsaved_since_s
        self._growing = None
        return True

    def _next_numbers(self) -> tuple[int, int]:
        self._seq, self._next = self._seq + 1, self._next + 1
        return self._next - 1, self._seq

    def _build_batch(self, growing: _OpenBatch) -> TelemetryBatch:
        return TelemetryBatch(VERSION, board=self._board, stream=self._stream, seq=growing.seq, trace=growing.trace)

    def _save_open_batch(self, now_s: float) -> None:
        growing = self._growing
        if growing is None or growing.saved == len(growing.trace):
            return
        if self._spool.put(growing.number, self._build_batch(growing), now_s):
            growing.saved = len(growing.trace)


# Spool: batches on disk while the server is unreachable, one file each, limited in size and age -----------------------


NAME = re.compile(r"(\d{12})\.(\d{1,6})\.(\d{1,12})\.json")
"""Number, stretches, and unix time of the end: a folder's listing is enough to know its content."""
UNFINISHED = ".part"
"""End of the names of temporary files, as ``fedge.atomic_files`` makes them."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, order=True)
class SpoolSegment:
    """One file of the spool.

    Attributes:
        number: Position in the order of batches, over all starts of the program.
        end_s: End of the last stretch, unix time.
    """

    number: int
    stretches: int
    end_s: int
    size: int

    @property
    def name(self) -> str:
        return f"{self.number:012d}.{self.stretches}.{self.end_s}.json"


class Spool:
    """Batches in a folder, limited in size and age; used by one process at a time.

    No method raises because of the disk: a batch that cannot be written is not kept, and one that cannot be read is
    lost.

    Attributes:
        lost: Stretches dropped because of the limits or because they could not be read.
    """

    def __init__(self, folder: Path, most_bytes: int, most_age_s: float) -> None:
        """Open the spool with what an earlier start left."""
        self._folder, self._most_bytes, self._most_age_s = folder, most_bytes, most_age_s
        self.lost = 0
        self._failing = False
        self._segments: dict[int, SpoolSegment] = {}
        self._find_segments()

    @property
    def numbers(self) -> list[int]:
        """Numbers of the batches, the oldest first."""
        return sorted(self._segments)

    @property
    def size(self) -> int:
        """Total size in bytes."""
        return sum(segment.size for segment in self._segments.values())

    @property
    def next_number(self) -> int:
        """A number greater than that of every batch here."""
        return max(self._segments, default=0) + 1

    def put(self, number: int, batch: TelemetryBatch, now_s: float) -> bool:
        """Write a batch, replacing one of the same number, and drop the oldest beyond the limits.

        If the disk is full, the older batches stay.

        Returns:
            Whether the batch is in the spool.
        """
        data = encode_batch(batch)
        segment = SpoolSegment(number, len(batch.trace), int(trace_bounds_s(batch.trace)[1]), len(data))
        if len(data) > self._most_bytes or not self._write_segment(segment.name, data):
            return False
        former = self._segments.get(number)
        self._segments[number] = segment
        if former is not None and former.name != segment.name:
            self._remove(former.name)
        self.trim(now_s)
        return number in self._segments

    def read(self, number: int) -> TelemetryBatch | None:
        """Return a batch, or None; an unreadable one is dropped."""
        segment = self._segments.get(number)
        if segment is None:
            return None
        try:
            with (self._folder / segment.name).open("rb") as file:
                return decode_batch(file.read(MAX_MESSAGE_BYTES + 1))
        except (OSError, MalformedJson) as error:
            logger.warning("a batch of %d s in the spool cannot be read and is lost: %s", segment.stretches, error)
            self._lose(segment)
            return None

    def drop(self, number: int) -> None:
        """Remove a batch that was accepted."""
        segment = self._segments.pop(number, None)
        if segment is not None:
            self._remove(segment.name)

    def trim(self, now_s: float) -> None:
        """Drop the oldest batches until size and age are within the limits."""
        for number in self.numbers:
            segment = self._segments[number]
            if self.size <= self._most_bytes and segment.end_s >= now_s - self._most_age_s:
                return
            self._lose(segment)

    def _lose(self, segment: SpoolSegment) -> None:
        self.lost += segment.stretches
        self.drop(segment.number)

    def _find_segments(self) -> None:
        """List the files of an earlier start; of two with the same number the larger one is the later."""
        try:
            entries = [(entry.name, entry.stat().st_size) for entry in os.scandir(self._folder)]
        except OSError:
            return
        for name, size in sorted(entries):
            if name.endswith(UNFINISHED):
                self._remove(name)
            elif match := NAME.fullmatch(name):
                number, stretches, end_s = map(int, match.groups())
                segment = SpoolSegment(number, stretches, end_s, size)
                smaller, larger = sorted((segment, self._segments.get(number, segment)))
                self._segments[number] = larger
                if smaller != larger:
                    self._remove(smaller.name)

    def _write_segment(self, name: str, data: bytes) -> bool:
        try:
            with replace_file(self._folder / name) as part:
                part.write_bytes(data)
        except OSError as error:
            if not self._failing:  # once per trouble, not once per batch
                logger.warning("the spool cannot be written, what comes now is lost: %s", error)
            self._failing = True
            return False
        self._failing = False
        return True

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            (self._folder / name).unlink(missing_ok=True)
