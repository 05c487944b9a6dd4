"""A board's batches on disk while the server is unreachable: one file each, limited in size and age."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path

from fedge.atomic_files import replace_file
from fedge.json_reader import MalformedJson
from fedge.telemetry.board_messages import MAX_MESSAGE_BYTES, decode_batch, encode_batch, trace_bounds_s
from fedge.telemetry.live_records import TelemetryBatch

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
