"""Measurement of one mode: chunk after chunk until it has settled, and once more after cooling if it throttled.

An emulated board under profiling draws noise that depends only on seed and mode, so that a campaign can be resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from fedge import __version__
from fedge.characterisation.stability import MeasuredChunk, StabilityRule, StabilityVerdict, judge_stability
from fedge.clock import SimulatedClock
from fedge.costs.cost_profile import WorkloadKind
from fedge.costs.layered_work import find_named_workload
from fedge.decisions.candidate_modes import mask_above_floor
from fedge.devices import catalogue
from fedge.devices.board_kinds import build_knowledge, build_surface, build_workload_kind
from fedge.devices.emulated_board import EmulatedBoard, find_top_mode
from fedge.devices.mode_surface import ModeSurface
from fedge.devices.thermal_model import ThermalModel, build_thermal_model
from fedge.errors import ModeNotSet
from fedge.experiment import FleetBoard, FleetEntry
from fedge.modes import find_mode_index
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.protocols import Clock, Device
from fedge.seeds import make_generator
from fedge.types import DeviceSpec, Label, Measurement, Modes, PowerMode, Workload

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
        verdict: Steady values and their quality.
        throttled: Whether the board throttled in the last attempt.
        peak_c: Highest temperature of the last attempt; None without a sensor.
        seconds: Duration including rests and retries, as for ``joules``.
        end_c: Temperature at the end; None without a sensor.
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
    """Build the bench of an emulated board.

    Args:
        device: A board of the catalogue.
        workload: A known workload, or any network that can be counted (``find_named_workload``).
        batch_size: Samples per step; by default the workload's own.
        seed: Seed of the board's deviation from its kind and of the noise.
        temperature_c: Initial temperature in degrees Celsius; that of the air by default.
        ambient_c: Temperature of the air in degrees Celsius.
        kind: Training or inference.
        input_shape: Shape of one sample, as ``3x224x224``.

    Raises:
        BadInput: The board is unknown, or the workload cannot be priced on it.
    """
    board = FleetBoard(name=f"{catalogue.find(device, '--board').name}-1", index=0, entry=FleetEntry(device=device))
    work, _ = find_named_workload(workload, batch_size=batch_size, kind=kind, input_shape=input_shape)
    boards = build_workload_kind(device, work)
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
