"""The resolved experiment: one validated record that the launcher, the server and every client read alike."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _SpecModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class LinkSpec(_SpecModel):
    """A board's network: rates in Mbit/s, one-way latency, and the radio's power above idle while it transfers."""

    down_mbps: Positive = 50.0
    up_mbps: Positive = 20.0
    latency_s: Annotated[float, Field(ge=0)] = 0.02
    radio_w: Annotated[float, Field(ge=0)] = 0.8


class AvailabilitySpec(_SpecModel):
    """When an emulated board can take part: on and off in turn, or the intervals of a file; always by default.

    On and off last ``on_s`` and ``off_s`` on average (exponentially distributed, from the seed). ``trace`` is a CSV
    file with the columns ``board,on_s,off_s``: fleet times from which, and until which, a board is there.
    """

    on_s: Positive | None = None
    off_s: Positive | None = None
    trace: str | None = None


class BatterySpec(_SpecModel):
    """An emulated board's battery: its capacity, the share it starts with, what charges it, and when it is spared."""

    capacity_wh: Positive
    charge: Annotated[float, Field(gt=0, le=1)] = 1.0
    charging_w: Annotated[float, Field(ge=0)] = 0.0
    floor: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Below this share the board takes part in no round."""


class ServingSpec(_SpecModel):
    """A standing inference service on a board, which goes on while the board trains and while it waits.

    ``cost`` prices a batch (an inference cost's name). Requests come ``rate_hz`` times a second and are to be answered
    within ``latency_s``; the board collects them in batches of one of ``batch_sizes``, whichever suits its mode.
    """

    cost: str
    rate_hz: Annotated[float, Field(gt=0, le=10_000)]
    latency_s: Positive
    arrivals: Literal["constant", "poisson", "bursts"] = "poisson"
    batch_sizes: Annotated[tuple[Annotated[int, Field(ge=1, le=1024)], ...], Field(min_length=1)] = (1, 4, 16, 32, 64)
    model: str | None = None
    """Real boards only: what the worker infers, one of its built-in tasks; None: the network that it trains."""


class LoaderSpec(_SpecModel):
    """How samples come to an emulated board's training: so many loader processes, from such a storage.

    Where they are not fast enough training waits for them. Samples are JPEGs of ``image_mpixel`` megapixels.
    """

    workers: Annotated[int, Field(ge=0, le=64)]
    prefetch: Annotated[int, Field(ge=1, le=64)] = 2
    """Batches that each worker makes ahead."""
    storage: str | None = None
    """An emulated storage's name; None: what boards of the kind have."""
    cached: Annotated[float, Field(ge=0, le=1)] = 1.0
    """The share of the reads that the page cache answers."""
    image_mpixel: Positive = 0.25
    file_mb: Positive | None = None
    """A file's mean size; None: what JPEG makes of the image."""


class FleetEntry(_SpecModel):
    """``count`` alike boards; named ``<name or device>-1`` ... in the run."""

    device: str
    count: Annotated[int, Field(ge=1, le=10_000)] = 1
    name: str | None = None
    truth: str = "model"
    """``model`` (calibrated or estimated physics) or ``table:PATH`` (replays a measured table)."""
    references: tuple[str, ...] = ()
    """Paths of tables that other workloads were measured into on such a board; the predictor learns from them."""
    cost: str | None = None
    """What a minibatch costs on these boards, when that is not ``workload.cost``."""
    link: LinkSpec = LinkSpec()
    ambient_c: Annotated[float, Field(ge=-40, le=85)] = 25.0
    availability: AvailabilitySpec | None = None
    battery: BatterySpec | None = None
    serving: ServingSpec | None = None
    """What these boards infer for others all the while; local training uses what is left."""
    loader: LoaderSpec | None = None
    """How their samples come, emulated boards only; None: minibatches take what their cost says."""
    memory_mb: Positive | None = None
    """What training may use of their memory; None: what the catalogue says they have, less the system's share."""


class MemorySpec(_SpecModel):
    """How a board that has too little memory for the workload's minibatches trains nevertheless.

    With ``guard`` it lowers the batch size, the width of its network, or both, until what is predicted, plus ``margin``
    as a share of it, fits into its ``memory_mb``; without, it tries what it is asked for and may fail.
    """

    guard: bool = True
    margin: Annotated[float, Field(ge=0, le=1)] = 0.05
    min_batch: Annotated[int, Field(ge=1)] = 1
    widths: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Field(min_length=1)] | None = None
    """The parts of every layer's channels that a board may keep. None: ``DEFAULT_WIDTHS`` where the task's network can
    be narrowed and the strategy averages, 1 elsewhere."""
    lower: Literal["batch-first", "width-first"] = "batch-first"


DEFAULT_WIDTHS = (1.0, 0.75, 0.5, 0.25)
"""The widths among which a board chooses where the experiment names none."""


class NetworkSpec(_SpecModel):
    """A network that no board has a table of: its minibatches are priced by its layers, and labelled estimated.

    ``model`` is a MODEL as in ``fedge layers``, ``input`` one sample's shape where it has another than its own.
    """

    model: str
    input: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)] | None = None
    loading: Literal["workers", "inline", "cached"] = "workers"
    image_mpixel: Positive = 0.25
    """Megapixels of a stored image; they are decoded by the loader."""
    mixed: bool = False
    """Computed in mixed precision."""
    layers: str | None = None
    """What was counted, one line per layer: the launcher fills it in."""


class WorkloadSpec(_SpecModel):
    """What is learnt (``task``) and what a minibatch of it costs on a board (``cost``, a cost profile's name).

    With ``network`` there is no such profile, and ``cost`` is but a name: the network's own by default.
    """

    task: str = "digits-cnn"
    cost: str = "resnet18-imagenet"
    batch_size: Annotated[int, Field(ge=1)] = 16
    local_epochs: Positive = 2.0
    learning_rate: Positive = 0.05
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    memory: MemorySpec = MemorySpec()
    network: NetworkSpec | None = None


class DataSpec(_SpecModel):
    """How the training samples are split over the boards."""

    partition: Literal["iid", "dirichlet", "shards"] = "dirichlet"
    alpha: Positive = 1.0
    shards_per_client: Annotated[int, Field(ge=1)] = 2
    dir: str | None = None
    download: bool = True


class PolicySpec(_SpecModel):
    """A policy's name (``preset:NAME`` and ``module:function`` too) and its own numbers."""

    name: str = "balanced"
    power_w: Positive | None = None
    fleet_power_w: Positive | None = None
    """The watts of all boards of a round together, while they work."""
    round_energy_j: Positive | None = None
    """The joules of all boards in one round."""
    budget_j: Positive | None = None
    """The joules of all boards over the whole run."""
    deadline_s: Positive | None = None
    time_weight: Annotated[float, Field(ge=0, le=1)] | None = None
    max_slowdown: Annotated[float, Field(ge=1)] | None = None
    confidence: Annotated[float, Field(gt=0, lt=1)] | None = None

    @property
    def limits(self) -> dict[str, float]:
        """The numbers that were given."""
        return {k: v for k, v in self.model_dump(exclude={"name"}).items() if v is not None}


class ExplorationSpec(_SpecModel):
    """How a board learns while it trains: a few minibatches of a round in modes that may turn out to be better.

    Only where there is a deadline to keep: the rest of the round must still fit in it at full speed.
    """

    share: Annotated[float, Field(ge=0, le=0.9)] = 0.4
    """The largest share of a round's minibatches spent so; 0 turns it off."""
    probe_s: Annotated[float, Field(ge=0)] = 0.5
    """How long a probe lasts at least: a power sensor needs a moment."""
    slack: Annotated[float, Field(ge=0, le=1)] = 0.02
    """How much longer than its planned deadline a round may become for it, in a board's first ``slack_rounds``."""
    slack_rounds: Annotated[int, Field(ge=0)] = 5
    probes: Annotated[int, Field(ge=0)] = 3
    """How many modes are tried in one round at most."""
    foresight: Annotated[float, Field(ge=0)] = 0.5
    """How many rounds' worth of other deadlines a board prepares for, beside those that it had."""
    modes: Annotated[int, Field(ge=1)] | None = 15
    """The largest number of different modes that a board tries itself, before it only works in modes that it knows, or
    of which other boards of its kind told it enough; null for no limit, and unknown modes are worked in untried."""


class StrategySpec(_SpecModel):
    """A class of ``flwr.serverapp.strategy`` (or ``module:Class``) and its keyword arguments."""

    name: str = "FedAvg"
    options: dict[str, float | int | str | bool] = Field(default_factory=dict)
    wraps: StrategySpec | None = None
    """The strategy inside a wrapper such as ``DifferentialPrivacyServerSideFixedClipping``."""


class SelectionSpec(_SpecModel):
    """Who takes part in a round: a selector's name (or ``module:function``), how many, and its own numbers."""

    name: str = "all"
    count: Annotated[int, Field(ge=1)] | None = None
    """Clients whose results are wanted; every available one by default."""
    over_commit: Annotated[float, Field(ge=1)] = 1.0
    """So many times ``count`` are asked; when ``count`` are done, the others are cancelled."""
    options: dict[str, float] = Field(default_factory=dict)


class LateReplySpec(_SpecModel):
    """What happens to a board that is not done by ``deadline * (1 + grace)`` on the fleet's clock.

    ``accept``: the round waits for it. ``drop``: its reply is thrown away. ``discount``: its reply joins a later round,
    weighed by ``(1 + rounds late) ** -staleness_exponent``. ``partial``: it stops by then and sends what it has done,
    which is weighed by the minibatches done.
    """

    action: Literal["accept", "drop", "discount", "partial"] = "accept"
    grace: Annotated[float, Field(ge=0)] = 0.25
    staleness_exponent: Annotated[float, Field(ge=0)] = 0.5


class SuperlinkSpec(_SpecModel):
    """The SuperLink of a fleet of real boards: where it listens, who vouches for it, how long boards may take."""

    address: str = "127.0.0.1:8000"
    root_certificates: str | None = None
    """The path of the CA's certificate (PEM); without it the connection is not encrypted, for loopback only."""
    connect_timeout_s: Positive = 120.0
    """How long the server waits for the whole fleet before the first round; then it goes on with those that came."""


class ExporterSpec(_SpecModel):
    """Where a run's rows go besides its store: an exporter's name (or ``module:Class``) and its own options."""

    name: str
    options: dict[str, float | int | str | bool] = Field(default_factory=dict)


class Experiment(_SpecModel):
    """One experiment, fully resolved; the same seed gives the same rows on every backend."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "experiment"
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 1
    rounds: Annotated[int, Field(ge=1, le=100_000)] = 10
    backend: Literal["local", "sim", "fleet"] = "sim"
    superlink: SuperlinkSpec = SuperlinkSpec()
    """Where a fleet of real boards meets; the other backends have no use for it."""
    fleet: Annotated[tuple[FleetEntry, ...], Field(min_length=1)]
    workload: WorkloadSpec = WorkloadSpec()
    data: DataSpec = DataSpec()
    policy: PolicySpec = PolicySpec()
    predictor: str = "fedge"
    share_samples: bool = True
    """Whether boards of one kind get some of each other's measurements."""
    exploration: ExplorationSpec = ExplorationSpec()
    selection: SelectionSpec = SelectionSpec()
    strategy: StrategySpec = StrategySpec()
    late: LateReplySpec = LateReplySpec()
    reply_timeout_s: Positive = 600.0
    """Real seconds that the server waits for a round's replies before it counts the missing ones as failed."""
    exporters: tuple[ExporterSpec, ...] = ()
    plugins: tuple[str, ...] = ()
    """Paths of the user's own Python modules that ``module:name`` entries refer to."""


class FleetBoard(_SpecModel):
    """One board of the fleet: its own name, its place in the fleet and its entry."""

    name: str
    index: int
    entry: FleetEntry


def list_boards(experiment: Experiment) -> tuple[FleetBoard, ...]:
    """Every board, in the order of the YAML; a board's place is also its data partition."""
    named = [
        (f"{entry.name or entry.device}-{i}", entry) for entry in experiment.fleet for i in range(1, entry.count + 1)
    ]
    return tuple(FleetBoard(name=name, index=index, entry=entry) for index, (name, entry) in enumerate(named))
