"""A real board during a round: its sensors are traced, and its service counts in time and power."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from fedge.client.installed_service import ServiceReplies, serving_idle_w
from fedge.client.round_trace import RoundPhase
from fedge.protocols import Clock, Device
from fedge.serving.standing_service import ServiceTable
from fedge.telemetry.trace_operations import (
    PERIOD_S,
    join_traces,
    limit_trace_length,
    make_constant_trace,
    shift_trace,
    trace_from_samples,
)
from fedge.types import DeviceSpec, Measurement, PowerMode, SensorSample, Trace, Workload

GAP_PERIODS = 3.0
# Sampling periods without a sample that count as a gap; the same as for the energy.
SampleReader = Callable[[float, float], Sequence[SensorSample]]
"""Returns the samples between two times with the nearest ones around them: ``Sampler.samples_between``."""


class TracingDevice:
    """A real board during a round, a ``fedge.protocols.Device``: keeps what its sensors and its service report.

    Args:
        device: The board.
        samples: Reads sensor samples.
        clock: The clock of the samples.
        period_s: Sampling period in seconds.
        lost_s: Seconds just before, which become the first part of the work: attempts that ran out of memory.
        resting: Service while the board waits; None without one.
        replies: Statistics of the service during the work; None if nothing is trained or served.

    Attributes:
        service_replies: As given.
        parts: One trace per part of the work, each starting at 0.
        spans_s: Lengths of the parts in seconds.
    """

    def __init__(
        self,
        device: Device,
        samples: SampleReader,
        clock: Clock,
        period_s: float,
        *,
        lost_s: float = 0.0,
        resting: ServiceTable | None = None,
        replies: ServiceReplies | None = None,
    ) -> None:
        self._device, self._samples, self._clock = device, samples, clock
        self._resting, self.service_replies = resting, replies
        self._gap_s = GAP_PERIODS * period_s
        self.parts: list[Trace] = []
        self.spans_s: list[float] = []
        now_s = clock.now_s()
        self._store_part(now_s - lost_s, now_s)

    @property
    def spec(self) -> DeviceSpec:
        return self._device.spec

    def idle_w(self, mode: PowerMode) -> float:
        idle_w = self._device.idle_w(mode)
        return idle_w if self._resting is None else serving_idle_w(self._resting, mode, idle_w)

    def use_mode(self, mode: PowerMode) -> AbstractContextManager[None]:
        return self._device.use_mode(mode)

    def measure(
        self, workload: Workload, steps: int, work: Callable[[int], object], limit_s: float | None = None
    ) -> Measurement:
        if self.service_replies is not None:
            self.service_replies.take_use(0.0)
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
        if self.service_replies is None:
            return measured
        return dataclasses.replace(measured, service=self.service_replies.take_use(measured.work_s))

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
