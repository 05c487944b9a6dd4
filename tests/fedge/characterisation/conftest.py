"""Made-up benches: boards that do what their test says, on a virtual clock."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from fedge.characterisation.mode_measurement import ProfilingBench
from fedge.clock import SimulatedClock
from fedge.devices.catalogue import load_catalogue
from fedge.modes import build_grid
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.types import Measurement, Modes, PowerMode, Workload

SPEC = load_catalogue()["nano"]
WORK = Workload("net", 16)


@dataclass
class FakeBoard:
    """Seconds per step and watts by mode; ``before`` may raise, ``change`` may alter what is measured."""

    clock: SimulatedClock = field(default_factory=SimulatedClock)
    spec = SPEC
    mode: PowerMode = SPEC.maxn
    temperature_c: float | None = 40.0
    before: Callable[[PowerMode], None] = lambda mode: None
    change: Callable[[Measurement], Measurement] = lambda seen: seen
    visits: list[PowerMode] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    rested_s: list[float] = field(default_factory=list)
    done: list[int] = field(default_factory=list)

    def idle_w(self, mode: PowerMode) -> float:
        return 1.5

    @contextmanager
    def use_mode(self, mode: PowerMode) -> Iterator[None]:
        self.visits.append(mode)
        self.before(mode)
        found, self.mode = self.mode, mode
        try:
            yield
        finally:
            self.mode = found

    def measure(self, workload, steps, work, limit_s=None) -> Measurement:
        work(steps)
        self.chunks.append(steps)
        step_s = 300.0 / self.mode.gpu_mhz
        seen = self.change(Measurement(self.mode, steps, step_s, 5.0, self.temperature_c))
        self.clock.sleep_s(seen.work_s)
        return seen

    def rest(self, seconds: float) -> None:
        self.rested_s.append(seconds)
        self.clock.sleep_s(seconds)
        if self.temperature_c is not None:
            self.temperature_c -= 3.0


def bench_of(board: FakeBoard, candidates: Modes | None = None) -> ProfilingBench:
    return ProfilingBench(
        board="nano",
        device=board,
        workload=WORK,
        work=lambda _: None,
        idle_for=board.rest,
        temperature_c=lambda: board.temperature_c,
        clock=board.clock,
        candidates=build_grid(SPEC) if candidates is None else candidates,
        knowledge=PriorKnowledge(SPEC.maxn),
        label="measured",
        source="a board that is made up",
        total_power="POM_5V_IN",
        emulated=False,
        software={"fedge": "0"},
    )


@pytest.fixture
def fake() -> Callable[..., tuple[FakeBoard, ProfilingBench]]:
    """Makes a board and the bench it stands on."""

    def make(candidates: Modes | None = None, **behaviour) -> tuple[FakeBoard, ProfilingBench]:
        board = FakeBoard(**behaviour)
        return board, bench_of(board, candidates)

    return make
