"""The standing service of a real board: installed in its worker and queried for its statistics."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from fedge.client.worker_training import STRETCH_LIMIT_S, translate_worker_errors
from fedge.experiment import FleetBoard, ServingSpec
from fedge.modes import find_mode_index
from fedge.serving.standing_service import ServiceTable
from fedge.types import PowerMode, ServiceUse
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
    """A board's service with the batch size of its worker.

    Attributes:
        spec: The service's settings.
        batch_size: Batch size given to the worker.
    """

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
