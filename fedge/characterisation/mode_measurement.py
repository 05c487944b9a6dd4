"""Measurement of one mode on a board under profiling, emulated or this one.

A mode is measured chunk after chunk until it has settled, and once more after cooling if it throttled. An emulated
board draws noise that depends only on seed and mode, so that a campaign can be resumed. This board is measured while
its own worker trains on generated images, or on the board's samples.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedge import __version__
from fedge.characterisation.stability import MeasuredChunk, StabilityRule, StabilityVerdict, judge_stability
from fedge.client.run_claim import CLAIM_FILE, claim_left_s, explain_refusal, read_claim
from fedge.client.worker_training import (
    STRETCH_LIMIT_S,
    WorkerTraining,
    load_worker_task,
    read_file_task,
    translate_worker_errors,
)
from fedge.clock import RealClock, SimulatedClock
from fedge.costs.cost_priors import build_priors
from fedge.costs.cost_profile import WorkloadKind
from fedge.costs.cost_scaling import load_workload_sizes
from fedge.costs.layered_work import find_named_workload
from fedge.decisions.candidate_modes import mask_above_floor
from fedge.devices import catalogue
from fedge.devices.board_kinds import build_knowledge, build_surface, build_workload_kind
from fedge.devices.emulated_board import EmulatedBoard, find_top_mode
from fedge.devices.local_board import NodeSettings, open_local_board
from fedge.devices.mode_surface import ModeSurface
from fedge.devices.thermal_model import ThermalModel, build_thermal_model
from fedge.errors import BadInput, BoardError, ModeNotSet, WorkerFailed
from fedge.experiment import FleetBoard, FleetEntry, WorkloadSpec
from fedge.modes import build_grid, find_mode_index
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.powerd.powerd_client import PowerdClient, PowerdError
from fedge.protocols import Clock, Device
from fedge.seeds import make_generator
from fedge.types import DeviceSpec, Label, Measurement, Modes, PowerMode, TrainOptions, Workload
from fedge.worker import builtin_tasks
from fedge.worker.refusal import Refusal
from fedge.worker.worker_client import WorkerClient
from fedge.workloads import TASK_FILE_SUFFIX

MAX_CHUNK_STEPS = 10_000
# Limit on the steps of a chunk, for very short steps. Default: keeps a chunk near its length even at 0.1 ms per step.
COOLER_BY_C = 15.0
# A board that throttled rests until it is this much cooler than its peak. Default; more cooling takes longer.
REST_S = 10.0
MAX_REST_S = 300.0
# It rests in intervals of ``REST_S`` up to ``MAX_REST_S``. Defaults; shorter rests risk throttling again.
BLIND_REST_S = 60.0
# Rest of a board without a temperature sensor. Default.
HOT_C = 80.0
# A board that throttled below this temperature did so because of its current: it rests ``REST_S`` once. Default.

VerdictCallback = Callable[[StabilityVerdict], None]


@dataclass(frozen=True, slots=True, eq=False)
class ProfilingBench:
    """A real or emulated board under profiling: the device, its work, how it rests, and metadata for the record.

    Attributes:
        board: Kind of board.
        work: Runs the next ``count`` steps.
        idle_for: Lets the board rest for some seconds.
        temperature_c: Reads the hottest sensor in degrees Celsius; None if there is none or it was lost.
        total_power: Formula of the measured power.
        peak_mb: Returns the peak memory of the steps in MB; None if it is unknown.
        recorded: Whether it is a recorded folder, whose steps are timed and whose power was written there.
        software: Versions that the figures depend on; a campaign is resumed only if they are unchanged.
        prepare: Called before a mode is set, for work that must not be measured.
    """

    board: str
    device: Device
    workload: Workload
    work: Callable[[int], object]
    idle_for: Callable[[float], None]
    temperature_c: Callable[[], float | None]
    clock: Clock
    candidates: Modes
    knowledge: PriorKnowledge
    label: Label
    source: str
    total_power: str
    emulated: bool
    software: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[], object] = lambda: None
    peak_mb: Callable[[], float | None] = lambda: None
    recorded: bool = False

    @property
    def runs_in_real_time(self) -> bool:
        """Return False for a board in simulated time."""
        return self.recorded or not self.emulated


@dataclass(frozen=True, slots=True)
class SettledMode:
    """The measurement of one mode.

    Attributes:
        throttled: Whether the board throttled in the last attempt.
        seconds: Duration including rests and retries, as for ``joules``.
        peak_mb: Peak memory of the training in MB; None if it is unknown.
    """

    mode: PowerMode
    verdict: StabilityVerdict
    throttled: bool
    peak_c: float | None
    attempts: int
    seconds: float
    joules: float
    end_c: float | None
    peak_mb: float | None = None

    @property
    def note(self) -> str:
        """Return a note on the row for readers of the table; empty if there is none."""
        parts = [] if self.verdict.settled else [f"not settled: {self.verdict.why}"]
        if self.throttled:
            parts.append("throttled" + (", again after cooling" if self.attempts > 1 else ""))
        elif self.attempts > 1:
            parts.append("measured again after it had throttled")
        return "; ".join(parts)

    def as_measurement(self) -> Measurement:
        """Return the mode as a row for a table or a predictor."""
        verdict = self.verdict
        return Measurement(
            self.mode,
            steps=verdict.steps,
            step_s=verdict.step_s,
            power_w=verdict.power_w,
            peak_c=self.peak_c,
            throttled=self.throttled,
            time_se_log=verdict.time_se_log,
            power_se_log=verdict.power_se_log,
        )


@dataclass(frozen=True, slots=True)
class _Attempt:
    verdict: StabilityVerdict
    throttled: bool
    peak_c: float | None
    joules: float


def measure_mode(
    bench: ProfilingBench, mode: PowerMode, rule: StabilityRule, report: VerdictCallback = lambda _: None
) -> SettledMode:
    """Measure the steady time and power of a mode; the previous mode is restored even after an error.

    A board that throttles is stopped at once, rests, and is measured once more; the second attempt counts in any case.

    Raises:
        BoardError: If the board fails.
    """
    begin_s = bench.clock.now_s()
    first = _run_attempt(bench, mode, rule, report, stop_when_throttled=True)
    attempts, last, joules = 1, first, first.joules
    if first.throttled:
        joules += _cool_down(bench, first.peak_c)
        last = _run_attempt(bench, mode, rule, report, stop_when_throttled=False)
        attempts, joules = 2, joules + last.joules
    verdict = replace(last.verdict, settled=False, why="it throttled") if last.throttled else last.verdict
    seconds = round(bench.clock.now_s() - begin_s, 3)
    return SettledMode(
        mode,
        verdict=verdict,
        throttled=last.throttled,
        peak_c=last.peak_c,
        attempts=attempts,
        seconds=seconds,
        joules=round(joules, 3),
        end_c=bench.temperature_c(),
        peak_mb=bench.peak_mb(),
    )


def _run_attempt(
    bench: ProfilingBench, mode: PowerMode, rule: StabilityRule, report: VerdictCallback, *, stop_when_throttled: bool
) -> _Attempt:
    chunks: list[MeasuredChunk] = []
    peaks: list[float] = []
    spent_s = joules = 0.0
    throttled = False
    steps = 1
    bench.prepare()
    with bench.device.use_mode(mode):
        while True:
            left_s = rule.limit_s - spent_s
            measurement = bench.device.measure(bench.workload, steps, bench.work, left_s)
            chunks.append(MeasuredChunk(measurement.steps, measurement.step_s, measurement.power_w, measurement.work_s))
            spent_s, joules = spent_s + measurement.work_s, joules + measurement.work_j
            throttled = throttled or measurement.throttled
            peaks += [] if measurement.peak_c is None else [measurement.peak_c]
            verdict = judge_stability(chunks, rule)
            report(verdict)
            if verdict.settled or spent_s >= rule.limit_s or (throttled and stop_when_throttled):
                return _Attempt(verdict, throttled, max(peaks, default=None), joules)
            steps = count_chunk_steps(measurement.step_s, rule)


def count_chunk_steps(step_s: float, rule: StabilityRule) -> int:
    """Return the number of steps of ``step_s`` seconds in a chunk, from 1 to ``MAX_CHUNK_STEPS``."""
    return min(max(1, round(rule.chunk_s / step_s)), MAX_CHUNK_STEPS)


def _cool_down(bench: ProfilingBench, peak_c: float | None) -> float:
    """Let the board rest until it is cool enough, within the limit, and return the joules drawn meanwhile."""
    idle_w = bench.device.idle_w(bench.knowledge.maxn)
    if peak_c is None or bench.temperature_c() is None:
        bench.idle_for(BLIND_REST_S)
        return BLIND_REST_S * idle_w
    bench.idle_for(REST_S)
    rested_s = REST_S
    while peak_c >= HOT_C and rested_s < MAX_REST_S and (bench.temperature_c() or 0.0) > peak_c - COOLER_BY_C:
        bench.idle_for(REST_S)
        rested_s += REST_S
    return rested_s * idle_w


AMBIENT_C = 25.0


class EmulatedBenchBoard:
    """A ``fedge.protocols.Device``: an ``EmulatedBoard`` with fresh noise in every mode and one continuous temperature.

    Its clock advances by what it measures and rests.
    """

    def __init__(
        self, name: str, spec: DeviceSpec, surface: ModeSurface, thermal: ThermalModel, temperature_c: float, seed: int
    ) -> None:
        self.spec = spec
        self.temperature_c = temperature_c
        self.clock = SimulatedClock()
        self.maxn = find_top_mode(surface)
        self.surface = surface
        self._name, self._thermal, self._seed = name, thermal, seed
        self._visits: dict[PowerMode, int] = {}
        self._board = self._create_board(0, self.maxn)

    def idle_w(self, mode: PowerMode) -> float:
        return self._board.idle_w(mode)

    @contextmanager
    def use_mode(self, mode: PowerMode) -> Iterator[None]:
        if find_mode_index(self.surface.modes, mode) is None:
            raise ModeNotSet(f"{mode} is not among the emulated board's {len(self.surface.modes)} modes")
        before = self._board
        visit = self._visits.get(mode, 0)
        self._visits[mode] = visit + 1
        self._board = self._create_board(visit, mode)
        try:
            with self._board.use_mode(mode):
                yield
        finally:
            self._board = before

    def idle_for(self, seconds: float) -> None:
        """Let the board idle for ``seconds`` in its top mode."""
        self._board.temperature_c = self.temperature_c
        self._board.idle_for(seconds, self.maxn)
        self.temperature_c = self._board.temperature_c
        self.clock.sleep_s(seconds)

    def measure(
        self, workload: Workload, steps: int, work: Callable[[int], object], limit_s: float | None = None
    ) -> Measurement:
        self._board.temperature_c = self.temperature_c
        measurement = self._board.measure(workload, steps, work, limit_s)
        self.temperature_c = self._board.temperature_c
        self.clock.sleep_s(measurement.work_s)
        return measurement

    def _create_board(self, visit: int, mode: PowerMode) -> EmulatedBoard:
        rng = make_generator(self._seed, self._name, "bench", str(mode), visit)
        return EmulatedBoard(
            self.spec, surface=self.surface, thermal=self._thermal, temperature_c=self.temperature_c, rng=rng
        )


def build_emulated_bench(
    device: str,
    workload: str,
    batch_size: int | None = None,
    seed: int = 0,
    temperature_c: float | None = None,
    ambient_c: float = AMBIENT_C,
    *,
    kind: WorkloadKind = "train",
    input_shape: str | None = None,
) -> ProfilingBench:
    """Build the bench of an emulated board, whose seed gives its deviation from its kind and its noise.

    The workload is a known one, or any network that can be counted (``find_named_workload``), at its own batch size
    and input shape by default. The board starts at ``temperature_c``, by default that of the air.

    Raises:
        BadInput: The board is unknown, or the workload cannot be priced on it.
    """
    work, _ = find_named_workload(workload, batch_size=batch_size, kind=kind, input_shape=input_shape)
    boards = build_workload_kind(catalogue.find(device, "--board").name, work)
    # Named as a run's fleet and predict fit name it, so that all emulate the same board.
    board = FleetBoard(name=f"{device}-1", index=0, entry=FleetEntry(device=device))
    surface = build_surface(board, boards, seed)
    start_c = ambient_c if temperature_c is None else temperature_c
    emulated = EmulatedBenchBoard(
        board.name,
        spec=boards.spec,
        surface=surface,
        thermal=build_thermal_model(boards.spec, ambient_c),
        temperature_c=start_c,
        seed=seed,
    )
    knowledge = build_knowledge(boards, (), emulated.idle_w(emulated.maxn))
    return ProfilingBench(
        board=boards.spec.name,
        device=emulated,
        workload=work,
        work=lambda _: None,
        idle_for=emulated.idle_for,
        temperature_c=lambda: emulated.temperature_c,
        clock=emulated.clock,
        candidates=Modes(surface.modes.knobs[mask_above_floor(surface.modes)]),
        knowledge=replace(knowledge, maxn=emulated.maxn, seed=seed),
        label=boards.truth_label,
        source=f"an emulated {boards.spec.name} (time and power: {boards.truth_source})",
        total_power=boards.spec.total_power,
        emulated=True,
        software={"fedge": __version__},
    )


RESTART_STEPS = 20_000
# A training with more steps is restarted between two modes, because the worker stores loss and accuracy of every step.
ENDLESS_STEPS = 10**9
# Steps announced for every training, so that none ends within a mode.
WAIT_POLL_S = 5.0
# Seconds between two looks at a board that a run works with. Default: little beside the measurement of a mode.
LEARNING_RATE = 1e-3
# Small, so that the weights stay finite over a long campaign; the step time does not depend on it.


@contextmanager
def open_worker_bench(settings: NodeSettings, workload: Workload, seed: int) -> Iterator[ProfilingBench]:
    """Open the bench of this board, which is held during the context; ``workload`` is a built-in task or a task file.

    The bench has the name and the hash by which a run on real boards knows the task.

    Raises:
        BadInput: If the workload has no network here, or no samples.
        BoardError: If the power daemon or the worker fails.
    """
    task, source = _describe_task(workload.name, settings.data_folder)
    own = {"network": str(task["sha256"])} if "sha256" in task else {}
    workload = replace(workload, name=Path(workload.name).stem) if own else workload

    def ready() -> object:
        return load_worker_task(settings.worker_socket, task, source)

    with (
        closing(WorkerClient(settings.worker_socket, STRETCH_LIMIT_S)) as worker,
        open_local_board(settings.place) as here,
    ):
        ready()
        with translate_worker_errors():
            status = worker.status()
        software = {name: str(status[name]) for name in ("python", "torch")} | {"l4t": str(here.identity.l4t)} | own
        work = EndlessTraining(worker, ready, workload.batch_size, seed)
        with here.board.hold():
            bench = build_real_bench(
                here.board,
                workload,
                work.advance,
                here.hottest_c,
                prepare=work.prepare,
                peak_mb=work.peak_mb,
                candidates=build_grid(here.board.spec),
                seed=seed,
                software=software,
            )
            if settings.root != "/":  # power was written into a recorded folder and is not measured
                words = f"a recorded folder ({settings.root}), no board"
                bench = replace(bench, emulated=True, recorded=True, label="estimated", source=words)
            yield bench


def _describe_task(name: str, data_folder: str | None) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the task and its data for the worker: generated images, or the samples in the board's own folder."""
    own = name.endswith(TASK_FILE_SUFFIX)
    if not own:
        try:
            generated = not builtin_tasks.builtin_shape(name).sample
        except Refusal as error:
            raise BadInput("--workload", error.got, error.right) from error
        if generated:
            return {"builtin": name}, builtin_tasks.synthetic_source(name)
    if data_folder is None:
        got = f"{name}, whose samples cannot be generated"
        raise BadInput("--workload", got, "data_folder in the board's settings, as for a run")
    return read_file_task(name, Path(name)) if own else {"builtin": name}, {"folder": data_folder}


def wait_for_board(
    settings: NodeSettings,
    limit_s: float,
    note: Callable[[str], None],
    *,
    clock: Clock | None = None,
    wall_s: Callable[[], float] = time.time,
) -> float:
    """Wait until no run works with this board; return the seconds waited.

    It waits ``limit_s`` at most, 0 to refuse at once; ``note`` shows the reason once. Claims of runs count in
    ``wall_s``, Unix time.

    Raises:
        BoardError: A run works with it for longer; names the run.
    """
    pause = clock or RealClock()
    began_s, reason = pause.now_s(), _explain_use(settings, wall_s())
    if reason is not None and limit_s > 0.0:
        note(f"waiting: {reason}")
    while reason is not None:
        if pause.now_s() - began_s >= limit_s:
            raise BoardError(reason)
        pause.sleep_s(WAIT_POLL_S)
        reason = _explain_use(settings, wall_s())
    return pause.now_s() - began_s


def _explain_use(settings: NodeSettings, now_s: float) -> str | None:
    """Return which run works with the board, from its claim, or who holds its power daemon; None if nobody does."""
    claim = read_claim(settings.state_dir / CLAIM_FILE)
    left_s = claim_left_s(claim, "", now_s)
    if claim is not None and left_s > 0.0:
        return explain_refusal(settings.board, claim, left_s)
    try:
        with closing(PowerdClient(settings.power_socket)) as power:
            lease = power.get()["lease"]
    except PowerdError:  # a workstation has no daemon, and of a board the bench says what is wrong with it
        return None
    return None if lease is None else f"{settings.board} is held by {lease['name']}; wait, or stop that program"


class EndlessTraining:
    """Unlimited training steps in the worker from a new model; ``ready`` loads the task."""

    def __init__(self, worker: WorkerClient, ready: Callable[[], object], batch_size: int, seed: int) -> None:
        self._worker, self._ready, self._seed = worker, ready, seed
        self._options = TrainOptions(ENDLESS_STEPS, batch_size, LEARNING_RATE)
        self._training: WorkerTraining | None = None
        self._done = 0

    def prepare(self) -> None:
        """Begin a training if none is running or the current one is long; nothing is measured meanwhile."""
        if self._training is None or self._done > RESTART_STEPS:
            self._ready()
            self._training = WorkerTraining(self._worker, arrays={}, seed=self._seed, options=self._options)
            self._done = 0

    def peak_mb(self) -> float | None:
        """Return the peak memory of the training in MB; None if the worker reports none."""
        return None if self._training is None else self._training.peak_mb

    def advance(self, steps: int) -> None:
        """Run the next ``steps`` steps; after a failure, ``prepare`` begins a new training."""
        if self._training is None:
            self.prepare()
        assert self._training is not None
        try:
            self._training.advance(steps)
        except WorkerFailed:
            self._training = None
            raise
        self._done += steps


def build_real_bench(
    device: Device,
    workload: Workload,
    work: Callable[[int], object],
    temperature_c: Callable[[], float | None],
    *,
    prepare: Callable[[], object] = lambda: None,
    peak_mb: Callable[[], float | None] = lambda: None,
    clock: Clock | None = None,
    candidates: Modes | None = None,
    seed: int = 0,
    software: Mapping[str, str] | None = None,
) -> ProfilingBench:
    """Build the bench of a real board; the arguments are fields of ``ProfilingBench``.

    ``candidates`` are by default the modes above the usual floor; ``software`` has further versions that the figures
    depend on (torch, L4T).
    """
    chosen = candidates
    if chosen is None:
        every = build_grid(device.spec)
        chosen = Modes(every.knobs[mask_above_floor(every)])
    pause = clock or RealClock()
    priors = build_priors(
        device.spec, workload.name, catalogue.load_catalogue(), batch_size=workload.batch_size, layered=False
    )
    return ProfilingBench(
        board=device.spec.name,
        device=device,
        workload=workload,
        work=work,
        idle_for=pause.sleep_s,
        temperature_c=temperature_c,
        clock=pause,
        candidates=chosen,
        knowledge=PriorKnowledge(device.spec.maxn, tuple(prior.coefficients for prior in priors), seed=seed),
        label="measured",
        source=f"measured on a {device.spec.title}",
        total_power=getattr(device, "total_power", device.spec.total_power),
        emulated=False,
        software={"fedge": __version__, **(software or {})},
        prepare=prepare,
        peak_mb=peak_mb,
    )


def resolve_workload(name: str, batch_size: int | None) -> Workload:
    """Return a workload at ``batch_size``, by default at its own, or at that of an experiment if it has none.

    Raises:
        BadInput: If the batch size is not positive.
    """
    if batch_size is not None:
        if batch_size < 1:
            raise BadInput("--batch-size", str(batch_size), "a whole number above 0")
        return Workload(name, batch_size)
    known = load_workload_sizes().get(name)
    return Workload(name, WorkloadSpec().batch_size if known is None else known.batch_size)
