"""Operations on traces: create from samples, cut, shift, join and average, conserving energy; pure functions.

Where a stretch is cut, the left part has the length of the cut and the right part the rest of its span, so that no
length is computed as a difference of two large times: energies agree to rounding also in unix time.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain, pairwise
from typing import Any

from fedge.types import EMPTY_TRACE, SensorSample, Trace

PERIOD_S = 1.0
"""Default length of a stretch in seconds."""
MOST_STRETCHES = 4000
"""Upper limit of a trace in a reply; for a longer round the period is doubled until it fits."""
MOST_RAILS = 32
LONGEST_RAIL = 64
SAME_S = 1e-6
"""Overlaps below this many seconds are rounding: unix time in seconds has steps of 0.24 microseconds."""
PLAUSIBLE_RANGES: dict[str, tuple[float, float]] = {
    "power_w": (0.0, 10_000.0),
    "temperature_c": (-100.0, 300.0),
    "cpu_mhz": (0.0, 100_000.0),
    "gpu_mhz": (0.0, 100_000.0),
    "mem_mhz": (0.0, 100_000.0),
    "cpu_load": (0.0, 1.0),
    "gpu_load": (0.0, 1.0),
    "mem_load": (0.0, 1.0),
}
"""Values outside these ranges cannot come from a board's sensors."""
RAIL_W = (-1_000.0, 10_000.0)
"""The plausible range of a rail, which may feed another one and so read negative."""

OPTIONAL = ("temperature_c", "cpu_mhz", "gpu_mhz", "mem_mhz", "cpu_load", "gpu_load", "mem_load")
"""Columns, besides the rails, that may contain None for unknown values."""
COLUMNS = tuple(column.name for column in fields(Trace) if column.name != "rails_w")
RAIL_PREFIX = "rail "
"""Prefix of a rail's name among the other columns."""
Column = tuple[float | None, ...]


def trace_from_samples(
    samples: Sequence[SensorSample], start_s: float, end_s: float, period_s: float = PERIOD_S, gap_s: float = math.inf
) -> Trace:
    """Convert samples to a trace of the window [start_s, end_s].

    Power is linear between two samples and constant before the first and after the last one, so that the energy equals
    that of ``fedge.devices.sensing.energy_integral``. Other columns are the mean of the two samples. An interval longer
    than ``gap_s``, between samples or to the window's ends, leaves a gap.

    Raises:
        ValueError: The window does not end after its start.
    """
    if not end_s > start_s:
        raise ValueError(f"a window from {start_s} to {end_s} s; it has to end after its start")
    raw = [_interpolate(a, b, start_s, end_s) for a, b in _iter_neighbours(samples, start_s, end_s, gap_s)]
    pieces = [piece for line in raw for piece in _cut_at_cells(line, period_s)]
    return shift_trace(
        _average_cells(((_cell_number(piece, period_s), piece) for piece in pieces), _list_rails(samples)), start_s
    )


def downsample_trace(trace: Trace, period_s: float) -> Trace:
    """Average a trace to at most one stretch per cell [k period, (k + 1) period) of its clock, conserving energy.

    A gap within a cell moves to the cell's end. Columns are means over the time in which they are known.
    """
    lines = (_piece_of_stretch(trace, i) for i in range(len(trace)))
    pieces = (piece for line in lines for piece in _cut_at_cells(line, period_s))
    return _average_cells(((_cell_number(piece, period_s), piece) for piece in pieces), tuple(trace.rails_w))


def limit_trace_length(trace: Trace, most: int = MOST_STRETCHES) -> Trace:
    """Return a trace of at most ``most`` stretches, averaged if needed with ``PERIOD_S`` doubled until it fits."""
    period_s = PERIOD_S
    while len(trace) > most:
        period_s *= 2
        trace = downsample_trace(trace, period_s)
    return trace


def clip_trace(trace: Trace, start_s: float, end_s: float) -> Trace:
    """Return the part of the trace within [start_s, end_s]; a cut stretch keeps its mean power."""
    if not end_s > start_s:
        return EMPTY_TRACE
    starts = trace.start_s
    first = max(0, bisect_left(starts, start_s) - 1)
    if first < len(starts) and start_s - starts[first] >= trace.span_s[first]:
        first += 1
    last = bisect_left(starts, end_s)
    if first >= last:
        return EMPTY_TRACE
    part = _slice_trace(trace, first, last)
    begins, spans = list(part.start_s), list(part.span_s)
    spans[-1] = min(spans[-1], end_s - begins[-1])
    if begins[0] < start_s:
        spans[0] -= start_s - begins[0]
        begins[0] = start_s
    if spans[0] <= 0:  # by rounding, where a cut is no longer one
        return clip_trace(_slice_trace(part, 1, len(part)), start_s, end_s)
    return replace(part, start_s=tuple(begins), span_s=tuple(spans))


def shift_trace(trace: Trace, by_s: float) -> Trace:
    """Return the trace on a clock that is ``by_s`` seconds ahead."""
    return replace(trace, start_s=tuple(start + by_s for start in trace.start_s))


def join_traces(traces: Iterable[Trace]) -> Trace:
    """Concatenate traces; a rail that one of them lacks is None there."""
    parts = [trace for trace in traces if len(trace)]
    if len(parts) <= 1:
        return parts[0] if parts else EMPTY_TRACE
    rails = dict.fromkeys(rail for part in parts for rail in part.rails_w)
    columns = {name: tuple(chain.from_iterable(getattr(part, name) for part in parts)) for name in COLUMNS}
    nothing: Column = (None,)
    rails_w = {rail: tuple(v for p in parts for v in p.rails_w.get(rail, nothing * len(p))) for rail in rails}
    return Trace(**columns, rails_w=rails_w)


def make_constant_trace(start_s: float, seconds: float, power_w: float) -> Trace:
    """Return a trace of one stretch at constant power; empty for a length of 0."""
    if seconds <= 0:
        return EMPTY_TRACE
    unknown: Column = (None,)
    return Trace((start_s,), (seconds,), (power_w,), **dict.fromkeys(OPTIONAL, unknown))  # type: ignore[arg-type]


def check_trace(trace: Trace, overlap_s: float = SAME_S) -> Trace:
    """Return the trace if it is valid; stretches may overlap by ``overlap_s``.

    Raises:
        ValueError: Columns differ in length, a number is not finite, or stretches are empty, out of order or
            overlapping.
    """
    count = len(trace.start_s)
    rails = ((RAIL_PREFIX + rail, column) for rail, column in trace.rails_w.items())
    for name, column in (*((name, getattr(trace, name)) for name in COLUMNS), *rails):
        if len(column) != count:
            raise ValueError(f"{name} has {len(column)} values; a trace of {count} stretches has as many")
        known = column if name in COLUMNS[:3] else _known_values(column)
        if not math.isfinite(sum(known)):
            raise ValueError(f"{name} holds a number that is not finite")
    if count and min(trace.span_s) <= 0:
        raise ValueError(f"a stretch of {min(trace.span_s):g} s; it has to be longer than nothing")
    ends = zip(trace.start_s, trace.span_s, trace.start_s[1:], strict=False)
    overlap = next((start for start, span, after in ends if after - start < span - overlap_s), None)
    if overlap is not None:
        raise ValueError(f"the stretch after {overlap:.3f} s begins before it ends")
    return trace


def check_plausible_trace(trace: Trace, most: int = MOST_STRETCHES) -> Trace:
    """Return the trace if a board's sensors can have produced it.

    Raises:
        ValueError: The trace is invalid or too long, has too many rails, or contains an implausible value.
    """
    if len(trace) > most:
        raise ValueError(f"{len(trace)} stretches; at most {most} are taken")
    if len(trace.rails_w) > MOST_RAILS:
        raise ValueError(f"{len(trace.rails_w)} rails; a board has at most {MOST_RAILS}")
    if any(len(rail) > LONGEST_RAIL for rail in trace.rails_w):
        raise ValueError(f"a rail's name of more than {LONGEST_RAIL} characters")
    check_trace(trace)
    limited = ((name, getattr(trace, name), limits) for name, limits in PLAUSIBLE_RANGES.items())
    rails = ((RAIL_PREFIX + rail, column, RAIL_W) for rail, column in trace.rails_w.items())
    for name, column, (low, high) in (*limited, *rails):
        known = _known_values(column)
        if known and not low <= min(known) <= max(known) <= high:
            worst = min(known) if min(known) < low else max(known)
            raise ValueError(f"{name} of {worst:g}; it has to be from {low:g} to {high:g}")
    return trace


@dataclass(frozen=True, slots=True)
class _LinearPiece:
    """A stretch with linear power, and the constant values of its other columns."""

    start_s: float
    span_s: float
    from_w: float
    to_w: float
    others: tuple[float | None, ...] = ()
    """In the order of ``OPTIONAL``."""
    rails_w: dict[str, float | None] = field(default_factory=dict)


@dataclass(slots=True)
class _CellSums:
    """Sums of a cell: begin, seconds and joules, and for each column the known seconds and its integral over them."""

    start_s: float
    span_s: float = 0.0
    energy_j: float = 0.0
    columns: dict[str, tuple[float, float]] = field(default_factory=dict)

    def add(self, line: _LinearPiece) -> None:
        self.span_s += line.span_s
        self.energy_j += (line.from_w + line.to_w) / 2 * line.span_s
        rails = ((RAIL_PREFIX + rail, value) for rail, value in line.rails_w.items())
        for name, value in (*zip(OPTIONAL, line.others, strict=True), *rails):
            if value is not None:
                seconds, integral = self.columns.get(name, (0.0, 0.0))
                self.columns[name] = seconds + line.span_s, integral + value * line.span_s

    def mean(self, name: str) -> float | None:
        seconds, integral = self.columns.get(name, (0.0, 0.0))
        return integral / seconds if seconds > 0 else None


def _average_cells(pieces: Iterable[tuple[int, _LinearPiece]], rails: Sequence[str]) -> Trace:
    """Return one stretch for every cell that has a piece."""
    cells: dict[int, _CellSums] = {}
    for cell, piece in pieces:
        cells.setdefault(cell, _CellSums(piece.start_s)).add(piece)
    sums = list(cells.values())
    others: dict[str, Any] = {name: tuple(one.mean(name) for one in sums) for name in OPTIONAL}
    return Trace(
        tuple(one.start_s for one in sums),
        tuple(one.span_s for one in sums),
        tuple(one.energy_j / one.span_s for one in sums),
        **others,
        rails_w={rail: tuple(one.mean(RAIL_PREFIX + rail) for one in sums) for rail in rails},
    )


def _cell_number(piece: _LinearPiece, period_s: float) -> int:
    return math.floor((piece.start_s + piece.span_s / 2) / period_s)


def _cut_at_cells(line: _LinearPiece, period_s: float) -> Iterator[_LinearPiece]:
    """Cut a piece at the cell boundaries; the spans of the parts add up to its own."""
    cell = math.floor(line.start_s / period_s) + 1
    while (before_s := cell * period_s - line.start_s) < line.span_s:
        if before_s > 0:
            left, line = _split_piece(line, before_s)
            yield left
        cell += 1
    yield line


def _split_piece(line: _LinearPiece, before_s: float) -> tuple[_LinearPiece, _LinearPiece]:
    at_w = line.from_w + (line.to_w - line.from_w) * (before_s / line.span_s)
    left = _LinearPiece(
        line.start_s, span_s=before_s, from_w=line.from_w, to_w=at_w, others=line.others, rails_w=line.rails_w
    )
    start_s, span_s = line.start_s + before_s, line.span_s - before_s
    return left, _LinearPiece(
        start_s, span_s=span_s, from_w=at_w, to_w=line.to_w, others=line.others, rails_w=line.rails_w
    )


def _iter_neighbours(
    samples: Sequence[SensorSample], start_s: float, end_s: float, gap_s: float
) -> Iterator[tuple[SensorSample | None, SensorSample | None]]:
    """Yield pairs of neighbouring samples that overlap the window; None before the first and after the last."""
    if not samples:
        return
    if start_s < samples[0].at_s <= start_s + gap_s:
        yield None, samples[0]
    for a, b in pairwise(samples):
        if a.at_s < end_s and b.at_s > start_s and b.at_s - a.at_s <= gap_s:
            yield a, b
    if end_s - gap_s <= samples[-1].at_s < end_s:
        yield samples[-1], None


def _interpolate(a: SensorSample | None, b: SensorSample | None, start_s: float, end_s: float) -> _LinearPiece:
    """Return the linear piece between two samples within the window, in seconds from the window's start."""
    first, last = a or b, b or a
    assert first is not None
    assert last is not None
    from_s = start_s if a is None else max(start_s, a.at_s)
    to_s = end_s if b is None else min(end_s, b.at_s)
    power_at = _linear_power(first, last)
    others = tuple(_mean_of_known(x, y) for x, y in zip(_other_columns(first), _other_columns(last), strict=True))
    rails = {**first.rails_w, **last.rails_w}
    rails_w = {rail: _mean_of_known(first.rails_w.get(rail), last.rails_w.get(rail)) for rail in rails}
    return _LinearPiece(
        from_s - start_s,
        span_s=to_s - from_s,
        from_w=power_at(from_s),
        to_w=power_at(to_s),
        others=others,
        rails_w=rails_w,
    )


def _linear_power(a: SensorSample, b: SensorSample) -> Callable[[float], float]:
    slope = (b.total_w - a.total_w) / (b.at_s - a.at_s) if b.at_s > a.at_s else 0.0
    return lambda at_s: a.total_w + slope * (at_s - a.at_s)


def _other_columns(sample: SensorSample) -> tuple[float | None, ...]:
    """Return the values in the order of ``OPTIONAL``; samples contain no CPU load."""
    s = sample
    return (s.hottest_c, s.cpu_mhz, s.gpu_mhz, s.mem_mhz, None, s.gpu_load, s.mem_load)


def _mean_of_known(a: float | None, b: float | None) -> float | None:
    """Return the mean of two values, the known one, or None."""
    if a is None or b is None:
        return b if a is None else a
    return (a + b) / 2


def _list_rails(samples: Sequence[SensorSample]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(rail for sample in samples for rail in sample.rails_w))


def _piece_of_stretch(trace: Trace, i: int) -> _LinearPiece:
    power_w, others = trace.power_w[i], tuple(getattr(trace, name)[i] for name in OPTIONAL)
    rails_w = {rail: column[i] for rail, column in trace.rails_w.items()}
    return _LinearPiece(
        trace.start_s[i], span_s=trace.span_s[i], from_w=power_w, to_w=power_w, others=others, rails_w=rails_w
    )


def _slice_trace(trace: Trace, first: int, last: int) -> Trace:
    columns = {name: getattr(trace, name)[first:last] for name in COLUMNS}
    return Trace(**columns, rails_w={rail: column[first:last] for rail, column in trace.rails_w.items()})


def _known_values(column: Sequence[float | None]) -> list[float]:
    return [value for value in column if value is not None]
