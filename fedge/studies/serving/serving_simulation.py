"""Simulate a choice of mode and batch sizes request by request on a virtual clock, with the worker's interleaver."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedge.clock import SimulatedClock
from fedge.worker.arrivals import Arrivals, arrival_times
from fedge.worker.inference_interleaver import HostedService, Interleaver, Request, ServiceStatistics

PERCENTILES = (50.0, 95.0, 99.0)
MAX_VIOLATIONS_PCT = 1.0
"""Share of late or dropped requests in percent up to which the 99th percentile holds."""


@dataclass(frozen=True, slots=True)
class SimulatedService:
    """A service of the plan: its batch size, latency budget, arrivals, and seconds of a full batch."""

    name: str
    batch_size: int
    latency_s: float
    arrivals: Arrivals
    infer_s: float


@dataclass(frozen=True, slots=True)
class SimulatedPlan:
    """The services, and seconds of a training step, None without training."""

    services: tuple[SimulatedService, ...]
    train_s: float | None


@dataclass(frozen=True, slots=True)
class ServiceLatencies:
    """Figures of a service's requests.

    Attributes:
        name: The service.
        requests: Requests served or dropped.
        late: Requests served after their latency budget.
        dropped: Requests dropped.
        p50_s: Median latency in seconds.
        p95_s: 95th percentile of the latency in seconds.
        p99_s: 99th percentile of the latency in seconds.
        worst_s: Largest latency in seconds.
        mean_batch: Mean batch size.
        busy: Share of the time spent serving.
    """

    name: str
    requests: int
    late: int
    dropped: int
    p50_s: float
    p95_s: float
    p99_s: float
    worst_s: float
    mean_batch: float
    busy: float

    @property
    def violations(self) -> float:
        """Percentage of the requests that were late or dropped."""
        return 100.0 * (self.late + self.dropped) / self.requests if self.requests else 0.0


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The result of simulating a plan for ``seconds`` of simulated time."""

    seconds: float
    services: tuple[ServiceLatencies, ...]
    steps_per_s: float

    @property
    def holds(self) -> bool:
        """Whether every service kept its latency budget at the 99th percentile, counting dropped requests as late."""
        return all(told.violations <= MAX_VIOLATIONS_PCT for told in self.services)


def simulate_plan(plan: SimulatedPlan, seconds: float) -> SimulationResult:
    """Train and serve for ``seconds`` of simulated time; a partial batch takes as long as a full one."""
    clock = SimulatedClock()
    seconds_of = {service.name: service.infer_s for service in plan.services}
    latencies: dict[str, list[float]] = {service.name: [] for service in plan.services}

    def infer(service: HostedService, requests: list[Request]) -> None:
        clock.sleep_s(seconds_of[service.name])
        latencies[service.name] += [clock.now_s() - request.arrived_s for request in requests]

    interleaver = Interleaver(
        [HostedService(one.name, one.batch_size, one.latency_s) for one in plan.services],
        arrivals={one.name: arrival_times(one.arrivals) for one in plan.services},
        infer=infer,
        now_s=clock.now_s,
        wait_s=clock.sleep_s,
        training_share=0.0,
    )
    for service in plan.services:
        interleaver.learn_batch(service.name, service.batch_size, service.infer_s)

    def over() -> bool:
        """Return whether the time is up, also while requests leave no time for training."""
        return clock.now_s() >= seconds

    steps = 0
    if plan.train_s is None:
        interleaver.serve_while_idle(seconds)
    else:
        interleaver.learn_step(plan.train_s)
        while not over():
            interleaver.serve_before_step(over)
            if not over():
                clock.sleep_s(plan.train_s)
                steps += 1
        interleaver.end_step()
    told, passed_s = interleaver.get_statistics(), clock.now_s()
    services = tuple(_summarize_latencies(name, told[name], latencies[name], passed_s) for name in seconds_of)
    return SimulationResult(passed_s, services, steps / passed_s)


def _summarize_latencies(
    name: str, told: ServiceStatistics, latencies: list[float], seconds: float
) -> ServiceLatencies:
    p50, p95, p99, worst = np.percentile(latencies or [0.0], (*PERCENTILES, 100.0), method="inverted_cdf").tolist()
    mean_batch = len(latencies) / told.batches if told.batches else 0.0
    requests = len(latencies) + told.dropped
    return ServiceLatencies(
        name,
        requests=requests,
        late=told.late,
        dropped=told.dropped,
        p50_s=p50,
        p95_s=p95,
        p99_s=p99,
        worst_s=worst,
        mean_batch=mean_batch,
        busy=told.busy_s / seconds,
    )
