"""What a real board's sensors saw of a round: the samples of each part of its work, where its report books the part.

A report counts the work's parts one right after the other. What lies between them on the board's own clock (deciding,
opening files, sending the model to the worker) is in no report, and so in no trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedge.devices.front import InFront
from fedge.fleetsim.tracing import Phase
from fedge.interfaces import Clock, Device
from fedge.telemetry.tracing import PERIOD_S, bounded, joined, level, shifted, trace_of
from fedge.types import Measurement, Sample, Trace, Workload

GAP_PERIODS = 3.0
"""So many sampling periods without a sample are a gap, as for the energy."""
Samples = Callable[[float, float], Sequence[Sample]]
"""The samples from one time to another, with the nearest ones around them: ``Sampler.samples``."""


class Watching(InFront):
    """A ``fedge.interfaces.Device`` in front of another that keeps what the sensors saw of its work.

    ``samples`` are on ``clock``'s time, one every ``period_s``. ``parts`` has a trace for every part of the work, each
    from 0 on; ``spans_s`` are their lengths.
    """

    def __init__(self, device: Device, samples: Samples, clock: Clock, period_s: float) -> None:
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
            self._keep(began_s, self._clock.now_s())
            raise
        self._keep(ended_s - measured.work_s, ended_s)
        return measured

    def lost(self, seconds: float) -> None:
        """Take the last ``seconds`` as the work's first part: tries that ran out of memory, which the report books."""
        now_s = self._clock.now_s()
        self._keep(now_s - seconds, now_s)

    def trace(self, fetching: Phase | None = None, sending: Phase | None = None) -> Trace:
        """The whole round's, from its start: fetching, the parts of the work, sending; gaps where no sample came."""
        traces, at_s = list[Trace](), 0.0
        for seconds, part in (_of_phase(fetching), *zip(self.spans_s, self.parts, strict=True), _of_phase(sending)):
            traces.append(shifted(part, at_s))
            at_s += seconds
        return bounded(joined(traces))

    def _keep(self, start_s: float, end_s: float) -> None:
        """What was seen from ``start_s`` to ``end_s``; right away, since a sampler forgets."""
        if end_s > start_s:
            seen = self._samples(start_s, end_s)
            self.parts.append(shifted(trace_of(seen, start_s, end_s, PERIOD_S, self._gap_s), -start_s))
            self.spans_s.append(end_s - start_s)


def _of_phase(phase: Phase | None) -> tuple[float, Trace]:
    """A transfer, as the fleet's entry describes the board's network: its power is told, not measured."""
    return (0.0, level(0.0, 0.0, 0.0)) if phase is None else (phase.seconds, level(0.0, phase.seconds, phase.power_w))
