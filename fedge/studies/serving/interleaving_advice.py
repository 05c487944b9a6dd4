"""A plan of training and inference on one board: the request, its tables, and the advice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedge.serving.job_pair import JobPair, build_pair
from fedge.serving.strategies import DEFAULT_STRATEGY
from fedge.studies.serving.serving_advice import (
    SimulatedChoice,
    StrategySearch,
)
from fedge.studies.serving.serving_planner import (
    LimitChange,
    LimitVariation,
    ServingJobs,
    ServingOption,
)
from fedge.types import ProfileTable


@dataclass(frozen=True, slots=True)
class ConcurrentJobOptions:
    """The options that define the jobs."""

    train: Path | None = None
    infer: tuple[Path, ...] = ()
    device: str | None = None
    train_workload: str | None = None
    infer_workloads: tuple[str, ...] = ()
    latency_s: tuple[float, ...] = ()
    rate_hz: tuple[float, ...] = ()
    batch_sizes: str | None = None
    batch_size: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class JobTables:
    """The tables behind the jobs, measured or computed from a cost model; ``descriptions`` says which for each."""

    train: ProfileTable | None
    infer: tuple[tuple[ProfileTable, ...], ...]
    descriptions: tuple[str, ...]
    is_measured: bool

    def build_pair(self, service: int = 0) -> JobPair:
        """Return the training job with one of the services."""
        return build_pair(self.train, self.infer[service] if self.infer else ())


@dataclass(frozen=True, slots=True)
class ConcurrentPlanOptions:
    """The options of the command, unparsed."""

    jobs: ConcurrentJobOptions
    power_w: float
    arrivals: str = "constant"
    strategy: str = DEFAULT_STRATEGY
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class InterleavingAdvice:
    """Everything that is shown; ``choice`` is None if nothing keeps the limits, and ``moves`` then says what would.

    ``first`` is the best choice by the formulas, if its simulation shows that it does not hold with such arrivals.
    ``doubtful`` names implausible measured rows behind the choice.
    """

    options: ConcurrentPlanOptions
    tables: JobTables
    jobs: ServingJobs
    choice: ServingOption | None
    first: ServingOption | None
    simulation: SimulatedChoice | None
    limits: tuple[str, ...]
    runners_up: tuple[ServingOption, ...]
    neighbours: tuple[LimitVariation, ...]
    moves: tuple[LimitChange, ...]
    search: StrategySearch | None
    doubtful: tuple[str, ...] = ()

    @property
    def best(self) -> ServingOption | None:
        """The best option by the formulas."""
        return self.first or self.choice

    @property
    def has_several_services(self) -> bool:
        return len(self.jobs.services) > 1
