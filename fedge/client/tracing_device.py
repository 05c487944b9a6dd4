"""A real board during a round: its sensors are traced, and its worker's standing service counts in time and power."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import Any

from fedge.client.round_trace import RoundPhase
from fedge.client.worker_training import STRETCH_LIMIT_S, translate_worker_errors
from fedge.experiment import FleetBoard, ServingSpec
from fedge.modes import find_mode_index
from fedge.protocols import Clock, Device
from fedge.serving.standing_service import ServiceTable
from fedge.telemetry.trace_operations import (
    PERIOD_S,
    clip_trace,
    join_traces,
    limit_trace_length,
    make_constant_trace,
    shift_trace,
    trace_from_samples,
)
from fedge.types import EMPTY_TRACE, DeviceSpec, Measurement, PowerMode, SensorSample, ServiceUse, Trace, Workload
from fedge.worker.worker_client import WorkerClient, WorkerError

logger = logging.getLogger(__name__)


SERVICE_PREFIX = "fedge-"
"""Prefix of the names of such services in the worker."""


class ServiceReplies:
    """Service statistics from the worker's replies to requests for steps; collected per interval of work."""

    def __init__(self, service: InstalledService) -> None:
        self._service = service
        self._replies: list[tuple[Mapping[str, Any], float]] = []

    def add_reply(self, reply: Mapping[str, Any]) -> None:
        """Add a reply; work of the service before the first interval is in the reply that began the training."""
        statistics, spent = (reply.get("service") or {}).get(self._service.name), reply.get("spent") or {}
        if statistics is not None:
            self._replies.append((statistics, float(spent.get("serving_s", 0.0)) + float(spent.get("held_s", 0.0))))

    def take_use(self, seconds: float) -> ServiceUse | None:
        """Return and reset the statistics of an interval of ``seconds`` seconds, or None if no reply contained any."""
        replies, self._replies = self._replies, []
        if not replies:
            return None
        bins: dict[int, int] = {}
        for one, _ in replies:
            for place, count in one["histogram"]["bins"]:
                bins[int(place)] = bins.get(int(place), 0) + int(count)
        parts = [one for one, _ in replies]
        dropped = sum(int(one["dropped"]) for one in parts)
        return ServiceUse(
            batch_size=self._service.batch_size,
            seconds=seconds,
            busy_s=min(seconds, sum(busy_s for _, busy_s in replies)),
            requests=sum(int(one["served"]) for one in parts) + dropped,
            late=sum(int(one["late"]) for one in parts),
            dropped=dropped,
            batches=sum(int(one["batches"]) for one in parts),
            worst_s=max(float(one["histogram"]["worst_s"]) for one in parts),
            latencies=tuple(sorted(bins.items())),
            latency_s=self._service.spec.latency_s,
        )


def serving_idle_w(resting: ServiceTable, mode: PowerMode, idle_w: float) -> float:
    """Return the power in watts while a board waits and serves in ``mode``; ``idle_w`` is the power between batches."""
    row = find_mode_index(resting.modes, mode)
    if row is None:
        return idle_w
    share = float(resting.share[row])
    return share * float(resting.power_w[row]) + (1.0 - share) * idle_w


@dataclass(frozen=True, slots=True)
class InstalledService:
    """A board's service with the batch size of its worker."""

    spec: ServingSpec
    batch_size: int

    @property
    def name(self) -> str:
        """Return the name in the worker; other settings or another batch size give another name."""
        settings = f"{self.spec.model_dump_json()} {self.batch_size}"
        return SERVICE_PREFIX + hashlib.sha256(settings.encode()).hexdigest()[:12]


def install_service(worker: WorkerClient, service: InstalledService, task: Mapping[str, Any], seed: int) -> None:
    """Install the service in the worker unless it is already installed.

    Raises:
        WorkerFailed: If the worker refuses or cannot be reached.
    """
    spec = service.spec
    with translate_worker_errors():
        stands: Mapping[str, Any] = worker.status().get("services") or {}
        if service.name in stands and not stands[service.name].get("failed"):
            return
        _end_services(worker, stands)
        worker.serve(
            service.name,
            task if spec.model is None else {"builtin": spec.model},
            service.batch_size,
            spec.latency_s,
            arrivals={"kind": spec.arrivals, "rate_hz": spec.rate_hz, "seed": seed},
        )


def remove_service(socket: str, board: FleetBoard | None) -> None:
    """Remove the board's service at the end of a run; a worker that cannot be reached is only logged."""
    if board is None or board.entry.serving is None:
        return
    try:
        with closing(WorkerClient(socket, STRETCH_LIMIT_S)) as worker:
            _end_services(worker, worker.status().get("services") or {})
    except WorkerError as error:
        logger.warning("the service of %s cannot be ended: %s", board.name, error)


def _end_services(worker: WorkerClient, stands: Iterable[str]) -> None:
    """Remove every service of this kind from the worker."""
    for name in stands:
        if name.startswith(SERVICE_PREFIX):
            worker.unserve(name)


GAP_PERIODS = 3.0
# Sampling periods without a sample that count as a gap; the same as for the energy.
READ_PERIOD_S = 600.0
"""Seconds of work after which its samples are read: well below the hour for which a sampler keeps them."""
SampleReader = Callable[[float, float], Sequence[SensorSample]]
"""Returns the samples between two times with the nearest ones around them: ``Sampler.samples_between``."""


class TracingDevice:
    """A real board during a round, a ``fedge.protocols.Device``: keeps what its sensors and its service report.

    Args:
        lost_s: Seconds just before, which become the first part of the work: attempts that ran out of memory.
        replies: Statistics of the service during the work; None if nothing is trained or served.

    Attributes:
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
        began_s = ended_s = read_s = self._clock.now_s()
        earlier: list[Trace] = []

        def note_end(count: int) -> object:
            nonlocal ended_s, read_s
            reply = work(count)
            ended_s = self._clock.now_s()
            if ended_s - read_s >= READ_PERIOD_S:
                earlier.append(self._read_trace(read_s, ended_s))
                read_s = ended_s
            return reply

        try:
            measured = self._device.measure(workload, steps, note_end, limit_s)
        except BaseException:
            self._store_part(began_s, self._clock.now_s(), earlier)
            raise
        self._store_part(ended_s - measured.work_s, ended_s, earlier)
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

    def _store_part(self, start_s: float, end_s: float, earlier: Sequence[Trace] = ()) -> None:
        """Store the trace from ``start_s`` to ``end_s``, whose first stretches may have been read before."""
        if end_s > start_s:
            read_s = max((trace.start_s[-1] + trace.span_s[-1] for trace in earlier if len(trace)), default=start_s)
            whole = clip_trace(join_traces([*earlier, self._read_trace(read_s, end_s)]), start_s, end_s)
            self.parts.append(shift_trace(whole, -start_s))
            self.spans_s.append(end_s - start_s)

    def _read_trace(self, start_s: float, end_s: float) -> Trace:
        if end_s <= start_s:
            return EMPTY_TRACE
        seen = self._samples(start_s, end_s)
        return trace_from_samples(seen, start_s=start_s, end_s=end_s, period_s=PERIOD_S, gap_s=self._gap_s)


def _phase_trace(phase: RoundPhase | None) -> tuple[float, Trace]:
    """Return the length and trace of a transfer, whose power comes from the fleet entry and is not measured."""
    return (
        (0.0, make_constant_trace(0.0, 0.0, 0.0))
        if phase is None
        else (phase.seconds, make_constant_trace(0.0, phase.seconds, phase.power_w))
    )
