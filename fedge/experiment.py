"""The resolved experiment: one validated record that the launcher, the server and every client read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from fedge.call_cache import cache_last_call

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _SpecModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class LinkSpec(_SpecModel):
    """A client's network.

    Attributes:
        down_mbps: Rate to the client in Mbit/s; None for that of its last rounds on a real board, and 50 before.
        up_mbps: Rate from the client in Mbit/s; None likewise, and 20 before.
        latency_s: One-way latency in seconds.
        radio_w: Power of the radio above idle during transfers, in watts.
    """

    down_mbps: Positive | None = None
    up_mbps: Positive | None = None
    latency_s: Annotated[float, Field(ge=0)] = 0.02
    radio_w: Annotated[float, Field(ge=0)] = 0.8


class AvailabilitySpec(_SpecModel):
    """When an emulated board can take part: alternating on and off periods, or intervals from a file; always by
    default.

    Attributes:
        on_s: Mean length of an available period; lengths are exponentially distributed and derived from the seed.
        off_s: Mean length of an unavailable period.
        trace: Path of a CSV file with the columns ``board,on_s,off_s``: simulated times at which a board becomes
            available and unavailable.
    """

    on_s: Positive | None = None
    off_s: Positive | None = None
    trace: str | None = None


class BatterySpec(_SpecModel):
    """An emulated board's battery.

    Attributes:
        capacity_wh: Capacity in watt-hours.
        charge: Initial state of charge, in (0, 1].
        charging_w: Constant charging power in watts.
        floor: State of charge below which the board takes part in no round.
    """

    capacity_wh: Positive
    charge: Annotated[float, Field(gt=0, le=1)] = 1.0
    charging_w: Annotated[float, Field(ge=0)] = 0.0
    floor: Annotated[float, Field(ge=0, lt=1)] = 0.1


class SignalSpec(_SpecModel):
    """Price or carbon of a kWh over time.

    Attributes:
        trace: Path of a CSV file with the columns ``at_s``, on the fleet's clock from 0, and one per zone. A line holds
            until the next one, the last without end.
        unit: Unit of the values, per kWh.
    """

    trace: str
    unit: Annotated[str, Field(min_length=1, max_length=20)] = "g"


class NetworkSpec(_SpecModel):
    """A network without measured tables: the cost of its steps is estimated from its layers and labelled so.

    Attributes:
        model: A NETWORK as in ``fedge layers``.
        input: Shape of one sample; None for the model's default.
        loading: How samples are loaded.
        image_mpixel: Megapixels of a stored image, which the loader decodes.
        mixed: Whether steps are computed in mixed precision.
        layers: Layer counts, one line per layer; filled in by the launcher.
        channels: JSON of the channels that remain (``fedge.worker.channel_cuts``) if it is a pruned variant of the
            trained network, which is then trained pruned; filled in by the launcher.
    """

    model: str
    input: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)] | None = None
    loading: Literal["workers", "inline", "cached"] = "workers"
    image_mpixel: Positive = 0.25
    mixed: bool = False
    layers: str | None = None
    channels: str | None = None


VARIANT_FILE = "variant.json"
"""Name of the record in the folder of a pruned variant, which the folder names."""


def label_network(model: str) -> str:
    """Return the short name of a NETWORK: of a pruned variant that of its folder, which tells what is left."""
    if ":" in model:
        return model  # module:function, whose dots are no end of a file's name
    path = Path(model)
    return path.parent.name if path.name == VARIANT_FILE and path.parent.name else path.stem


class PlacedBatchSpec(_SpecModel):
    """A batch of a service at the top clocks as ``fedge place`` planned it; filled in by the launcher.

    Attributes:
        device: Board of the plan.
        network: Its NETWORK, absolute if it is a file.
        input: Shape of one sample.
        accelerator: Part of the GPU on which it runs.
        precision: Precision in which it runs.
        batch_size: Samples of a batch.
        batch_s: Seconds of a batch.
        power_w: Power of the board meanwhile.
        rate_hz: Rate of the plan, if it has one.
        label: Origin of both figures.
    """

    device: str
    network: str
    input: tuple[int, ...]
    accelerator: str
    precision: str
    batch_size: Annotated[int, Field(ge=1)]
    batch_s: Positive
    power_w: Positive
    rate_hz: Positive | None
    label: Literal["measured", "calibrated", "estimated"]


class ServingSpec(_SpecModel):
    """A standing inference service on a board, which continues while the board trains and while it waits.

    Attributes:
        cost: Name of the inference cost profile that prices a batch, or of a known network; with ``network`` a label.
        network: Any network, priced by its layers.
        rate_hz: Mean request rate.
        latency_s: Latency budget of a request.
        arrivals: Arrival process.
        batch_sizes: Allowed batch sizes; the board uses the one that suits its mode.
        model: Real boards only: built-in task that the worker infers; None for the network that it trains.
        placement: Path of a plan of ``fedge place --out``, which gives network, batch size, and time and power of a
            batch at the top clocks.
    """

    cost: str
    rate_hz: Annotated[float, Field(gt=0, le=10_000)]
    latency_s: Positive
    arrivals: Literal["constant", "poisson", "bursts"] = "poisson"
    batch_sizes: Annotated[tuple[Annotated[int, Field(ge=1, le=1024)], ...], Field(min_length=1)] = (1, 4, 16, 32, 64)
    model: str | None = None
    network: NetworkSpec | None = None
    placement: str | None = None
    placed: PlacedBatchSpec | None = None


DEFAULT_LOADED_MPIXEL = 0.25


class LoaderSpec(_SpecModel):
    """The data loader of an emulated board; training waits whenever loading is slower. Samples are JPEG images.

    Attributes:
        workers: Loader processes; 0 loads between two steps.
        model: Path of a fitted loader of such a board (``fedge characterise-predict --loader-out``); None for the
            emulation's constants.
        sha256: Hash of that file, by which a resumed run knows it again; filled in by the launcher.
        prefetch: Batches that each worker prepares ahead.
        storage: ``tmpfs``, ``nvme``, ``ssd``, ``emmc``, ``sd`` or ``hdd``; None for the usual one of the board kind.
        cached: Share of the reads that the page cache serves.
        image_mpixel: Megapixels of an image, 0.25 if None; not with ``model``.
        file_mb: Mean size of a file in MB; None derives it from ``image_mpixel``, or takes that of ``model``.
    """

    workers: Annotated[int, Field(ge=0, le=64)]
    model: str | None = None
    sha256: str | None = None
    prefetch: Annotated[int, Field(ge=1, le=64)] = 2
    storage: str | None = None
    cached: Annotated[float, Field(ge=0, le=1)] = 1.0
    image_mpixel: Positive | None = None
    file_mb: Positive | None = None


BOARD_PLACE = "{board}"


class FleetEntry(_SpecModel):
    """``count`` identical boards, named ``<name or device>-1``, ``-2``, ... in the run.

    Attributes:
        device: Board of the catalogue (``fedge devices list``), or the path of a .yaml file of your own.
        count: Number of boards.
        name: Name of the boards if it is not their device's.
        link: Network of the boards.
        ambient_c: Temperature around the boards, in degrees Celsius; emulated boards only.
        availability: When an emulated board can take part; always by default.
        battery: Battery of an emulated board; none by default.
        zone: Column of the signal that holds for these boards; not needed if it has only one.
    """

    device: str
    count: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    name: str | None = None
    truth: str = "model"
    """``model`` (calibrated or estimated physical model) or ``table:PATH`` (a measured table, unchanged; ``{board}``
    in its path stands for the board's name, so that every board can have a table of its own).
    """
    references: tuple[str, ...] = ()
    """Paths of tables and model files of such a board, from which the predictor learns."""
    cost: str | None = None
    """Cost profile of a step on these boards if it is not ``workload.cost``."""
    link: LinkSpec = LinkSpec()
    ambient_c: Annotated[float, Field(ge=-40, le=85)] = 25.0
    availability: AvailabilitySpec | None = None
    battery: BatterySpec | None = None
    zone: str | None = None
    serving: ServingSpec | None = None
    """Inference service that these boards run all the time; local training uses the remaining capacity."""
    loader: LoaderSpec | None = None
    """Data loader, emulated boards only; None: a step takes what its cost profile says."""
    width: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of every layer's channels, or of adapters' ranks, that these boards train at most; their updates are merged
    as narrow ones.
    """
    memory_mb: Positive | None = None
    """Memory available for training; None: the catalogue's figure minus the system's share."""


class MemorySpec(_SpecModel):
    """How a board trains that has too little memory for the workload's steps.

    Attributes:
        guard: Lower the batch size, the width of the network, or both, until the predicted memory plus the margin fits;
            if False, train at the requested scale and possibly fail.
        margin: Margin as a share of the predicted memory; None: the prediction's 99 % bound, which a board's measured
            peaks bring closer.
        min_batch: Smallest batch size.
        widths: Allowed shares of every layer's channels, also for ``joint``. None: 1, 0.75, 0.5 and 0.25 if
            the task's network can be narrowed and the strategy averages, otherwise 1 only.
        lower: What is lowered first.
    """

    guard: bool = True
    margin: Annotated[float, Field(ge=0, le=1)] | None = None
    min_batch: Annotated[int, Field(ge=1)] = 1
    widths: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Field(min_length=1)] | None = None
    lower: Literal["batch-first", "width-first"] = "batch-first"


DEFAULT_WIDTHS = (1.0, 0.75, 0.5, 0.25)
# Default in steps of a quarter: finer steps would use a board's memory more fully, but the search takes longer.


class ScheduleSpec(_SpecModel):
    """A class of ``torch.optim.lr_scheduler`` that sets the learning rate of each round.

    Attributes:
        name: Name of the class.
        options: Its keyword arguments.
    """

    name: str
    options: dict[str, float | int | bool | str | tuple[int, ...]] = Field(default_factory=dict)


APP_TASK = "flower-app"
"""The task in the rows of a Flower app (``fedge.flower.PowerAware``), which trains a model of its own."""


class WorkloadSpec(_SpecModel):
    """The learning task, the cost profile of its steps on a board, and the size of the model that emulated links move.

    With ``network`` there is no cost profile; ``cost`` is then only a label, the network's name by default.

    Attributes:
        task: Network and data set that are trained: a built-in task, a task file (.py), ``module:function`` or none.
        cost: Cost profile of a step, which prices time and power. Without it the layers of a task file's network do.
        batch_size: Samples per step; at most those of the largest client.
        local_epochs: Passes of a client over its samples per round.
        learning_rate: Learning rate of SGD.
        momentum: Momentum of SGD.
        memory: How a board trains that has too little memory.
        network: Network that prices the steps instead of a cost profile, by its layers.
    """

    task: str = "digits-cnn"
    cost: str = "resnet18-imagenet"
    batch_size: Annotated[int, Field(ge=1)] = 16
    local_epochs: Positive = 2.0
    learning_rate: Positive = 0.05
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    schedule: ScheduleSpec | None = None
    """Learning rate over the rounds, from ``learning_rate``; None: constant."""
    metric: str = "accuracy"
    """Name of the task's figure of merit, as terminal and pages show it; the store's column stays ``accuracy``."""
    mixed_precision: bool = False
    """Whether steps are computed in half precision where torch considers it safe: bfloat16, or float16 with scaled
    gradients. Weights, evaluation and measured profiles stay in single precision.
    """
    optimizer_state: Annotated[float, Field(ge=0)] | None = None
    """Elements that the task's own optimiser keeps per trained parameter, such as 2 of Adam; None: that of a task file
    is counted when the experiment is read, and of a class, which cannot be seen, 3 are assumed. SGD has 1.
    """
    memory: MemorySpec = MemorySpec()
    network: NetworkSpec | None = None
    model_mb: Positive | None = None
    """Size in MB (10**6 bytes); None: the parameters of the network whose steps are priced, 4 bytes each."""


class DataSpec(_SpecModel):
    """How the training samples are split over the clients.

    Attributes:
        alpha: Concentration of the partition ``dirichlet``: the smaller, the more the clients' labels differ.
        shards_per_client: Shards of sorted samples per client, with the partition ``shards``.
        dir: Folder of the data sets; null for the cache.
        download: Whether a missing data set is downloaded.
    """

    partition: str = "dirichlet"
    """``iid``, ``dirichlet`` (unequal classes and sizes), ``shards`` (few classes each), ``natural`` (groups of the
    data), your own ``module:function``, or ``module:Class`` of a partitioner of flwr-datasets.
    """
    options: dict[str, float | int | bool | str] = Field(default_factory=dict)
    """Options of a partition of the user's own."""
    alpha: Positive = 1.0
    shards_per_client: Annotated[int, Field(ge=1)] = 2
    dir: str | None = None
    download: bool = True
    samples: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """Samples that the fleet stands for if the task is ``none``."""


class PolicySpec(_SpecModel):
    """A policy's name and its parameters.

    Attributes:
        name: ``maxn``, ``preset:NAME``, ``fastest-within-power``, ``least-energy-within-deadline``, ``balanced``,
            ``least-energy``, ``fastest``, ``energy-budget``, ``joint``, or your own ``module:function``.
        power_w: Limit on the power of one board, in watts; ``fastest-within-power`` needs it.
        deadline_s: Time in which a round's work and transfers must be done, in seconds;
            ``least-energy-within-deadline`` needs it.
        time_weight: Weight of time against energy: 0 saves energy only, 1 time only. None: 0.5 under ``balanced`` and
            ``joint``, 0 under ``energy-budget``.
        max_slowdown: Longest round as a multiple of MAXN's. None: 1.05 under ``balanced`` and ``least-energy``, no
            limit under ``energy-budget``.
        confidence: Probability with which a limit must be met; 0.5 means no margin. None: 0.84, but 0.5 under
            ``fastest-within-power``.
    """

    name: str = "balanced"
    power_w: Positive | None = None
    fleet_power_w: Positive | None = None
    """Limit on the total power of all clients of a round while they work, in watts; ``fastest`` needs this or
    ``round_energy_j``.
    """
    round_energy_j: Positive | None = None
    """Limit on the energy of all clients in one round, in joules."""
    budget_j: Positive | None = None
    """Limit on the energy of all clients over the whole run, in joules, also at rest; ``energy-budget``
    needs it.
    """
    deadline_s: Positive | None = None
    time_weight: Annotated[float, Field(ge=0, le=1)] | None = None
    max_slowdown: Annotated[float, Field(ge=1)] | None = None
    min_progress: Annotated[float, Field(ge=0, le=1)] | None = None
    """Least expected progress of a round relative to one in which every client does its whole share; None: 0.9."""
    confidence: Annotated[float, Field(gt=0, lt=1)] | None = None
    options: dict[str, Annotated[float, Field(allow_inf_nan=False)]] = Field(default_factory=dict)
    """Numbers of your own policy, which it reads in ``goal.limits``."""

    @property
    def limits(self) -> dict[str, float]:
        """Return the parameters that are set, and the options, by name."""
        given = {k: v for k, v in self.model_dump(exclude={"name", "options"}).items() if v is not None}
        return given | self.options


class ExplorationSpec(_SpecModel):
    """How a client probes modes during a round: a few steps in modes that may turn out to be better.

    Probing happens only if there is a deadline and the rest of the round still meets it at full speed.
    """

    share: Annotated[float, Field(ge=0, le=0.9)] = 0.4
    """Largest share of a round's steps used for probes; 0 turns probing off."""
    probe_s: Annotated[float, Field(ge=0)] = 0.5
    """Minimum duration of a probe in seconds; a power sensor needs several samples."""
    slack: Annotated[float, Field(ge=0, le=1)] = 0.02
    """Share by which probing may extend a planned deadline in a client's first ``slack_rounds`` rounds."""
    slack_rounds: Annotated[int, Field(ge=0)] = 5
    """Number of a client's first rounds in which ``slack`` applies."""
    probes: Annotated[int, Field(ge=0)] = 3
    """Largest number of probes in one round."""
    foresight: Annotated[float, Field(ge=0)] = 0.5
    """Weight, in rounds, of deadlines other than those seen so far when the value of a probe is computed."""
    modes: Annotated[int, Field(ge=1)] | None = 15
    """Largest number of different modes that a client probes itself; after that it uses only modes that it or, reliably
    enough, peers of its kind have measured. null: no limit, and a mode may be used without a probe.
    """


class StrategySpec(_SpecModel):
    """The strategy of aggregation.

    Attributes:
        name: Class of ``flwr.serverapp.strategy``, or ``module:Class``.
        options: Its keyword arguments.
    """

    name: str = "FedAvg"
    options: dict[str, float | int | str | bool] = Field(default_factory=dict)
    wraps: StrategySpec | None = None
    """Inner strategy of a wrapper such as ``DifferentialPrivacyServerSideFixedClipping``."""


class ModSpec(_SpecModel):
    """A client mod.

    Attributes:
        name: Name of ``flwr.clientapp.mod``, or ``module:function``.
        options: Keyword arguments of its class.
    """

    name: str
    options: dict[str, float | int | str | bool] = Field(default_factory=dict)


class CompressionSpec(_SpecModel):
    """The encoding of the clients' updates.

    Attributes:
        kind: ``none``, ``fp16``, ``int8`` or ``topk``; null: ``none``, but the plan's choice under ``joint``.
        keep: Share of the values that ``topk`` sends, each with its place, so that more than half would be more than
            all; the others are added to the client's next update.
    """

    kind: Literal["none", "fp16", "int8", "topk"] | None = None
    keep: Annotated[float, Field(gt=0, le=0.5)] = 0.05


class SelectionSpec(_SpecModel):
    """The selection of a round's clients.

    Attributes:
        name: ``all``, ``random``, ``round-robin``, ``power-of-choice``, ``oort``, ``pyramidfl-like``, ``tifl``,
            ``fedjoule-like``, ``fedzero-like``, ``energy-aware``, ``planner``, or your own ``module:function``.
        options: Its options.
    """

    name: str = "all"
    count: Annotated[int, Field(ge=1)] | None = None
    """Number of results wanted; every available client by default."""
    over_commit: Annotated[float, Field(ge=1)] = 1.0
    """``count`` times this many clients are selected; when ``count`` have finished, the others are cancelled."""
    options: dict[str, float] = Field(default_factory=dict)


class LateReplySpec(_SpecModel):
    """The treatment of a client that has not finished by ``deadline * (1 + grace)`` of simulated time.

    Attributes:
        action: Treatment of the reply. ``accept``: the round waits for it. ``drop``: it is discarded. ``discount``: it
            joins a later round, weighted by ``(1 + rounds late) ** -staleness_exponent``. ``partial``: the client stops
            in time and sends what it has, weighted by its number of steps.
        grace: Tolerance as a share of the deadline.
        staleness_exponent: Exponent of the discount.
    """

    action: Literal["accept", "drop", "discount", "partial"] = "accept"
    grace: Annotated[float, Field(ge=0)] = 0.25
    staleness_exponent: Annotated[float, Field(ge=0)] = 0.5


class EvaluationSpec(_SpecModel):
    """Who evaluates the new model.

    Attributes:
        by: ``server``: on the whole test set, after every round. ``clients``: by the boards, each on its share of the
            test set. ``both``: by both.
        every: Rounds from one evaluation by clients to the next; the last round always has one.
        fraction: Share of the available clients that evaluate, at least one.
    """

    by: Literal["server", "clients", "both"] = "server"
    every: Annotated[int, Field(ge=1)] = 1
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0

    def is_due(self, number: int, rounds: int) -> bool:
        """Return whether clients evaluate the model of round ``number`` of ``rounds``."""
        return self.by != "server" and (number % self.every == 0 or number == rounds)


class SuperlinkSpec(_SpecModel):
    """The SuperLink of a fleet of real boards.

    Attributes:
        address: Host and port.
    """

    address: str = "127.0.0.1:8000"
    root_certificates: str | None = None
    """Path of the CA certificate (PEM); without it the connection is not encrypted (allowed on loopback only)."""
    connect_timeout_s: Positive = 120.0
    """How long the server waits for all boards before the first round; afterwards it continues with those connected."""


class BackendOptionsSpec(_SpecModel):
    """Options of the backends ``local`` and ``sim``.

    Attributes:
        num_gpus: Share of a CUDA device that each process of emulated clients takes and trains on; 0 trains on the
            CPU.
    """

    num_gpus: Annotated[float, Field(ge=0, le=1)] = 0.0


class ExporterSpec(_SpecModel):
    """An additional destination of a run's rows.

    Attributes:
        name: Name of the exporter, or ``module:Class``.
        options: Its options.
    """

    name: str
    options: dict[str, float | int | str | bool] = Field(default_factory=dict)


WORD = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""Form of names that become parts of paths."""


class Experiment(_SpecModel):
    """One experiment, fully resolved; the same seed gives the same rows on every backend.

    Attributes:
        name: Name of the run in reports, and beginning of its folder's name.
        seed: Seed of all random choices.
        rounds: Number of rounds; of models, in an asynchronous run.
        fleet: The boards.
        predictor: How clients predict the time and power of modes; a name or ``module:Class``.
        exporters: Additional destinations of the run's rows.
    """

    name: Annotated[str, Field(pattern=WORD)] = "experiment"
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 1
    rounds: Annotated[int, Field(ge=1, le=100_000)] = 10
    backend: Literal["local", "sim", "fleet", "flower"] = "local"
    """``local``: in this process, in longer runs one of ``jobs``. ``sim``: Flower's simulation runtime on Ray.
    ``fleet``: real boards. ``flower`` stands in the rows of a Flower app (``fedge.flower.PowerAware``), which fedge
    itself cannot start.
    """
    superlink: SuperlinkSpec = SuperlinkSpec()
    """How a fleet of real boards is reached."""
    fleet: Annotated[tuple[FleetEntry, ...], Field(min_length=1)]
    workload: WorkloadSpec = WorkloadSpec()
    data: DataSpec = DataSpec()
    policy: PolicySpec = PolicySpec()
    predictor: str = "fedge"
    share_samples: bool = True
    """Whether clients receive some of the measurements of other boards of their kind."""
    exploration: ExplorationSpec = ExplorationSpec()
    knowledge: str | None = None
    """The fleet's knowledge that clients start from: ``none``, ``auto`` or the path of a folder. The default is
    ``auto`` on real boards and ``none`` on emulated ones, so that a seed fixes a run.
    """
    selection: SelectionSpec = SelectionSpec()
    strategy: StrategySpec = StrategySpec()
    compression: CompressionSpec = CompressionSpec()
    mods: tuple[ModSpec, ...] = ()
    """Flower's mods on what clients send after training, the outermost first."""
    late: LateReplySpec = LateReplySpec()
    evaluation: EvaluationSpec = EvaluationSpec()
    signal: SignalSpec | None = None
    """Price or carbon of the boards' energy over time."""
    reply_timeout_s: Positive = 600.0
    """Wall time that the server waits for a round's replies before it counts missing ones as failed."""
    jobs: Annotated[int, Field(ge=1, le=256)] | None = None
    """Processes that share the clients of the ``local`` backend; by default one per core if that is worth it."""
    backend_options: BackendOptionsSpec = BackendOptionsSpec()
    exporters: tuple[ExporterSpec, ...] = ()
    plugins: tuple[str, ...] = ()
    """Paths of the user's Python modules that ``module:name`` entries refer to; modules beside them come along."""
    tags: tuple[Annotated[str, Field(pattern=WORD)], ...] = ()
    """Words by which ``fedge runs`` finds the run."""


def choose_training_device(experiment: Experiment) -> str:
    """Return the torch device on which emulated clients train: ``cpu`` or ``cuda``."""
    return "cuda" if experiment.backend_options.num_gpus > 0 else "cpu"


def is_bit_reproducible(experiment: Experiment) -> bool:
    """Return whether the seed fixes every bit of a run on one machine: not on real boards, and not on CUDA."""
    return experiment.backend != "fleet" and choose_training_device(experiment) == "cpu"


class FleetBoard(_SpecModel):
    """One board of the fleet: its name, its index in the fleet and its fleet entry."""

    name: str
    index: int
    entry: FleetEntry

    @property
    def truth(self) -> str:
        """Return the entry's ``truth`` with the board's name in its place."""
        return self.entry.truth.replace(BOARD_PLACE, self.name)


def list_boards(experiment: Experiment) -> tuple[FleetBoard, ...]:
    """Return every board in the order of the YAML; a board's index is also that of its data partition."""
    return _name_boards(experiment.fleet)


@cache_last_call
def _name_boards(fleet: tuple[FleetEntry, ...]) -> tuple[FleetBoard, ...]:
    named = [(f"{entry.name or entry.device}-{i}", entry) for entry in fleet for i in range(1, entry.count + 1)]
    return tuple(FleetBoard(name=name, index=index, entry=entry) for index, (name, entry) in enumerate(named))
