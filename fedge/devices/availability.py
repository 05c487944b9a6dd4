"""Availability of emulated boards by simulated time: always, alternating at random, or from a trace."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np

from fedge.devices.tables.csv_sheet import decode_text, float_or_nan, parse_sheet, read_bytes
from fedge.errors import BadInput
from fedge.experiment import AvailabilitySpec, Experiment, FleetBoard
from fedge.groups import group_pairs
from fedge.seeds import make_generator

TRACE_COLUMNS = ("board", "on_s", "off_s")
_EXPECTED_TRACE = f"a CSV file of {','.join(TRACE_COLUMNS)}"
OnInterval = tuple[float, float]
"""Simulated times in seconds at which a board becomes available and unavailable."""


class Availability(Protocol):
    """Availability of one board over simulated time in seconds; queries may come in any order."""

    def available_until_s(self, at_s: float) -> float:
        """Return when a board that is available at ``at_s`` becomes unavailable.

        Returns:
            Infinity if it never does; ``at_s`` if it is not available at ``at_s``.
        """
        ...

    def next_available_s(self, at_s: float) -> float | None:
        """Return the first time from ``at_s`` on at which the board is available, or None if there is none."""
        ...


class AlternatingAvailability:
    """Alternates between on and off with exponentially distributed durations.

    The process starts in its stationary state: on with probability ``on_s / (on_s + off_s)``, and, because the
    exponential distribution is memoryless, for a whole further interval.

    Args:
        on_s: Mean duration of on intervals, in seconds.
        off_s: Mean duration of off intervals, in seconds.
    """

    def __init__(self, on_s: float, off_s: float, rng: np.random.Generator) -> None:
        self._mean_s = (off_s, on_s)
        self._rng = rng
        self._starts_on = bool(rng.random() < on_s / (on_s + off_s))
        self._switches_s = [0.0]
        """Times at which the state changes; the first is the start of the run."""

    def available_until_s(self, at_s: float) -> float:
        place = self._interval_index(at_s)
        return self._switches_s[place + 1] if self._is_on(place) else at_s

    def next_available_s(self, at_s: float) -> float | None:
        place = self._interval_index(at_s)
        return at_s if self._is_on(place) else self._switches_s[place + 1]

    def _is_on(self, place: int) -> bool:
        return self._starts_on == (place % 2 == 0)

    def _interval_index(self, at_s: float) -> int:
        """Return the index of the interval that contains ``at_s``, drawing missing intervals in a fixed order."""
        while self._switches_s[-1] <= at_s:
            place = len(self._switches_s) - 1
            self._switches_s.append(
                self._switches_s[-1] + float(self._rng.exponential(self._mean_s[self._is_on(place)]))
            )
        return bisect_right(self._switches_s, at_s) - 1


class TracedAvailability:
    """Available in the given intervals only.

    Args:
        intervals: Disjoint intervals in ascending order that do not touch.
    """

    def __init__(self, intervals: Iterable[OnInterval]) -> None:
        self._intervals = tuple(intervals)
        self._starts_s = [start_s for start_s, _ in self._intervals]

    def available_until_s(self, at_s: float) -> float:
        place = bisect_right(self._starts_s, at_s) - 1
        return max(at_s, self._intervals[place][1]) if place >= 0 else at_s

    def next_available_s(self, at_s: float) -> float | None:
        if self.available_until_s(at_s) > at_s:
            return at_s
        place = bisect_right(self._starts_s, at_s)
        return self._starts_s[place] if place < len(self._starts_s) else None


ALWAYS_AVAILABLE = TracedAvailability([(0.0, math.inf)])


def build_availabilities(experiment: Experiment, boards: Iterable[FleetBoard]) -> dict[str, Availability]:
    """Build the availability of every board, by name."""
    return {board.name: build_availability(board.entry.availability, board.name, experiment.seed) for board in boards}


def build_availability(spec: AvailabilitySpec | None, board: str, seed: int) -> Availability:
    """Build the availability of one board; a board that its trace does not contain is never available."""
    if spec is not None and spec.trace is not None:
        return TracedAvailability(read_availability_trace(Path(spec.trace)).get(board, ()))
    if spec is None or spec.on_s is None or spec.off_s is None:
        return ALWAYS_AVAILABLE
    return AlternatingAvailability(spec.on_s, spec.off_s, make_generator(seed, board, "availability"))


@lru_cache(maxsize=16)
def read_availability_trace(path: Path) -> Mapping[str, tuple[OnInterval, ...]]:
    """Read an availability trace, a CSV file with the columns ``board,on_s,off_s``; each file is read once per process.

    Intervals of a board may be in any order and may touch, but not overlap. An empty ``off_s`` means no end.

    Returns:
        The intervals of each board, ascending, with touching ones merged.

    Raises:
        BadInput: The file is missing, lacks a column, or has an invalid line; names file and line.
    """
    text = decode_text(str(path), read_bytes(path, _EXPECTED_TRACE), f"{_EXPECTED_TRACE}, in UTF-8")
    intervals = group_pairs((board, (on_s, off_s, line)) for line, board, on_s, off_s in _iter_lines(path, text))
    return {board: _join_intervals(path, board, sorted(lines)) for board, lines in intervals.items()}


def _iter_lines(path: Path, text: str) -> Iterator[tuple[int, str, float, float]]:
    for row in parse_sheet(str(path), text, TRACE_COLUMNS).rows:
        where, (board, on, off) = f"{path}: line {row.line}", (row.cells[name] for name in TRACE_COLUMNS)
        if not board:
            raise BadInput(where, "no board", "a board's name, such as nano-1")
        on_s, off_s = _parse_seconds(where, "on_s", on), _parse_seconds(where, "off_s", off or "inf")
        if not (0 <= on_s < off_s and math.isfinite(on_s)):
            raise BadInput(where, f"on_s {on_s:g}, off_s {off_s:g}", "0 <= on_s < off_s, in seconds of fleet time")
        yield row.line, board, on_s, off_s


def _parse_seconds(where: str, column: str, text: str) -> float:
    value = float_or_nan(text)
    if math.isnan(value):
        raise BadInput(f"{where}, {column}", repr(text), "a number of seconds")
    return value


def _join_intervals(path: Path, board: str, intervals: list[tuple[float, float, int]]) -> tuple[OnInterval, ...]:
    """Sort intervals and merge touching ones; raise ``BadInput`` if two overlap."""
    for (_, off_s, _), (on_s, _, line) in pairwise(intervals):
        if on_s < off_s:
            raise BadInput(
                f"{path}: line {line}", f"{board} on at {on_s:g} s", f"a time after it went off, {off_s:g} s"
            )
    joined: list[OnInterval] = []
    for on_s, off_s, _ in intervals:
        if joined and joined[-1][1] == on_s:
            joined[-1] = (joined[-1][0], off_s)
        else:
            joined.append((on_s, off_s))
    return tuple(joined)
