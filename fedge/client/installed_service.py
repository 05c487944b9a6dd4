"""A real board's standing service: installed in its worker, asked what it did, and reckoned with in every round.

A board keeps one batch size for all modes of a round, since a worker warms its network up for every batch size that it
is given: the one that suits its fastest mode.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import Any

from fedge.client.inference_service import (
    RoundService,
    average_inference_costs,
    build_demand,
    first_step_s,
    plan_round_service,
)
from fedge.client.worker_training import STRETCH_LIMIT_S, translate_worker_errors
from fedge.experiment import FleetBoard, ServingSpec
from fedge.modes import find_mode_index, stack_modes
from fedge.protocols import Device, Predictor
from fedge.serving.standing_service import InferenceCosts, ServiceTable, build_service_table
from fedge.types import DeviceSpec, Measurement, Modes, PowerMode, ServiceUse, Workload
from fedge.worker.worker_client import WorkerClient, WorkerError

logger = logging.getLogger(__name__)

SERVICE_PREFIX = "fedge-"
"""What the names of such services begin with in the worker."""


class ServiceReplies:
    """What the worker told of the service with every request for minibatches; taken once per stretch of work."""

    def __init__(self, service: InstalledService) -> None:
        self._service = service
        self._told: list[tuple[Mapping[str, Any], float]] = []

    def add_reply(self, reply: Mapping[str, Any]) -> None:
        """One reply; what services did before the first stretch is in the one that began the training."""
        told, spent = (reply.get("service") or {}).get(self._service.name), reply.get("spent") or {}
        if told is not None:
            self._told.append((told, float(spent.get("serving_s", 0.0)) + float(spent.get("held_s", 0.0))))

    def take_use(self, seconds: float) -> ServiceUse | None:
        """What the service did in a stretch of so many seconds; None when nothing was told of it."""
        told, self._told = self._told, []
        if not told:
            return None
        bins: dict[int, int] = {}
        for one, _ in told:
            for place, count in one["histogram"]["bins"]:
                bins[int(place)] = bins.get(int(place), 0) + int(count)
        parts = [one for one, _ in told]
        dropped = sum(int(one["dropped"]) for one in parts)
        return ServiceUse(
            batch_size=self._service.batch_size,
            seconds=seconds,
            busy_s=min(seconds, sum(busy_s for _, busy_s in told)),
            requests=sum(int(one["served"]) for one in parts) + dropped,
            late=sum(int(one["late"]) for one in parts),
            dropped=dropped,
            batches=sum(int(one["batches"]) for one in parts),
            worst_s=max(float(one["histogram"]["worst_s"]) for one in parts),
            latencies=tuple(sorted(bins.items())),
            latency_s=self._service.spec.latency_s,
        )


class ServiceDevice:
    """A ``fedge.protocols.Device`` in front of another: its measurements say what the service did meanwhile.

    Waiting costs what the service draws, too: ``resting`` says how much of the time that is.
    """

    def __init__(self, device: Device, heard: ServiceReplies, resting: ServiceTable) -> None:
        self._device, self._heard, self._resting = device, heard, resting

    @property
    def spec(self) -> DeviceSpec:
        return self._device.spec

    def idle_w(self, mode: PowerMode) -> float:
        return serving_idle_w(self._resting, mode, self._device.idle_w(mode))

    def use_mode(self, mode: PowerMode) -> AbstractContextManager[None]:
        return self._device.use_mode(mode)

    def measure(
        self, workload: Workload, steps: int, work: Callable[[int], object], limit_s: float | None = None
    ) -> Measurement:
        self._heard.take_use(0.0)
        measured = self._device.measure(workload, steps, work, limit_s)
        return dataclasses.replace(measured, service=self._heard.take_use(measured.work_s))


def serving_idle_w(resting: ServiceTable, mode: PowerMode, idle_w: float) -> float:
    """Watts while a board waits and serves in ``mode``, at rest between the batches."""
    row = find_mode_index(resting.modes, mode)
    if row is None:
        return idle_w
    share = float(resting.share[row])
    return share * float(resting.power_w[row]) + (1.0 - share) * idle_w


@dataclass(frozen=True, slots=True, eq=False)
class InstalledService:
    """A board's service in one round: what it asks of the board, and the batch size that its worker is given."""

    spec: ServingSpec
    round_service: RoundService
    batch_size: int

    @property
    def name(self) -> str:
        """What it is called in the worker: another service, or another batch size, has another name."""
        told = f"{self.spec.model_dump_json()} {self.batch_size}"
        return SERVICE_PREFIX + hashlib.sha256(told.encode()).hexdigest()[:12]


def plan_installed_service(
    spec: ServingSpec,
    device: DeviceSpec,
    candidates: Modes,
    inner: Predictor,
    own: Iterable[Measurement],
    stay: tuple[PowerMode, ...],
) -> InstalledService:
    """The service of a round; ``inner`` predicts training alone, the modes ``stay`` may be chosen in any case."""
    demand, measured = build_demand(spec), tuple(own)
    every = average_inference_costs(device, spec.cost, demand.batch_sizes, candidates)
    size = _choose_batch_size(spec, device, inner)
    return InstalledService(
        spec,
        plan_round_service(
            every, demand=dataclasses.replace(demand, batch_sizes=(size,)), inner=inner, own=measured, stay=stay
        ),
        size,
    )


def _choose_batch_size(spec: ServingSpec, device: DeviceSpec, inner: Predictor) -> int:
    """The batch size that suits the fastest mode, beside a minibatch as long as is believed before any was measured."""
    top, demand = stack_modes([device.maxn]), build_demand(spec)
    inference: InferenceCosts = average_inference_costs(device, spec.cost, demand.batch_sizes, top)
    train_s = inner.fit([]).predict(top).step_s
    return int(build_service_table(inference, demand, train_s, first_step_s(train_s)).batch_size[0])


def install_service(worker: WorkerClient, service: InstalledService, task: Mapping[str, Any], seed: int) -> None:
    """Let the service stand in the worker, unless it does already; raises ``WorkerFailed``."""
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
    """The run is over: its service stands no more. A worker that cannot be reached has none."""
    if board is None or board.entry.serving is None:
        return
    try:
        with closing(WorkerClient(socket, STRETCH_LIMIT_S)) as worker:
            _end_services(worker, worker.status().get("services") or {})
    except WorkerError as error:
        logger.warning("the service of %s cannot be ended: %s", board.name, error)


def _end_services(worker: WorkerClient, stands: Iterable[str]) -> None:
    """Let every service of this kind stand no more."""
    for name in stands:
        if name.startswith(SERVICE_PREFIX):
            worker.unserve(name)
