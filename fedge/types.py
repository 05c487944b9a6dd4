"""The nouns of fedge: frozen records of values, with units in their names.

Columns (``Modes``, ``Predictions``) hold numpy arrays, so that thousands of power modes are handled at once; this file
itself needs the standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    NamedArrays = Mapping[str, NDArray[np.generic]]
else:
    Floats = NamedArrays = object

Label = Literal["measured", "calibrated", "estimated"]
"""How a number came about: seen on a board, a model fitted to measured tables, or taken from the data sheet."""


@dataclass(frozen=True, slots=True, order=True)
class PowerMode:
    """One setting of a board's four knobs."""

    cores: int
    cpu_mhz: float
    gpu_mhz: float
    mem_mhz: float

    def __str__(self) -> str:
        return f"{self.cores}c/{self.cpu_mhz:g}/{self.gpu_mhz:g}/{self.mem_mhz:g} MHz"


@dataclass(frozen=True, slots=True, eq=False)
class Modes:
    """A table of power modes: ``knobs`` is float64 of shape (n, 4), columns cores, CPU, GPU and memory MHz."""

    knobs: Floats

    def __len__(self) -> int:
        return len(self.knobs)

    def __getitem__(self, i: int) -> PowerMode:
        cores, cpu_mhz, gpu_mhz, mem_mhz = (float(v) for v in self.knobs[i])
        return PowerMode(int(cores), cpu_mhz, gpu_mhz, mem_mhz)

    def __iter__(self) -> Iterator[PowerMode]:
        return (self[i] for i in range(len(self)))


@dataclass(frozen=True, slots=True)
class LabelledValue:
    """A number of the catalogue with its source and label."""

    value: float
    label: Label
    source: str


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """What a board is: its knobs' tables, presets, memory, rails and data-sheet figures (units in the names)."""

    name: str
    title: str
    cores: tuple[int, ...]
    cpu_mhz: tuple[float, ...]
    gpu_mhz: tuple[float, ...]
    mem_mhz: tuple[float, ...]
    presets: Mapping[str, PowerMode]
    default_preset: str
    ram_gb: LabelledValue
    idle_w: LabelledValue
    max_w: LabelledValue
    gpu_gflops: LabelledValue
    mem_gbps: LabelledValue
    cpu_score: LabelledValue
    """Single-core speed at the top CPU clock relative to an AGX Orin core (1.0)."""
    rails: tuple[str, ...]
    total_power: str
    """The formula of the board's total from its rails, e.g. ``"VDD_IN"`` or ``"VDD_GPU_SOC + VDD_CPU_CV + ..."``."""
    accelerators: tuple[str, ...]
    jetpacks: tuple[str, ...]
    sources: Mapping[str, str] = field(default_factory=dict)
    """Field name -> source and label of the tables above, for ``fedge devices show``."""

    @property
    def maxn(self) -> PowerMode:
        """Every knob at its top."""
        return PowerMode(max(self.cores), max(self.cpu_mhz), max(self.gpu_mhz), max(self.mem_mhz))


@dataclass(frozen=True, slots=True)
class OperationCounts:
    """What a forward pass of a network holds, sorted by what bounds it on a GPU; per sample but for the weights."""

    dense_flop: float
    """Of convolutions with kernels larger than one."""
    pointwise_flop: float
    """Of convolutions with a kernel of one, and of matrix products."""
    moved_bytes: float
    """Activations read and written by everything but depthwise convolutions."""
    depthwise_bytes: float
    """Activations read and written by convolutions with a group per channel."""
    weight_bytes: float
    operators: int
    """How many operators are launched."""


Loading = Literal["workers", "inline", "cached"]
"""How samples come: from loader processes beside the training, between two minibatches, or one batch that stays."""


@dataclass(frozen=True, slots=True)
class LayerWork:
    """What a minibatch is made of, for pricing it by its layers: its network, and how it is computed and loaded."""

    network: str
    """The network's own name, whatever it learns from."""
    counted: OperationCounts
    mixed: bool = False
    """Computed in mixed precision."""
    loading: Loading = "workers"
    image_mpixel: float = 0.25
    """A stored image's megapixels; nothing where samples are cached."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What a board's minibatch is: one training or inference step of a model on a data set.

    ``layers`` is given where it is priced by them: no board has a table of it, or none at this batch size.
    """

    name: str
    batch_size: int
    kind: Literal["train", "infer"] = "train"
    layers: LayerWork | None = None


@dataclass(frozen=True, slots=True, order=True)
class TrainingScale:
    """What a board trains at: samples in a minibatch, and the part of every layer's channels that it keeps."""

    batch_size: int
    width: float = 1.0

    def __str__(self) -> str:
        return f"batch {self.batch_size}" if self.width == 1.0 else f"batch {self.batch_size}, width {self.width:g}"


@dataclass(frozen=True, slots=True)
class MemoryObservation:
    """What one try to train taught of a board's memory: the model's own prediction, and the peak or that it failed.

    ``peak_mb`` is None where the step ran out of ``limit_mb``.
    """

    predicted_mb: float
    limit_mb: float
    peak_mb: float | None = None


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """What a round trained at, what of it the experiment asked for, and the memory that this was thought to need.

    ``predicted_mb`` is corrected by what the board had seen before; ``peak_mb`` is None where nobody knows.
    """

    asked: TrainingScale
    used: TrainingScale
    predicted_mb: float
    limit_mb: float
    peak_mb: float | None = None
    failures: int = 0
    """Tries in this round that ran out of memory."""
    lost_s: float = 0.0
    """What they took."""
    changed: bool = False
    """Whether the round trained at another scale than the board's last one, or tried to."""
    why: str = ""
    """What was lowered and why; empty where nothing was."""
    label: Label = "estimated"
    """Of the prediction."""


@dataclass(frozen=True, slots=True)
class ServiceUse:
    """What a standing inference service did during a stretch of work of ``seconds``, ``busy_s`` of them its own.

    ``requests`` were answered or dropped; ``late`` of them were answered after the latency budget. ``latencies`` counts
    the answered ones by latency: the place of a bin of ``fedge.worker.latency_histogram`` and how many fell into it.
    """

    batch_size: int
    """The largest batch that was collected; a deadline may have made some smaller."""
    seconds: float
    busy_s: float
    requests: int
    late: int
    dropped: int = 0
    batches: int = 0
    worst_s: float = 0.0
    latencies: tuple[tuple[int, int], ...] = ()
    played: float = 1.0
    """Emulated boards: the share of the requests that were played one by one; the others are taken to go likewise."""
    latency_s: float | None = None
    """The latency budget."""

    @property
    def share(self) -> float:
        """The part of the time that serving took."""
        return self.busy_s / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was seen of ``steps`` minibatches in one power mode: mean seconds per step and mean module power.

    ``warm_up_s`` is what the first minibatches of a round took beyond a usual step; ``step_s`` leaves it out.
    """

    mode: PowerMode
    steps: int
    step_s: float
    power_w: float
    peak_c: float | None = None
    throttled: bool = False
    warm_up_s: float = 0.0
    switch_s: float | None = None
    """What changing to the mode took; None when it was not changed in the middle of the work."""
    time_se_log: float = 0.0
    power_se_log: float = 0.0
    """Standard errors of ``step_s`` and ``power_w``, log units, as far as its own minibatches and samples scatter."""
    board: str | None = None
    """The board that saw it, when that is another one of the same kind; None for the board's own."""
    service: ServiceUse | None = None
    """What a standing service did meanwhile; ``step_s`` and ``power_w`` are as seen, with its share in them."""
    scale: TrainingScale | None = None
    """What was trained at, where that is not what the experiment asks for."""
    lost_s: float = 0.0
    """What tries that ran out of memory took before it, in the same round."""
    stall_s: float = 0.0
    """The part of ``step_s`` that training waited for its samples, where the board has a loader."""

    @property
    def work_s(self) -> float:
        """Seconds for all the steps, with the warm-up, the change of mode and what was lost before."""
        return self.steps * self.step_s + self.warm_up_s + (self.switch_s or 0.0) + self.lost_s

    @property
    def work_j(self) -> float:
        """Joules for all the steps."""
        return self.work_s * self.power_w


@dataclass(frozen=True, slots=True)
class SensorSample:
    """What a board's sensors said at one moment; what a board has no sensor for is None or absent.

    ``at_s`` counts on a monotonic clock. ``throttle_events`` is a counter that only grows.
    """

    at_s: float
    total_w: float
    rails_w: Mapping[str, float] = field(default_factory=dict)
    temperatures_c: Mapping[str, float] = field(default_factory=dict)
    """By thermal zone or sensor name."""
    gpu_load: float | None = None
    """From 0 to 1."""
    cpu_mhz: float | None = None
    """The fastest core's present clock."""
    gpu_mhz: float | None = None
    mem_mhz: float | None = None
    mem_load: float | None = None
    """From 0 to 1, of the bandwidth at the present memory clock."""
    throttle_events: int | None = None

    @property
    def hottest_c(self) -> float | None:
        """The highest of the temperatures."""
        return max(self.temperatures_c.values(), default=None)


@dataclass(frozen=True, slots=True)
class Energy:
    """A window's energy, integrated by the trapezoid rule over ``samples`` samples, and what was odd about it.

    ``gaps`` counts the stretches without a sample that were longer than three sampling periods, ``longest_gap_s`` is
    the longest stretch. ``total_power`` says which rails the joules are of.
    """

    start_s: float
    end_s: float
    energy_j: float
    samples: int
    total_power: str
    gaps: int = 0
    longest_gap_s: float = 0.0
    throttled: bool = False
    mode_changes: int = 0
    peak_c: float | None = None
    power_se_log: float = 0.0
    """Standard error of the mean power, log units, as far as the samples scatter."""

    @property
    def mean_w(self) -> float:
        """Mean power of the window, watts."""
        return self.energy_j / (self.end_s - self.start_s)


@dataclass(frozen=True, slots=True)
class Trace:
    """A board's sensors over time, stretch by stretch: element i of every column belongs to stretch i.

    Stretches are in order and do not overlap; there may be gaps between them. ``power_w`` is the mean over the stretch,
    so that the sum of ``power_w * span_s`` is the energy, whatever was averaged before. None where nobody knows.
    """

    start_s: tuple[float, ...] = ()
    """On the clock of whoever holds the trace: the fleet's in a run's rows, unix time on the live channel."""
    span_s: tuple[float, ...] = ()
    power_w: tuple[float, ...] = ()
    temperature_c: tuple[float | None, ...] = ()
    """The hottest sensor."""
    cpu_mhz: tuple[float | None, ...] = ()
    gpu_mhz: tuple[float | None, ...] = ()
    mem_mhz: tuple[float | None, ...] = ()
    cpu_load: tuple[float | None, ...] = ()
    """Loads are from 0 to 1."""
    gpu_load: tuple[float | None, ...] = ()
    mem_load: tuple[float | None, ...] = ()
    rails_w: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """By rail, as the board names it; they need not add up to ``power_w``."""

    def __len__(self) -> int:
        return len(self.start_s)

    @property
    def energy_j(self) -> float:
        """The sum of ``power_w * span_s``."""
        return sum(power * span for power, span in zip(self.power_w, self.span_s, strict=True))


EMPTY_TRACE = Trace()


@dataclass(frozen=True, slots=True, eq=False)
class ProfileTable:
    """A measured table at one batch size: modes (n), seconds per step (n,), module watts (n,), and where it came from.

    ``duplicates`` counts the rows that repeated a mode; such rows were replaced by their median.
    """

    device: str
    workload: str
    batch_size: int
    modes: Modes
    step_s: Floats
    power_w: Floats
    sha256: str
    path: str
    duplicates: int = 0

    @property
    def maxn(self) -> PowerMode:
        """The largest value of every knob in the table."""
        cores, cpu_mhz, gpu_mhz, mem_mhz = (float(v) for v in self.modes.knobs.max(axis=0))
        return PowerMode(int(cores), cpu_mhz, gpu_mhz, mem_mhz)


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """Per mode: seconds per step and watts, each with the spread (one standard deviation of its natural logarithm).

    All arrays are float64 of shape (n,), row i belongs to ``modes[i]``.
    """

    modes: Modes
    step_s: Floats
    power_w: Floats
    step_s_sd_log: Floats
    power_w_sd_log: Floats


@dataclass(frozen=True, slots=True)
class Prediction:
    """One row of ``Predictions``."""

    mode: PowerMode
    step_s: float
    power_w: float
    step_s_sd_log: float
    power_w_sd_log: float


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """One mode on a Pareto front: seconds and joules for the board's whole share of work.

    ``time_sd_log`` is the spread of ``work_s``: one standard deviation of its natural logarithm.
    """

    mode: PowerMode
    work_s: float
    work_j: float
    time_sd_log: float = 0.0


@dataclass(frozen=True, slots=True)
class Front:
    """A board's offer for a round: the modes from which none is both faster and cheaper.

    Cheaper counts joules above idling (``work_j - idle_w * work_s``), because a board that is done idles until the
    round ends: at ``idle_w``, the power of the mode it waits in. ``points`` run from fastest to cheapest; ``link_s`` is
    the time to fetch and send the model; ``maxn`` is the same board working at MAXN, ``maxn_idle_w`` its power waiting
    there.
    """

    points: tuple[FrontPoint, ...]
    maxn: FrontPoint
    idle_w: float
    link_s: float
    maxn_idle_w: float
    switch_s: float = 0.0
    """What a change of mode in the middle of the work takes, seconds."""


@dataclass(frozen=True, slots=True)
class RoundGoal:
    """What the server asks of a client for one round.

    ``steps`` are minibatches' worth of work: those of the round, and the warm-up as far as it is known.
    ``deadline_s`` counts from the round's start and includes the link; None means that no deadline was planned.
    ``stop_s`` is when the board stops whatever it has done, so that its upload ends by then; None means never.
    ``rounds_left`` are those after this one: what is learnt now can serve in them.
    ``limits`` holds the policy's own numbers (``power_w``, ``time_weight`` ...).
    """

    policy: str
    steps: float
    deadline_s: float | None = None
    limits: Mapping[str, float] = field(default_factory=dict)
    stop_s: float | None = None
    rounds_left: int = 10


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """A planned round: its deadline (None: none was planned), every board's goal, and what is expected of it.

    The expected figures are None where nothing was planned. ``maxn_*`` are of the same round with every board at MAXN;
    ``feasible`` tells whether the plan's limits can be kept.
    """

    goals: Mapping[str, RoundGoal]
    deadline_s: float | None = None
    round_s: float | None = None
    energy_j: float | None = None
    maxn_round_s: float | None = None
    maxn_energy_j: float | None = None
    feasible: bool = True
    why: str = ""


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """What the server knows of a board when it chooses who takes part; None where it does not know.

    ``loss`` and ``accuracy`` are of the training in its last round, ``busy_s`` is how long that took; ``charge`` is the
    battery's share that is left, None on mains.
    """

    board: str
    front: Front | None = None
    samples: int | None = None
    loss: float | None = None
    accuracy: float | None = None
    busy_s: float | None = None
    last_round: int | None = None
    rounds: int = 0
    charge: float | None = None
    charge_j: float | None = None
    temperature_c: float | None = None


@dataclass(frozen=True, slots=True)
class SelectionContext:
    """What a selector is asked: for which round, how many clients, its options, and what it remembered before.

    ``memory`` is whatever numbers it returned after the last round, by names of its own. ``policy`` and ``limits`` are
    those of the round's goal.
    """

    round: int
    count: int
    options: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, float] = field(default_factory=dict)
    policy: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SelectionResult:
    """The clients of a round, what the selector wants to remember, and a deadline where it planned one."""

    boards: tuple[str, ...]
    memory: Mapping[str, float] = field(default_factory=dict)
    deadline_s: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class ModeMix:
    """A second mode for a part of the work: ``steps`` minibatches in ``mode``, done before those in the decision's."""

    mode: PowerMode
    steps: int


@dataclass(frozen=True, slots=True)
class Decision:
    """The mode a policy chose, why, whether it meets the goal, and the neighbour in which a part is done first."""

    mode: PowerMode
    why: str
    feasible: bool = True
    mix: ModeMix | None = None


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """How a client trains: ``steps`` minibatches of SGD; ``proximal_mu`` > 0 adds FedProx's pull to the start.

    With ``width`` below 1 so large a part of every layer's channels, the leading ones.
    """

    steps: int
    batch_size: int
    learning_rate: float
    momentum: float = 0.9
    proximal_mu: float = 0.0
    width: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class TrainResult:
    """What training gave: the new arrays, and the mean loss and accuracy over the minibatches seen."""

    arrays: NamedArrays
    loss: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class LinkUse:
    """One transfer in each direction: seconds, and joules above idle."""

    down_s: float
    up_s: float
    radio_j: float


@dataclass(frozen=True, slots=True)
class RoundReport:
    """What one client did in one round; virtual or real seconds from the round's start.

    ``predicted`` was made before ``measured``, with the probes learnt.
    """

    board: str
    device: str
    round: int
    decision: Decision
    measured: Measurement
    """The part of the round in the mode decided on."""
    probes: tuple[Measurement, ...]
    """The parts before it, in other modes, from which the decision learnt."""
    predicted: Prediction
    link: LinkUse
    idle_w: float
    front: Front
    true_front: Front | None
    """Emulated boards only: what a planner that knows the truth would have been offered."""
    samples: int
    loss: float
    accuracy: float
    temperature_c: float | None
    prior_time_ape: float | None
    """|predicted - true| / true over all modes before any measurement, emulated boards only, in round 1."""
    prior_power_ape: float | None
    time_ape: float | None = None
    """The same of the predictions that the decision was made from, emulated boards only, in every round."""
    power_ape: float | None = None
    own_samples: int = 0
    """How many of the board's own measurements these predictions were fitted to, this round's probes among them."""
    shared_samples: int = 0
    """How many of other boards' measurements."""
    mixed: Measurement | None = None
    """The part of the round in the decision's second mode."""
    asked_steps: int = 0
    """Minibatches of the whole share; fewer were done when the board had to stop."""
    memory: MemoryUse | None = None
    """What it trained at; None where nobody knows what a step of this workload needs."""

    @property
    def parts(self) -> tuple[Measurement, ...]:
        """All measurements of the round, in their order."""
        return (*self.probes, *(() if self.mixed is None else (self.mixed,)), self.measured)

    @property
    def steps(self) -> int:
        """Minibatches done."""
        return sum(part.steps for part in self.parts)

    @property
    def busy_s(self) -> float:
        """From the round's start to the end of the upload."""
        return self.link.down_s + self.work_s + self.link.up_s

    @property
    def work_s(self) -> float:
        """Seconds of all minibatches, the probes among them."""
        return sum(part.work_s for part in self.parts)

    @property
    def work_j(self) -> float:
        """Joules of all minibatches, the probes among them."""
        return sum(part.work_j for part in self.parts)
