"""The sensor trace of an emulated round, computed from its report.

Power is the mean of each phase as in the report, so that any partition of the trace gives the
reported energy. The temperature follows the board's thermal model during work and stays constant during transfers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, repeat

from fedge.devices.thermal_model import TRIP_C, ThermalModel
from fedge.telemetry.trace_operations import PERIOD_S
from fedge.types import Measurement, PowerMode, RoundReport, Trace

MAX_STRETCHES = 1300
# Intervals of an emulated trace: keeps it below 100 KB of JSON, since a thousand clients may reply at once.
MIN_PHASE_S = 1e-9
# Minimum distance of a cut from the ends of a phase; avoids intervals of zero length from rounding.
TEMPERATURE_DIGITS = 2
# Hundredths of a degree, to keep messages short.


@dataclass(frozen=True, slots=True)
class RoundPhase:
    """A phase of a round with constant power and mode.

    Attributes:
        is_working: Whether the phase is work, which heats the board; transfers leave the temperature unchanged.
    """

    seconds: float
    power_w: float
    mode: PowerMode
    is_working: bool
    throttled: bool = False


def build_emulated_trace(
    report: RoundReport, waiting: PowerMode, thermal: ThermalModel, temperature_c: float, most: int = MAX_STRETCHES
) -> Trace:
    """Build the trace of a round from its start to the end of the upload.

    Args:
        temperature_c: Temperature at the start in degrees Celsius.
    """
    phases = [phase for phase in _build_phases(report, waiting) if phase.seconds > MIN_PHASE_S]
    period_s = _choose_period_s(phases, most)
    starts, spans, temperatures, counts = list[float](), list[float](), list[float](), list[int]()
    begin_s = 0.0
    for phase in phases:
        cuts = _cut_times_s(begin_s, phase.seconds, period_s)
        starts += [begin_s + cut for cut in cuts[:-1]]
        spans += [b - a for a, b in pairwise(cuts)]
        temperatures += _stretch_temperatures_c(phase, thermal, temperature_c, cuts)
        temperature_c = _temperature_after_c(phase, thermal, temperature_c, phase.seconds)
        counts.append(len(cuts) - 1)
        begin_s += phase.seconds
    unknown = (None,) * len(starts)
    return Trace(
        tuple(starts),
        span_s=tuple(spans),
        power_w=_repeat_values([phase.power_w for phase in phases], counts),
        temperature_c=tuple(temperatures),
        cpu_mhz=_repeat_values([phase.mode.cpu_mhz for phase in phases], counts),
        gpu_mhz=_repeat_values([phase.mode.gpu_mhz for phase in phases], counts),
        mem_mhz=_repeat_values([phase.mode.mem_mhz for phase in phases], counts),
        cpu_load=unknown,
        gpu_load=unknown,
        mem_load=unknown,
    )


def build_link_phases(report: RoundReport, waiting: PowerMode) -> tuple[RoundPhase, RoundPhase]:
    """Return the phases of download and upload, with idle power plus the radio's."""
    link = report.link
    power_w = report.idle_w + link.radio_j / (link.down_s + link.up_s)
    return RoundPhase(link.down_s, power_w, waiting, is_working=False), RoundPhase(
        link.up_s, power_w, waiting, is_working=False
    )


def _build_phases(report: RoundReport, waiting: PowerMode) -> list[RoundPhase]:
    fetching, sending = build_link_phases(report, waiting)
    return [fetching, *(_work_phase(part) for part in report.parts), sending]


def _work_phase(part: Measurement) -> RoundPhase:
    """Return the phase of a measurement, including its warm-up and the preceding mode change."""
    return RoundPhase(part.work_s, part.power_w, part.mode, is_working=True, throttled=part.throttled)


def _choose_period_s(phases: Sequence[RoundPhase], most: int) -> float:
    """Return the smallest period with at most ``most`` intervals; a phase may have one more than its whole periods."""
    period_s, whole_s = PERIOD_S, sum(phase.seconds for phase in phases)
    while whole_s / period_s + 2 * len(phases) > most and period_s < whole_s:
        period_s *= 2
    return period_s


def _cut_times_s(begin_s: float, seconds: float, period_s: float) -> list[float]:
    """Return where a phase is cut, in seconds from its start and including both ends: at whole periods of the round."""
    first = math.floor((begin_s + MIN_PHASE_S) / period_s) + 1
    last = math.ceil((begin_s + seconds - MIN_PHASE_S) / period_s)
    return [0.0, *(k * period_s - begin_s for k in range(first, last)), seconds]


def _stretch_temperatures_c(
    phase: RoundPhase, thermal: ThermalModel, from_c: float, cuts: Sequence[float]
) -> list[float]:
    """Return the temperature in the middle of every interval."""
    if not phase.is_working:
        return [round(from_c, TEMPERATURE_DIGITS)] * (len(cuts) - 1)
    middles = [(a + b) / 2 for a, b in pairwise(cuts)]
    return [round(_temperature_after_c(phase, thermal, from_c, middle_s), TEMPERATURE_DIGITS) for middle_s in middles]


def _temperature_after_c(phase: RoundPhase, thermal: ThermalModel, from_c: float, seconds: float) -> float:
    """Return the temperature after ``seconds`` of a phase; a throttled phase does not exceed the trip point."""
    if not phase.is_working:
        return from_c
    reached_c = thermal.temperature_after_c(from_c, phase.power_w, seconds)
    return min(reached_c, TRIP_C) if phase.throttled else reached_c


def _repeat_values(values: Sequence[float], counts: Sequence[int]) -> tuple[float, ...]:
    """Repeat every value as often as its phase has intervals."""
    return tuple(chain.from_iterable(map(repeat, values, counts)))
