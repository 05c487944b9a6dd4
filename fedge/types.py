"""Value types of fedge: frozen dataclasses with the unit in every field's name.

Tables (``Modes``, ``Predictions``) hold numpy arrays, one row per power mode, so that thousands of modes are handled
at once; this file itself needs the standard library only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Floats32 = NDArray[np.float32]
    NamedArrays = Mapping[str, NDArray[np.generic]]
else:
    Floats = Floats32 = NamedArrays = object

Label = Literal["measured", "calibrated", "estimated", "unknown"]
"""Origin of a number: measured on a board, from a model calibrated on measured tables, from the data sheet, or unknown,
because nobody said where a table comes from."""


def weakest_label(labels: Iterable[Label]) -> Label:
    """Return the label that claims least, in the order unknown, estimated, calibrated, measured."""
    order: tuple[Label, ...] = ("unknown", "estimated", "calibrated", "measured")
    return min(labels, key=order.index, default="estimated")


def fitted_label(data: Label) -> Label:
    """Return the label of a model that is fitted to data with this label: only measured data calibrate a model."""
    return "calibrated" if data == "measured" else weakest_label([data, "estimated"])


@dataclass(frozen=True, slots=True, order=True)
class PowerMode:
    """One power mode of a board: the number of online CPU cores and the clock of CPU, GPU and memory in MHz."""

    cores: int
    cpu_mhz: float
    gpu_mhz: float
    mem_mhz: float

    @property
    def knobs(self) -> tuple[float, float, float, float]:
        """The fields in their order."""
        return (self.cores, self.cpu_mhz, self.gpu_mhz, self.mem_mhz)

    def __str__(self) -> str:
        return f"{self.cores}c/{self.cpu_mhz:g}/{self.gpu_mhz:g}/{self.mem_mhz:g} MHz"


@dataclass(frozen=True, slots=True, eq=False)
class Modes:
    """A table of n power modes.

    Attributes:
        knobs: float64 of shape (n, 4); columns are cores, CPU MHz, GPU MHz and memory MHz.
    """

    knobs: Floats
    _rows: dict[int, PowerMode] = field(default_factory=dict, init=False, repr=False)
    _found: dict[tuple[object, PowerMode], int | None] = field(default_factory=dict, init=False, repr=False)
    _parts: dict[bytes, Modes] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.knobs)

    def __getitem__(self, i: int) -> PowerMode:
        mode = self._rows.get(i)
        if mode is None:
            cores, cpu_mhz, gpu_mhz, mem_mhz = self.knobs[i].tolist()
            mode = self._rows[i] = PowerMode(int(cores), cpu_mhz, gpu_mhz, mem_mhz)
        return mode

    def look_up(self, search: Callable[[Modes, PowerMode], int | None], mode: PowerMode) -> int | None:
        """Return ``search(self, mode)``; kept, because a client asks for the same few of thousands of modes."""
        key = search, mode
        try:
            return self._found[key]  # one lookup: hashing a mode takes as long
        except KeyError:
            found = self._found[key] = search(self, mode)
            return found

    def select(self, keep: NDArray[np.bool_]) -> Modes:
        """Return the modes of a mask of shape (n,); kept, as boards of a kind share the parts of their table."""
        key = keep.tobytes()
        if key not in self._parts:
            self._parts[key] = Modes(self.knobs[keep])
        return self._parts[key]

    def __iter__(self) -> Iterator[PowerMode]:
        return (self[i] for i in range(len(self)))


@dataclass(frozen=True, slots=True)
class LabelledValue:
    """A number of the device catalogue with its source and its label."""

    value: float
    label: Label
    source: str


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """The specification of a kind of board: available clocks, presets, memory, power rails and data-sheet figures.

    Attributes:
        name: Identifier in the catalogue, e.g. ``orin-nano``.
        cores: Numbers of CPU cores that can be online.
        cpu_mhz: CPU clocks in MHz; likewise ``gpu_mhz`` and ``mem_mhz``.
        presets: Power modes that the vendor ships, by name; ``default_preset`` is the vendor's default.
        gpu_gflops: Peak arithmetic throughput of the GPU.
        mem_gbps: Peak memory bandwidth in GB/s.
        cpu_score: Single-core speed at the top CPU clock relative to an AGX Orin core (1.0).
        total_power: Formula of the total power from the rails, e.g. ``"VDD_IN"``.
        accelerators: Accelerators other than the GPU.
        sources: Source and label of the tables above, by field name.
    """

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
    rails: tuple[str, ...]
    total_power: str
    accelerators: tuple[str, ...]
    jetpacks: tuple[str, ...]
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def maxn(self) -> PowerMode:
        """The mode with every knob at its largest value."""
        return PowerMode(max(self.cores), max(self.cpu_mhz), max(self.gpu_mhz), max(self.mem_mhz))


@dataclass(frozen=True, slots=True)
class OperationCounts:
    """Operation counts of a forward pass, grouped by what limits them on a GPU; per sample except for weights."""

    dense_flop: float
    """FLOP of convolutions with kernels larger than 1 x 1."""
    pointwise_flop: float
    """FLOP of convolutions with 1 x 1 kernels and of matrix products."""
    moved_bytes: float
    """Activation bytes read and written by all operators except depthwise convolutions."""
    depthwise_bytes: float
    """Activation bytes read and written by depthwise convolutions."""
    weight_bytes: float
    operators: int
    """Number of kernel launches."""


Loading = Literal["workers", "inline", "cached"]
"""How samples are loaded: by worker processes in parallel with training, between two steps, or one cached batch."""


@dataclass(frozen=True, slots=True)
class LayerWork:
    """The network and the loading behind a step, for estimating its cost from the layers."""

    network: str
    """The network's name, independent of the data set."""
    counted: OperationCounts
    mixed: bool = False
    """Whether the step is computed in mixed precision."""
    loading: Loading = "workers"
    image_mpixel: float = 0.25
    """Megapixels of a stored image; unused if samples are cached."""
    optimizer_state: float = 1.0
    """Elements that the optimiser keeps per parameter: 1 for SGD with momentum."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The work of one step on a board: a training or inference step of a model at a batch size.

    Attributes:
        name: Name of the cost profile or network.
        kind: Whether the step trains or infers.
        layers: The network's layers if the step's cost is estimated from them because no measured table exists for the
            workload or for this batch size; None otherwise.
    """

    name: str
    batch_size: int
    kind: Literal["train", "infer"] = "train"
    layers: LayerWork | None = None


@dataclass(frozen=True, slots=True, order=True)
class TrainingScale:
    """The batch size and the network width of a training step.

    Attributes:
        width: Share of every layer's channels that is kept, in (0, 1].
    """

    batch_size: int
    width: float = 1.0

    def __str__(self) -> str:
        return f"batch {self.batch_size}" if self.width == 1.0 else f"batch {self.batch_size}, width {self.width:g}"


@dataclass(frozen=True, slots=True)
class MemoryObservation:
    """The memory outcome of one attempt to train.

    Attributes:
        predicted_mb: Memory that the uncorrected model predicted, in MB.
        limit_mb: Memory available for training, in MB.
        peak_mb: Peak memory in MB; None if the step ran out of ``limit_mb``.
    """

    predicted_mb: float
    limit_mb: float
    peak_mb: float | None = None


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The training scale of a round, the scale that the experiment requested, and the memory needed.

    Attributes:
        predicted_mb: Memory predicted for ``used`` in MB, corrected by the board's earlier observations.
        limit_mb: Memory available for training, in MB.
        peak_mb: Measured peak in MB; None if it is unknown.
        failures: Attempts of this round that ran out of memory.
        lost_s: Seconds that those attempts took.
        changed: Whether the scale differs from that of the board's previous round, or an attempt failed.
        why: What was lowered and why; empty if nothing was.
        label: Label of the prediction.
    """

    asked: TrainingScale
    used: TrainingScale
    predicted_mb: float
    limit_mb: float
    peak_mb: float | None = None
    failures: int = 0
    lost_s: float = 0.0
    changed: bool = False
    why: str = ""
    label: Label = "estimated"


@dataclass(frozen=True, slots=True)
class ServiceUse:
    """The work of a standing inference service during one interval of training.

    Attributes:
        batch_size: Largest batch that was collected; a deadline may have made some batches smaller.
        seconds: Length of the interval.
        busy_s: Part of the interval that serving took.
        requests: Requests that were answered or dropped.
        late: Requests that were answered after the latency budget.
        worst_s: Largest latency.
        latencies: Pairs (bin of ``fedge.worker.latency_histogram``, number of answered requests in it).
        played: Emulated boards: share of the requests that was simulated individually; the others are extrapolated.
        latency_s: Latency budget; None if there is none.
    """

    batch_size: int
    seconds: float
    busy_s: float
    requests: int
    late: int
    dropped: int = 0
    batches: int = 0
    worst_s: float = 0.0
    latencies: tuple[tuple[int, int], ...] = ()
    played: float = 1.0
    latency_s: float | None = None

    @property
    def share(self) -> float:
        """Return the share of the interval that serving took, from 0 to 1."""
        return self.busy_s / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """The mean step time and the mean module power of consecutive steps in one power mode.

    Attributes:
        step_s: Mean seconds per step without warm-up, including stalls and the share of a standing service.
        power_w: Mean module power in watts.
        peak_c: Highest temperature in degrees Celsius; None if no sensor reports one.
        throttled: Whether the board reduced its clocks because of heat or current.
        warm_up_s: Seconds that the first steps of a round took in addition to ``step_s`` each.
        switch_s: Seconds that changing to ``mode`` took; None if the mode was not changed during the work.
        time_se_log: Standard error of ``step_s`` in log units, from the scatter of its own steps.
        power_se_log: Standard error of ``power_w`` in log units, from the scatter of its samples.
        board: Name of the board of the same kind that measured it; None for the board itself.
        service: Work of a standing service in the same interval; None without one.
        scale: Training scale; None for the one that the experiment requests.
        lost_s: Seconds of attempts that ran out of memory before it in the same round.
        stall_s: Part of ``step_s`` spent waiting for samples.
    """

    mode: PowerMode
    steps: int
    step_s: float
    power_w: float
    peak_c: float | None = None
    throttled: bool = False
    warm_up_s: float = 0.0
    switch_s: float | None = None
    time_se_log: float = 0.0
    power_se_log: float = 0.0
    board: str | None = None
    service: ServiceUse | None = None
    scale: TrainingScale | None = None
    lost_s: float = 0.0
    stall_s: float = 0.0

    @property
    def work_s(self) -> float:
        """Return the seconds for all steps, including warm-up, mode change and lost attempts."""
        return self.steps * self.step_s + self.warm_up_s + (self.switch_s or 0.0) + self.lost_s

    @property
    def work_j(self) -> float:
        """Return the energy of ``work_s`` in joules."""
        return self.work_s * self.power_w


@dataclass(frozen=True, slots=True)
class ReferenceRows:
    """A table of another workload on a kind of board, as rows for boards that do not have its file.

    Attributes:
        rows: One measurement per mode.
    """

    device: str
    workload: str
    batch_size: int
    label: Label
    rows: tuple[Measurement, ...]


def pick_median(repeats: Sequence[Measurement]) -> Measurement:
    """Return the repeat of a mode with the median step time, which is robust to outliers; the faster of two."""
    return sorted(repeats, key=lambda one: one.step_s)[(len(repeats) - 1) // 2]


MOST_MEASUREMENTS = 200
"""Own measurements that a client keeps. They travel with every request and are fitted in every round: without a limit
both grew for as long as a run went on (``benchmarks/soak.py``). A hundred rounds bring about as many.
"""


def add_measurements(before: Sequence[Measurement], now: Iterable[Measurement]) -> tuple[Measurement, ...]:
    """Return measurements with further ones, oldest first; beyond ``MOST_MEASUREMENTS`` old repeats are forgotten.

    Of the mode that was measured most often the second of more than two goes, so every mode that was measured stays
    known, and where the mode is pinned the first measurement, to which the client is fitted, stays the same.
    """
    kept = [*before, *now]
    while len(kept) > MOST_MEASUREMENTS:
        ((mode, _),) = Counter(one.mode for one in kept).most_common(1)
        repeats = [place for place, one in enumerate(kept) if one.mode == mode]
        del kept[repeats[1] if len(repeats) > 2 else repeats[0]]
    return tuple(kept)


@dataclass(frozen=True, slots=True)
class SensorSample:
    """One reading of a board's sensors; quantities without a sensor are None or absent.

    Attributes:
        at_s: Time of the reading on a monotonic clock.
        temperatures_c: Temperature by thermal zone or sensor.
        gpu_load: GPU utilisation from 0 to 1.
        cpu_mhz: Current clock of the fastest core.
        mem_load: Share of the bandwidth at the current memory clock, from 0 to 1.
        throttle_events: Cumulative count of throttling events.
    """

    at_s: float
    total_w: float
    rails_w: Mapping[str, float] = field(default_factory=dict)
    temperatures_c: Mapping[str, float] = field(default_factory=dict)
    gpu_load: float | None = None
    cpu_mhz: float | None = None
    gpu_mhz: float | None = None
    mem_mhz: float | None = None
    mem_load: float | None = None
    throttle_events: int | None = None

    @property
    def hottest_c(self) -> float | None:
        """Return the highest temperature, or None without a sensor."""
        return max(self.temperatures_c.values(), default=None)


@dataclass(frozen=True, slots=True)
class Energy:
    """The energy of a time window, integrated by the trapezoid rule, with indicators of its quality.

    Attributes:
        samples: Number of power samples used.
        total_power: Formula of the rails that the energy is of.
        gaps: Intervals without a sample that were longer than three sampling periods.
        longest_gap_s: Longest interval between two samples.
        unseen_s: Length of the gaps together.
        throttled: Whether a throttling event happened in the window.
        power_se_log: Standard error of the mean power in log units, from the scatter of the samples.
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
    unseen_s: float = 0.0

    @property
    def mean_w(self) -> float:
        """Return the mean power of the window in watts."""
        return self.energy_j / (self.end_s - self.start_s)


@dataclass(frozen=True, slots=True)
class Trace:
    """A board's sensor values over time as columns: element i of every column belongs to interval i.

    Intervals are in order and do not overlap; there may be gaps between them. ``power_w`` is the mean over the
    interval, so that the sum of ``power_w * span_s`` is the energy however the samples were averaged. Unknown values
    are None.
    """

    start_s: tuple[float, ...] = ()
    """Start times on the clock of the holder: simulated time in a run's rows, Unix time on the live channel."""
    span_s: tuple[float, ...] = ()
    power_w: tuple[float, ...] = ()
    temperature_c: tuple[float | None, ...] = ()
    """The highest of the board's temperatures."""
    cpu_mhz: tuple[float | None, ...] = ()
    gpu_mhz: tuple[float | None, ...] = ()
    mem_mhz: tuple[float | None, ...] = ()
    cpu_load: tuple[float | None, ...] = ()
    """Loads are from 0 to 1."""
    gpu_load: tuple[float | None, ...] = ()
    mem_load: tuple[float | None, ...] = ()
    rails_w: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """Power by the board's own rail names; the rails need not add up to ``power_w``."""

    def __len__(self) -> int:
        return len(self.start_s)

    @property
    def energy_j(self) -> float:
        """Return the energy in joules, the sum of ``power_w * span_s``."""
        return sum(power * span for power, span in zip(self.power_w, self.span_s, strict=True))


EMPTY_TRACE = Trace()


@dataclass(frozen=True, slots=True, eq=False)
class ProfileTable:
    """A table of step time and power over power modes at one batch size.

    Attributes:
        modes: The n measured modes.
        step_s: Seconds per step, shape (n,).
        power_w: Module power in watts, shape (n,).
        sha256: Hash of the file.
        duplicates: Rows that repeated a mode and were replaced by their median.
        idle_w: Power of the idle board in watts, shape (n,); None if it was not measured.
        label: Origin of the times and powers.
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
    idle_w: Floats | None = None
    label: Label = "unknown"

    @property
    def maxn(self) -> PowerMode:
        """Return the mode made of the largest value of every knob in the table."""
        cores, cpu_mhz, gpu_mhz, mem_mhz = (float(v) for v in self.modes.knobs.max(axis=0))
        return PowerMode(int(cores), cpu_mhz, gpu_mhz, mem_mhz)


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """Predicted step time and power of n modes; all arrays are float64 of shape (n,), row i belongs to ``modes[i]``.

    Attributes:
        step_s: Seconds per step.
        power_w: Module power in watts.
        step_s_sd_log: Standard deviation of the natural logarithm of ``step_s``.
        power_w_sd_log: Standard deviation of the natural logarithm of ``power_w``.
    """

    modes: Modes
    step_s: Floats
    power_w: Floats
    step_s_sd_log: Floats
    power_w_sd_log: Floats

    def select_rows(self, rows: Sequence[int] | NDArray[np.intp]) -> Predictions:
        """Return the given rows, in their order."""
        return Predictions(
            Modes(self.modes.knobs[rows]),
            step_s=self.step_s[rows],
            power_w=self.power_w[rows],
            step_s_sd_log=self.step_s_sd_log[rows],
            power_w_sd_log=self.power_w_sd_log[rows],
        )


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
    """One mode on a Pareto front with the time and energy of the client's whole share of work.

    Attributes:
        work_s: Seconds for all steps.
        time_sd_log: Standard deviation of the natural logarithm of ``work_s``.
    """

    mode: PowerMode
    work_s: float
    work_j: float
    time_sd_log: float = 0.0


@dataclass(frozen=True, slots=True)
class NarrowOffer:
    """The cost of a round in which a client trains a narrower network, relative to that of its front.

    Attributes:
        width: Share of every layer's channels.
        work: Seconds of the whole share, and its joules above idle, relative to the front's; from the layers' costs.
        sent: Bytes of the model that is received, and of the update before it is encoded, relative to the front's.
    """

    width: float
    work: float
    sent: float


@dataclass(frozen=True, slots=True)
class Front:
    """A client's offer for a round: the modes that are Pareto-optimal in time and in energy above idle.

    Energy above idle is ``work_j - idle_w * work_s``, because a board that has finished idles until the round ends.

    Attributes:
        points: The optimal modes from fastest to cheapest.
        maxn: The same work at MAXN.
        idle_w: Power in the mode in which the board waits.
        link_s: Seconds to download and upload the model.
        maxn_idle_w: Power when waiting at MAXN.
        switch_s: Seconds that a mode change during the work takes.
        radio_j: Energy of the radio above idle during both transfers, whatever the mode.
        up_s: Seconds of ``link_s`` that the upload takes.
        latency_s: Seconds of ``up_s`` that do not depend on its bytes.
        up_share: Bytes of that upload relative to the update before it is encoded.
        encode_s: Seconds that encoding the update takes, part of ``up_s`` if it is encoded.
        encode_j: Energy of encoding it, part of ``radio_j`` if it is encoded.
        fixed_share: Part of every point's work that a round takes whatever its steps: the warm-up.
        narrow: The narrower networks that the client may be asked for.
        width: Share of every layer's channels that the client trains unless it is asked for less.
    """

    points: tuple[FrontPoint, ...]
    maxn: FrontPoint
    idle_w: float
    link_s: float
    maxn_idle_w: float
    switch_s: float = 0.0
    radio_j: float = 0.0
    up_s: float = 0.0
    latency_s: float = 0.0
    up_share: float = 1.0
    encode_s: float = 0.0
    encode_j: float = 0.0
    fixed_share: float = 0.0
    narrow: tuple[NarrowOffer, ...] = ()
    width: float = 1.0


@dataclass(frozen=True, slots=True)
class Compression:
    """The encoding of a client's update.

    Attributes:
        kind: ``fp16`` and ``int8`` send every value in fewer bits, ``topk`` the largest values, ``none`` the arrays.
        keep: Share of the values that ``topk`` sends.
    """

    kind: Literal["none", "fp16", "int8", "topk"] = "none"
    keep: float = 0.05


NOT_COMPRESSED = Compression()


@dataclass(frozen=True, slots=True)
class RoundGoal:
    """The server's request to a client for one round.

    Attributes:
        steps: Steps to run, including the warm-up as far as it is known.
        deadline_s: Planned end, in seconds from the round's start and including the transfers; None without a plan.
        limits: The policy's numbers, e.g. ``power_w`` or ``time_weight``.
        stop_s: Time at which the upload must have ended even if steps are left; None for no such limit.
        rounds_left: Rounds after this one, in which measurements made now can be used.
        share: Steps to run relative to those of the client's whole share.
        compression: Encoding of the update.
        width: Largest width of the network that is trained; the client's memory or fleet entry may ask for less.
    """

    policy: str
    steps: float
    deadline_s: float | None = None
    limits: Mapping[str, float] = field(default_factory=dict)
    stop_s: float | None = None
    rounds_left: int = 10
    share: float = 1.0
    compression: Compression = NOT_COMPRESSED
    width: float = 1.0


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """The plan of a round: every client's goal and the expected time and energy.

    The expected figures are None if nothing was planned.

    Attributes:
        deadline_s: Deadline in seconds from the round's start; None if none was planned.
        round_s: Expected length of the round.
        energy_j: Expected energy of all clients.
        maxn_round_s: Expected length with every client at MAXN.
        maxn_energy_j: Expected energy with every client at MAXN.
        feasible: Whether the plan's limits can be met.
        wait_s: Seconds until a client's battery has enough for a part, if none has now; infinity for never.
    """

    goals: Mapping[str, RoundGoal]
    deadline_s: float | None = None
    round_s: float | None = None
    energy_j: float | None = None
    maxn_round_s: float | None = None
    maxn_energy_j: float | None = None
    feasible: bool = True
    why: str = ""
    wait_s: float | None = None


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """The server's knowledge of a client when it selects participants; unknown values are None.

    Attributes:
        front: The client's latest offer.
        loss: Mean training loss in its last round.
        accuracy: Mean training accuracy in its last round, from 0 to 1.
        busy_s: Length of its last round.
        last_round: Number of its last round.
        rounds: Rounds that it took part in.
        charge: State of charge from 0 to 1; None on mains.
        charge_j: Energy left in the battery; None on mains.
        temperature_c: Last known temperature.
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
    """The input of a selector for one round.

    Attributes:
        count: Number of clients to select.
        options: The selector's options from the experiment.
        memory: Numbers that the selector returned after the previous round, by names of its own.
        limits: Limits of the round's goal.
    """

    round: int
    count: int
    options: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, float] = field(default_factory=dict)
    policy: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SelectionResult:
    """The clients selected for a round, the selector's memory for the next one, and a deadline if it planned one.

    Attributes:
        shares: Steps of a client relative to its whole share, 1 for those that are not named; only of rounds that the
            policy does not plan.
    """

    boards: tuple[str, ...]
    memory: Mapping[str, float] = field(default_factory=dict)
    deadline_s: float | None = None
    why: str = ""
    shares: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModeMix:
    """A slower mode for the first ``steps`` steps of the work, before the rest is done in the decision's mode."""

    mode: PowerMode
    steps: int


@dataclass(frozen=True, slots=True)
class Decision:
    """The mode that a policy chose.

    Attributes:
        mode: Mode of the work, or of its last part.
        feasible: Whether the mode meets the goal.
        mix: Mode and number of the steps to run first; None if all steps run in ``mode``.
    """

    mode: PowerMode
    why: str
    feasible: bool = True
    mix: ModeMix | None = None


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """The options of a client's local training with SGD.

    Attributes:
        momentum: Momentum in [0, 1).
        proximal_mu: Weight of FedProx's proximal term; 0 turns it off.
        width: Share of every layer's channels to train, the leading ones; 1 for the whole network.
        mixed: Whether to compute in half precision where torch considers it safe.
    """

    steps: int
    batch_size: int
    learning_rate: float
    momentum: float = 0.9
    proximal_mu: float = 0.0
    width: float = 1.0
    mixed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class TrainResult:
    """The result of local training: the new arrays, and the mean loss and accuracy over the steps.

    Both are not a number if nothing was trained. Mods may add ``metrics`` for the strategy. ``residual`` is what the
    encoding of the update left out, which the client's next update adds; None if nothing was left out.
    """

    arrays: NamedArrays
    loss: float
    accuracy: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    residual: Floats32 | None = None


@dataclass(frozen=True, slots=True)
class LinkUse:
    """Seconds of one download and one upload of the model, the radio's joules above idle, and the MB of both.

    An encoded update has ``up_share`` of the model's bytes; ``up_s`` and ``radio_j`` then include the ``encode_s``
    seconds and ``encode_j`` joules of encoding it, which are estimated. ``latency_s`` is the part of ``up_s`` that does
    not depend on bytes. Of ``moved_mb``, the MB of both, ``down_mb`` are of the download.
    """

    down_s: float
    up_s: float
    radio_j: float
    moved_mb: float = 0.0
    down_mb: float = 0.0
    latency_s: float = 0.0
    up_share: float = 1.0
    encode_s: float = 0.0
    encode_j: float = 0.0


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """A client's evaluation of the global model on its own test samples.

    Attributes:
        samples: Number of test samples, at least 1.
        loss: Mean loss.
        accuracy: Share of right answers, 0 to 1, or the task's own metric.
        measured: Time and power of the evaluation: batches of the priced network on an emulated board, on a real board
            the whole evaluation as one step.
        link: Download of the model, and a reply of negligible size.
    """

    board: str
    device: str
    samples: int
    loss: float
    accuracy: float
    measured: Measurement
    link: LinkUse

    @property
    def parts(self) -> tuple[Measurement, ...]:
        """Return the whole work as a single part."""
        return (self.measured,)

    @property
    def work_s(self) -> float:
        """Return the seconds of the evaluation itself."""
        return self.measured.work_s

    @property
    def work_j(self) -> float:
        """Return the energy of ``work_s`` in joules."""
        return self.measured.work_j

    @property
    def busy_s(self) -> float:
        """Return the seconds from the request to the reply."""
        return self.link.down_s + self.work_s + self.link.up_s


@dataclass(frozen=True, slots=True)
class RoundReport:
    """A client's report of one round; times are simulated or wall time from the round's start.

    ``predicted`` was made before ``measured``, after the probes had been learnt from.
    """

    board: str
    device: str
    round: int
    decision: Decision
    measured: Measurement
    """The last part of the round, in the decision's mode."""
    probes: tuple[Measurement, ...]
    """The parts before it that probed other modes."""
    predicted: Prediction
    link: LinkUse
    idle_w: float
    front: Front
    true_front: Front | None
    """Emulated boards only: the front computed from the true times and powers."""
    samples: int
    loss: float | None
    """Mean over the steps, like the accuracy; both None if nothing was trained."""
    accuracy: float | None
    temperature_c: float | None
    prior_time_ape: float | None
    """Mean |predicted - true| / true over all modes before any measurement; emulated boards only, in round 1."""
    prior_power_ape: float | None
    time_ape: float | None = None
    """Likewise for the predictions that the decision was made from; emulated boards only, in every round."""
    power_ape: float | None = None
    own_samples: int = 0
    """Number of the board's own measurements, including this round's probes, to which these predictions were fitted."""
    shared_samples: int = 0
    """Number of other boards' measurements to which they were fitted."""
    recalled_samples: int = 0
    """Number of the board's measurements of earlier runs to which they were fitted; 0 if it contradicts them."""
    mixed: Measurement | None = None
    """The part of the round in the decision's second mode."""
    asked_steps: int = 0
    """Steps of the whole share; fewer were run if the board had to stop early."""
    memory: MemoryUse | None = None
    """Training scale and memory; None if the memory need of the workload's steps is unknown."""
    link_mbps: float | None = None
    """Real boards only: rate of both transfers in Mbit/s as the server measured it, with Flower's polling."""
    step_share: float = 1.0
    """Steps that were asked for, relative to those of the client's whole share."""
    encoding: str = "none"
    """Encoding of the update."""

    @property
    def parts(self) -> tuple[Measurement, ...]:
        """Return all measurements of the round in chronological order."""
        return (*self.probes, *(() if self.mixed is None else (self.mixed,)), self.measured)

    @property
    def steps(self) -> int:
        """Return the number of steps that were run."""
        return sum(part.steps for part in self.parts)

    @property
    def busy_s(self) -> float:
        """Return the seconds from the round's start to the end of the upload."""
        return self.link.down_s + self.work_s + self.link.up_s

    @property
    def work_s(self) -> float:
        """Return the seconds of all steps, including probes."""
        return sum(part.work_s for part in self.parts)

    @property
    def work_j(self) -> float:
        """Return the energy of all steps in joules, including probes."""
        return sum(part.work_j for part in self.parts)
