"""A board's unsent batches, the oldest first: a few in memory, and on disk while the server is unreachable."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from fedge.telemetry.live_records import VERSION, TelemetryBatch
from fedge.telemetry.spool import Spool
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
        """Write to disk what has waited too long.

        Args:
            now_s: Unix time.
            at_once: Whether to write everything, because the program ends.
        """
        with self._turn:
            if self._given is not None and (at_once or now_s - self._given[2] > MAX_UNSAVED_S):
                number, batch, _ = self._given
                if self._spool.put(number, batch, now_s):
                    self._given = None
            if self._growing is not None and (at_once or now_s - self._growing.unsaved_since_s > MAX_UNSAVED_S):
                self._save_open_batch(now_s)
            self._spool.trim(now_s)

    def make_empty_batch(self) -> tuple[int, TelemetryBatch]:
        """Return a batch without stretches, which only reports the progress and is not kept, and its number."""
        with self._turn:
            number, seq = self._next_numbers()
            return number, TelemetryBatch(VERSION, self._board, self._stream, seq)

    def next_batch(self, now_s: float) -> tuple[int, TelemetryBatch] | None:
        """Return the batch to send next, with its number for ``mark_done``; None if there is nothing to send."""
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
            return None if self._given is None else self._given[:2]

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
