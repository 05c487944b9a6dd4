"""The sensor trace of a round: computed from the report for emulated boards, collected from samples on real ones.

In an emulated trace, power is the mean of each phase as in the report, so that any partition of the trace gives the
reported energy. The temperature follows the board's thermal model during work and stays constant during transfers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fedge.devices.device_wrapper import DeviceWrapper
from fedge.devices.thermal_model import TRIP_C, ThermalModel
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
# Intervals of an emulated trace: keeps it below 100 KB of JSON, since a thousand clients may reply at once.
MIN_PHASE_S = 1e-9
# Minimum distance of a cut from the ends of a phase; avoids intervals of zero length from rounding.
TEMPERATURE_DIGITS = 2
# Hundredths of a degree, to keep messages short.


@dataclass(frozen=True, slots=True)
class RoundPhase:
    """A phase of a round with constant power and mode.

    Attributes:
        seconds: Length of the phase.
        power_w: Mean power in watts.
        mode: Power mode.
        is_working: Whether the phase is work, which heats the board; transfers leave the temperature unchanged.
        throttled: Whether the board throttled.
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
        report: Report of the round.
        waiting: Mode during the transfers.
        thermal: The board's thermal model.
        temperature_c: Temperature at the start in degrees Celsius.
        most: Largest number of intervals.
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
    return tuple(value for value, count in zip(values, counts, strict=True) for _ in range(count))


GAP_PERIODS = 3.0
# Sampling periods without a sample that count as a gap; the same as for the energy.
SampleReader = Callable[[float, float], Sequence[SensorSample]]
"""Returns the samples between two times with the nearest ones around them: ``Sampler.samples_between``."""


class TracingDevice(DeviceWrapper):
    """A ``fedge.protocols.Device`` wrapper that keeps the sensor samples of its work.

    Attributes:
        parts: One trace per part of the work, each starting at 0.
        spans_s: Lengths of the parts in seconds.
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
            reply = work(count)
            ended_s = self._clock.now_s()
            return reply

        try:
            measured = self._device.measure(workload, steps, timed, limit_s)
        except BaseException:
            self._store_part(began_s, self._clock.now_s())
            raise
        self._store_part(ended_s - measured.work_s, ended_s)
        return measured

    def add_lost_time(self, seconds: float) -> None:
        """Record the last ``seconds`` as the first part of the work: attempts that ran out of memory."""
        now_s = self._clock.now_s()
        self._store_part(now_s - seconds, now_s)

    def build_trace(self, fetching: RoundPhase | None = None, sending: RoundPhase | None = None) -> Trace:
        """Build the trace of the whole round (download, work, upload), with gaps where samples are missing."""
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
        """Store the samples between ``start_s`` and ``end_s`` at once, since a sampler keeps them only for a while."""
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
    """Return the length and trace of a transfer, whose power comes from the fleet entry and is not measured."""
    return (
        (0.0, make_constant_trace(0.0, 0.0, 0.0))
        if phase is None
        else (phase.seconds, make_constant_trace(0.0, phase.seconds, phase.power_w))
    )
