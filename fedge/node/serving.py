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

from fedge.concurrency.service import Inference, Standing, standing
from fedge.experiment import Board, ServingSpec
from fedge.interfaces import Device, Predictor
from fedge.modes import index_of, modes_of
from fedge.node.training import STRETCH_LIMIT_S, failing
from fedge.rounds.serving import Duty, demand_of, duty_of, first_s
from fedge.rounds.serving_costs import average_of
from fedge.types import DeviceSpec, Measurement, Modes, PowerMode, ServiceUse, Workload
from fedge.worker.client import Client, WorkerError

logger = logging.getLogger(__name__)

OURS = "fedge-"
"""What the names of such services begin with in the worker."""


class Heard:
    """What the worker told of the service with every request for minibatches; taken once per stretch of work."""

    def __init__(self, service: Stood) -> None:
        self._service = service
        self._told: list[tuple[Mapping[str, Any], float]] = []

    def hear(self, reply: Mapping[str, Any]) -> None:
        """One reply; what services did before the first stretch is in the one that began the training."""
        told, spent = (reply.get("service") or {}).get(self._service.name), reply.get("spent") or {}
        if told is not None:
            self._told.append((told, float(spent.get("serving_s", 0.0)) + float(spent.get("held_s", 0.0))))

    def take(self, seconds: float) -> ServiceUse | None:
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


class ServingDevice:
    """A ``fedge.interfaces.Device`` in front of another: its measurements say what the service did meanwhile.

    Waiting costs what the service draws, too: ``resting`` says how much of the time that is.
    """

    def __init__(self, device: Device, heard: Heard, resting: Standing) -> None:
        self._device, self._heard, self._resting = device, heard, resting

    @property
    def spec(self) -> DeviceSpec:
        return self._device.spec

    def idle_w(self, mode: PowerMode) -> float:
        return idle_beside(self._resting, mode, self._device.idle_w(mode))

    def in_mode(self, mode: PowerMode) -> AbstractContextManager[None]:
        return self._device.in_mode(mode)

    def measure(
        self, workload: Workload, steps: int, work: Callable[[int], object], limit_s: float | None = None
    ) -> Measurement:
        self._heard.take(0.0)
        measured = self._device.measure(workload, steps, work, limit_s)
        return dataclasses.replace(measured, service=self._heard.take(measured.work_s))


def idle_beside(resting: Standing, mode: PowerMode, idle_w: float) -> float:
    """Watts while a board waits and serves in ``mode``, at rest between the batches."""
    row = index_of(resting.modes, mode)
    if row is None:
        return idle_w
    share = float(resting.share[row])
    return share * float(resting.power_w[row]) + (1.0 - share) * idle_w


@dataclass(frozen=True, slots=True, eq=False)
class Stood:
    """A board's service in one round: what it asks of the board, and the batch size that its worker is given."""

    spec: ServingSpec
    duty: Duty
    batch_size: int

    @property
    def name(self) -> str:
        """What it is called in the worker: another service, or another batch size, has another name."""
        told = f"{self.spec.model_dump_json()} {self.batch_size}"
        return OURS + hashlib.sha256(told.encode()).hexdigest()[:12]


def stood(
    spec: ServingSpec,
    device: DeviceSpec,
    candidates: Modes,
    inner: Predictor,
    own: Iterable[Measurement],
    stay: tuple[PowerMode, ...],
) -> Stood:
    """The service of a round; ``inner`` predicts training alone, the modes ``stay`` may be chosen in any case."""
    demand, measured = demand_of(spec), tuple(own)
    every = average_of(device, spec.cost, demand.batch_sizes, candidates)
    size = _size(spec, device, inner)
    return Stood(spec, duty_of(every, dataclasses.replace(demand, batch_sizes=(size,)), inner, measured, stay), size)


def _size(spec: ServingSpec, device: DeviceSpec, inner: Predictor) -> int:
    """The batch size that suits the fastest mode, beside a minibatch as long as is believed before any was measured."""
    top, demand = modes_of([device.maxn]), demand_of(spec)
    inference: Inference = average_of(device, spec.cost, demand.batch_sizes, top)
    train_s = inner.fit([]).predict(top).step_s
    return int(standing(inference, demand, train_s, first_s(train_s)).batch_size[0])


def install(worker: Client, service: Stood, task: Mapping[str, Any], seed: int) -> None:
    """Let the service stand in the worker, unless it does already; raises ``WorkerFailed``."""
    spec = service.spec
    with failing():
        stands: Mapping[str, Any] = worker.status().get("services") or {}
        if service.name in stands and not stands[service.name].get("failed"):
            return
        _end(worker, stands)
        worker.serve(
            service.name,
            task if spec.model is None else {"builtin": spec.model},
            service.batch_size,
            spec.latency_s,
            arrivals={"kind": spec.arrivals, "rate_hz": spec.rate_hz, "seed": seed},
        )


def remove(socket: str, board: Board | None) -> None:
    """The run is over: its service stands no more. A worker that cannot be reached has none."""
    if board is None or board.entry.serving is None:
        return
    try:
        with closing(Client(socket, STRETCH_LIMIT_S)) as worker:
            _end(worker, worker.status().get("services") or {})
    except WorkerError as error:
        logger.warning("the service of %s cannot be ended: %s", board.name, error)


def _end(worker: Client, stands: Iterable[str]) -> None:
    """Let every service of this kind stand no more."""
    for name in stands:
        if name.startswith(OURS):
            worker.unserve(name)
