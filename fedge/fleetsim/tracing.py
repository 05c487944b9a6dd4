"""An emulated board's trace of a round, made of what it did: fetching, every part of its work, sending; pure.

Power is the mean of each phase, as the report has it, so that cutting the trace anywhere gives the joules that the
books count. The temperature follows the board's own thermal mass while it works, and stays while it fetches and sends,
as the board's model has it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fedge.devices.emulated import TRIP_C, Thermal
from fedge.telemetry.tracing import PERIOD_S
from fedge.types import Measurement, PowerMode, RoundReport, Trace

MOST = 1300
"""Stretches of an emulated board's trace: below 100 KB of JSON, since a thousand boards may answer. Chosen by us."""
SHORTEST_S = 1e-9
"""No phase is cut nearer to its ends than this."""
DIGITS = 2
"""Of a temperature: hundredths of a degree, for short messages; chosen by us."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A board doing one thing for ``seconds``: its power, the mode it is in; ``works``: it warms by its power."""

    seconds: float
    power_w: float
    mode: PowerMode
    works: bool
    throttled: bool = False


def trace_of_round(
    report: RoundReport, waiting: PowerMode, thermal: Thermal, temperature_c: float, most: int = MOST
) -> Trace:
    """The trace of the round that ``report`` tells, from its start to the upload's end.

    ``waiting`` is the mode in which the board fetches and sends, ``temperature_c`` its temperature at the start.
    """
    phases = [phase for phase in _phases(report, waiting) if phase.seconds > SHORTEST_S]
    period_s = _period_s(phases, most)
    starts, spans, temperatures, counts = list[float](), list[float](), list[float](), list[int]()
    begin_s = 0.0
    for phase in phases:
        cuts = _cuts(begin_s, phase.seconds, period_s)
        starts += [begin_s + cut for cut in cuts[:-1]]
        spans += [b - a for a, b in pairwise(cuts)]
        temperatures += _temperatures(phase, thermal, temperature_c, cuts)
        temperature_c = _after(phase, thermal, temperature_c, phase.seconds)
        counts.append(len(cuts) - 1)
        begin_s += phase.seconds
    unknown = (None,) * len(starts)
    return Trace(
        tuple(starts),
        tuple(spans),
        _each([phase.power_w for phase in phases], counts),
        tuple(temperatures),
        _each([phase.mode.cpu_mhz for phase in phases], counts),
        _each([phase.mode.gpu_mhz for phase in phases], counts),
        _each([phase.mode.mem_mhz for phase in phases], counts),
        unknown,
        unknown,
        unknown,
    )


def link_phases(report: RoundReport, waiting: PowerMode) -> tuple[Phase, Phase]:
    """Fetching and sending: idle power and the radio's."""
    link = report.link
    power_w = report.idle_w + link.radio_j / (link.down_s + link.up_s)
    return Phase(link.down_s, power_w, waiting, works=False), Phase(link.up_s, power_w, waiting, works=False)


def _phases(report: RoundReport, waiting: PowerMode) -> list[Phase]:
    fetching, sending = link_phases(report, waiting)
    return [fetching, *(_working(part) for part in report.parts), sending]


def _working(part: Measurement) -> Phase:
    """With its warm-up and the change of mode before it."""
    return Phase(part.work_s, part.power_w, part.mode, works=True, throttled=part.throttled)


def _period_s(phases: Sequence[Phase], most: int) -> float:
    """The period with which there are no more than ``most`` stretches: each phase has one more than its periods."""
    period_s, whole_s = PERIOD_S, sum(phase.seconds for phase in phases)
    while whole_s / period_s + 2 * len(phases) > most and period_s < whole_s:
        period_s *= 2
    return period_s


def _cuts(begin_s: float, seconds: float, period_s: float) -> list[float]:
    """Where a phase is cut, in seconds from its begin, both ends among them: at whole periods of the round."""
    first = math.floor((begin_s + SHORTEST_S) / period_s) + 1
    last = math.ceil((begin_s + seconds - SHORTEST_S) / period_s)
    return [0.0, *(k * period_s - begin_s for k in range(first, last)), seconds]


def _temperatures(phase: Phase, thermal: Thermal, from_c: float, cuts: Sequence[float]) -> list[float]:
    """In the middle of every stretch."""
    if not phase.works:
        return [round(from_c, DIGITS)] * (len(cuts) - 1)
    middles = [(a + b) / 2 for a, b in pairwise(cuts)]
    return [round(_after(phase, thermal, from_c, middle_s), DIGITS) for middle_s in middles]


def _after(phase: Phase, thermal: Thermal, from_c: float, seconds: float) -> float:
    """The temperature so far into a phase; a throttled one stays at the trip point once it is there."""
    if not phase.works:
        return from_c
    reached_c = thermal.after(from_c, phase.power_w, seconds)
    return min(reached_c, TRIP_C) if phase.throttled else reached_c


def _each(values: Sequence[float], counts: Sequence[int]) -> tuple[float, ...]:
    """Every value as often as its phase has stretches."""
    return tuple(value for value, count in zip(values, counts, strict=True) for _ in range(count))
