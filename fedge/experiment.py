"""The resolved experiment: one validated record that the launcher, the server and every client read alike."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class LinkSpec(_Record):
    """A board's network: rates in Mbit/s, one-way latency, and the radio's power above idle while it transfers."""

    down_mbps: Positive = 50.0
    up_mbps: Positive = 20.0
    latency_s: Annotated[float, Field(ge=0)] = 0.02
    radio_w: Annotated[float, Field(ge=0)] = 0.8


class FleetEntry(_Record):
    """``count`` alike boards; named ``<name or device>-1`` ... in the run."""

    device: str
    count: Annotated[int, Field(ge=1, le=10_000)] = 1
    name: str | None = None
    truth: str = "model"
    """``model`` (calibrated or estimated physics) or ``table:PATH`` (replays a measured table)."""
    references: tuple[str, ...] = ()
    """Paths of tables that other workloads were measured into on such a board; the predictor learns from them."""
    link: LinkSpec = LinkSpec()
    ambient_c: Annotated[float, Field(ge=-40, le=85)] = 25.0


class WorkloadSpec(_Record):
    """What is learnt (``task``) and what a minibatch of it costs on a board (``cost``, a cost profile's name)."""

    task: str = "digits-cnn"
    cost: str = "resnet18-imagenet"
    batch_size: Annotated[int, Field(ge=1)] = 16
    local_epochs: Positive = 2.0
    learning_rate: Positive = 0.05
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9


class DataSpec(_Record):
    """How the training samples are split over the boards."""

    partition: Literal["iid", "dirichlet", "shards"] = "dirichlet"
    alpha: Positive = 1.0
    shards_per_client: Annotated[int, Field(ge=1)] = 2
    dir: str | None = None
    download: bool = True


class PolicySpec(_Record):
    """A policy's name (``preset:NAME`` and ``module:function`` too) and its own numbers."""

    name: str = "balanced"
    power_w: Positive | None = None
    deadline_s: Positive | None = None
    time_weight: Annotated[float, Field(ge=0, le=1)] | None = None
    max_slowdown: Annotated[float, Field(ge=1)] | None = None
    confidence: Annotated[float, Field(gt=0, lt=1)] | None = None

    @property
    def limits(self) -> dict[str, float]:
        """The numbers that were given."""
        return {k: v for k, v in self.model_dump(exclude={"name"}).items() if v is not None}


class ExplorationSpec(_Record):
    """How a board learns while it trains: a few minibatches of a round in modes that may turn out to be better.

    Only where there is a deadline to keep: the rest of the round must still fit in it at full speed.
    """

    share: Annotated[float, Field(ge=0, le=0.9)] = 0.4
    """The largest share of a round's minibatches spent so; 0 turns it off."""
    probe_s: Annotated[float, Field(ge=0)] = 0.5
    """How long a probe lasts at least: a power sensor needs a moment."""
    slack: Annotated[float, Field(ge=0, le=1)] = 0.02
    """How much longer than its deadline a round may become for it."""


class StrategySpec(_Record):
    """A class of ``flwr.serverapp.strategy`` (or ``module:Class``) and its keyword arguments."""

    name: str = "FedAvg"
    options: dict[str, float | int | str | bool] = Field(default_factory=dict)
    wraps: StrategySpec | None = None
    """The strategy inside a wrapper such as ``DifferentialPrivacyServerSideFixedClipping``."""


class LateSpec(_Record):
    """What happens to a reply later than ``deadline * (1 + grace)`` on the fleet's clock."""

    action: Literal["accept", "drop"] = "accept"
    grace: Annotated[float, Field(ge=0)] = 0.25


class Experiment(_Record):
    """One experiment, fully resolved; the same seed gives the same rows on every backend."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "experiment"
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 1
    rounds: Annotated[int, Field(ge=1, le=100_000)] = 10
    backend: Literal["local", "sim"] = "sim"
    fleet: Annotated[tuple[FleetEntry, ...], Field(min_length=1)]
    workload: WorkloadSpec = WorkloadSpec()
    data: DataSpec = DataSpec()
    policy: PolicySpec = PolicySpec()
    predictor: str = "fedge"
    share_samples: bool = True
    """Whether boards of one kind get some of each other's measurements."""
    exploration: ExplorationSpec = ExplorationSpec()
    strategy: StrategySpec = StrategySpec()
    late: LateSpec = LateSpec()
    reply_timeout_s: Positive = 600.0
    """Real seconds that the server waits for a round's replies before it counts the missing ones as failed."""
    plugins: tuple[str, ...] = ()
    """Paths of the user's own Python modules that ``module:name`` entries refer to."""


class Board(_Record):
    """One board of the fleet: its own name, its place in the fleet and its entry."""

    name: str
    index: int
    entry: FleetEntry


def boards(experiment: Experiment) -> tuple[Board, ...]:
    """Every board, in the order of the YAML; a board's place is also its data partition."""
    named = [
        (f"{entry.name or entry.device}-{i}", entry) for entry in experiment.fleet for i in range(1, entry.count + 1)
    ]
    return tuple(Board(name=name, index=index, entry=entry) for index, (name, entry) in enumerate(named))
