"""An emulated board's trace of a round, made of what it did: fetching, every part of its work, sending; pure.

Power is the mean of each phase, as the report has it, so that cutting the trace anywhere gives the joules that the
books count. The temperature follows the board's own thermal mass while it works, and stays while it fetches and sends,
as the board's model has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fedge.devices.device_wrapper import DeviceWrapper
from fedge.devices.emulated_board import TRIP_C, ThermalModel
from fedge.protocols import Clock, Device
from fedge.telemetry.trace_operations import (
    PERIOD_S,
    join_traces,
    limit_trace_length,
    make_constant_trace,
    shift_trace,
    trace_from_samples,
)
from fedge.types import Measurement, PowerMode, RoundReport, SensorSample, Trace, Workload

MAX_STRETCHES = 1300
"""Stretches of an emulated board's trace: below 100 KB of JSON, since a thousand boards may answer. Chosen by us."""
MIN_PHASE_S = 1e-9
"""No phase is cut nearer to its ends than this."""
TEMPERATURE_DIGITS = 2
"""Of a temperature: hundredths of a degree, for short messages; chosen by us."""


@dataclass(frozen=True, slots=True)
class RoundPhase:
    """A board doing one thing for ``seconds``: its power, the mode it is in; ``works``: it warms by its power."""

    seconds: float
    power_w: float
    mode: PowerMode
    is_working: bool
    throttled: bool = False


def build_emulated_trace(
    report: RoundReport, waiting: PowerMode, thermal: ThermalModel, temperature_c: float, most: int = MAX_STRETCHES
) -> Trace:
    """The trace of the round that ``report`` tells, from its start to the upload's end.

    ``waiting`` is the mode in which the board fetches and sends, ``temperature_c`` its temperature at the start.
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
    """Fetching and sending: idle power and the radio's."""
    link = report.link
    power_w = report.idle_w + link.radio_j / (link.down_s + link.up_s)
    return RoundPhase(link.down_s, power_w, waiting, is_working=False), RoundPhase(
        link.up_s, power_w, waiting, is_working=False
    )


def _build_phases(report: RoundReport, waiting: PowerMode) -> list[RoundPhase]:
    fetching, sending = build_link_phases(report, waiting)
    return [fetching, *(_work_phase(part) for part in report.parts), sending]


def _work_phase(part: Measurement) -> RoundPhase:
    """With its warm-up and the change of mode before it."""
    return RoundPhase(part.work_s, part.power_w, part.mode, is_working=True, throttled=part.throttled)


def _choose_period_s(phases: Sequence[RoundPhase], most: int) -> float:
    """The period with which there are no more than ``most`` stretches: each phase has one more than its periods."""
    period_s, whole_s = PERIOD_S, sum(phase.seconds for phase in phases)
    while whole_s / period_s + 2 * len(phases) > most and period_s < whole_s:
        period_s *= 2
    return period_s


def _cut_times_s(begin_s: float, seconds: float, period_s: float) -> list[float]:
    """Where a phase is cut, in seconds from its begin, both ends among them: at whole periods of the round."""
    first = math.floor((begin_s + MIN_PHASE_S) / period_s) + 1
    last = math.ceil((begin_s + seconds - MIN_PHASE_S) / period_s)
    return [0.0, *(k * period_s - begin_s for k in range(first, last)), seconds]


def _stretch_temperatures_c(
    phase: RoundPhase, thermal: ThermalModel, from_c: float, cuts: Sequence[float]
) -> list[float]:
    """In the middle of every stretch."""
    if not phase.is_working:
        return [round(from_c, TEMPERATURE_DIGITS)] * (len(cuts) - 1)
    middles = [(a + b) / 2 for a, b in pairwise(cuts)]
    return [round(_temperature_after_c(phase, thermal, from_c, middle_s), TEMPERATURE_DIGITS) for middle_s in middles]


def _temperature_after_c(phase: RoundPhase, thermal: ThermalModel, from_c: float, seconds: float) -> float:
    """The temperature so far into a phase; a throttled one stays at the trip point once it is there."""
    if not phase.is_working:
        return from_c
    reached_c = thermal.temperature_after_c(from_c, phase.power_w, seconds)
    return min(reached_c, TRIP_C) if phase.throttled else reached_c


def _repeat_values(values: Sequence[float], counts: Sequence[int]) -> tuple[float, ...]:
    """Every value as often as its phase has stretches."""
    return tuple(value for value, count in zip(values, counts, strict=True) for _ in range(count))


GAP_PERIODS = 3.0
"""So many sampling periods without a sample are a gap, as for the energy."""
SampleReader = Callable[[float, float], Sequence[SensorSample]]
"""The samples from one time to another, with the nearest ones around them: ``Sampler.samples``."""


class TracingDevice(DeviceWrapper):
    """A ``fedge.protocols.Device`` in front of another that keeps what the sensors saw of its work.

    ``samples`` are on ``clock``'s time, one every ``period_s``. ``parts`` has a trace for every part of the work, each
    from 0 on; ``spans_s`` are their lengths.
    """

    def __init__(self, device: Device, samples: SampleReader, clock: Clock, period_s: float) -> None:
        super().__init__(device)
        self._samples, self._clock = samples, clock
        self._gap_s = GAP_PERIODS * period_s
        self.parts: list[Trace] = []
        self.spans_s: list[float] = []

    def measure(
        self, workload: Workload, steps: int, work: Callable[[int], object], limit_s: float | None = None
    ) -> Measurement:
        began_s = ended_s = self._clock.now_s()

        def timed(count: int) -> object:
            nonlocal ended_s
            told = work(count)
            ended_s = self._clock.now_s()
            return told

        try:
            measured = self._device.measure(workload, steps, timed, limit_s)
        except BaseException:
            self._store_part(began_s, self._clock.now_s())
            raise
        self._store_part(ended_s - measured.work_s, ended_s)
        return measured

    def add_lost_time(self, seconds: float) -> None:
        """Take the last ``seconds`` as the work's first part: tries that ran out of memory, which the report books."""
        now_s = self._clock.now_s()
        self._store_part(now_s - seconds, now_s)

    def build_trace(self, fetching: RoundPhase | None = None, sending: RoundPhase | None = None) -> Trace:
        """The whole round's, from its start: fetching, the parts of the work, sending; gaps where no sample came."""
        traces, at_s = list[Trace](), 0.0
        for seconds, part in (
            _phase_trace(fetching),
            *zip(self.spans_s, self.parts, strict=True),
            _phase_trace(sending),
        ):
            traces.append(shift_trace(part, at_s))
            at_s += seconds
        return limit_trace_length(join_traces(traces))

    def _store_part(self, start_s: float, end_s: float) -> None:
        """What was seen from ``start_s`` to ``end_s``; right away, since a sampler forgets."""
        if end_s > start_s:
            seen = self._samples(start_s, end_s)
            self.parts.append(
                shift_trace(
                    trace_from_samples(seen, start_s=start_s, end_s=end_s, period_s=PERIOD_S, gap_s=self._gap_s),
                    -start_s,
                )
            )
            self.spans_s.append(end_s - start_s)


def _phase_trace(phase: RoundPhase | None) -> tuple[float, Trace]:
    """A transfer, as the fleet's entry describes the board's network: its power is told, not measured."""
    return (
        (0.0, make_constant_trace(0.0, 0.0, 0.0))
        if phase is None
        else (phase.seconds, make_constant_trace(0.0, phase.seconds, phase.power_w))
    )
