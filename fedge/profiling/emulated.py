"""An emulated board on the bench: its noise depends on seed and mode alone, so that a campaign can go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from fedge import __version__
from fedge.clock import VirtualClock
from fedge.costs.workloads import load_workloads
from fedge.devices import catalogue
from fedge.devices.emulated import EmulatedBoard, Thermal, thermal_of, top_mode
from fedge.devices.truth import Surface
from fedge.errors import BadInput, ModeNotSet, UnknownName
from fedge.experiment import Board, FleetEntry, WorkloadSpec
from fedge.fleetsim.boards import Kind, kind_of, knowledge_of, surface_of
from fedge.modes import index_of
from fedge.profiling.bench import Bench
from fedge.rounds.candidates import above_floor
from fedge.seeds import generator
from fedge.types import DeviceSpec, Measurement, Modes, PowerMode, Workload

AMBIENT_C = 25.0


class BenchBoard:
    """A ``fedge.interfaces.Device``: in every mode it is an ``EmulatedBoard`` with fresh noise and the same heat.

    Its clock moves by what it measures and rests.
    """

    def __init__(
        self, name: str, spec: DeviceSpec, surface: Surface, thermal: Thermal, temperature_c: float, seed: int
    ) -> None:
        self.spec = spec
        self.temperature_c = temperature_c
        self.clock = VirtualClock()
        self.maxn = top_mode(surface)
        self.surface = surface
        self._name, self._thermal, self._seed = name, thermal, seed
        self._visits: dict[PowerMode, int] = {}
        self._board = self._fresh(0, self.maxn)

    def idle_w(self, mode: PowerMode) -> float:
        return self._board.idle_w(mode)

    @contextmanager
    def in_mode(self, mode: PowerMode) -> Iterator[None]:
        if index_of(self.surface.modes, mode) is None:
            raise ModeNotSet(f"{mode} is not among the emulated board's {len(self.surface.modes)} modes")
        before = self._board
        visit = self._visits.get(mode, 0)
        self._visits[mode] = visit + 1
        self._board = self._fresh(visit, mode)
        try:
            with self._board.in_mode(mode):
                yield
        finally:
            self._board = before

    def rest(self, seconds: float) -> None:
        """Let the board idle in the mode it was found in."""
        self._board.temperature_c = self.temperature_c
        self._board.rest(seconds, self.maxn)
        self.temperature_c = self._board.temperature_c
        self.clock.sleep_s(seconds)

    def measure(
        self, workload: Workload, steps: int, work: Callable[[int], object], limit_s: float | None = None
    ) -> Measurement:
        self._board.temperature_c = self.temperature_c
        seen = self._board.measure(workload, steps, work, limit_s)
        self.temperature_c = self._board.temperature_c
        self.clock.sleep_s(seen.work_s)
        return seen

    def _fresh(self, visit: int, mode: PowerMode) -> EmulatedBoard:
        rng = generator(self._seed, self._name, "bench", str(mode), visit)
        return EmulatedBoard(self.spec, self.surface, self._thermal, self.temperature_c, rng)


def emulated_bench(
    device: str,
    workload: str,
    batch_size: int | None = None,
    seed: int = 0,
    temperature_c: float | None = None,
    ambient_c: float = AMBIENT_C,
) -> Bench:
    """A board of the catalogue, one of its kind by ``seed``, at ``temperature_c`` (that of the air by default).

    Raises ``BadInput`` for a board, a workload or a batch size that nobody knows.
    """
    work = _work(workload, batch_size)
    board = Board(name=f"{catalogue.find(device, '--board').name}-1", index=0, entry=FleetEntry(device=device))
    kind = _kind_of(board, work)
    surface = surface_of(board, kind, seed)
    start_c = ambient_c if temperature_c is None else temperature_c
    emulated = BenchBoard(board.name, kind.spec, surface, thermal_of(kind.spec, ambient_c), start_c, seed)
    knowledge = knowledge_of(kind, (), emulated.idle_w(emulated.maxn))
    return Bench(
        board=kind.spec.name,
        device=emulated,
        workload=work,
        work=lambda _: None,
        rest=emulated.rest,
        temperature_c=lambda: emulated.temperature_c,
        clock=emulated.clock,
        candidates=Modes(surface.modes.knobs[above_floor(surface.modes)]),
        knowledge=replace(knowledge, maxn=emulated.maxn, seed=seed),
        label=kind.truth_label,
        source=f"an emulated {kind.spec.name} (time and power: {kind.truth_source})",
        total_power=kind.spec.total_power,
        emulated=True,
        software={"fedge": __version__},
    )


def _work(workload: str, batch_size: int | None) -> Workload:
    sizes = load_workloads()
    if workload not in sizes:
        raise UnknownName("--workload", workload, tuple(sizes))
    own = sizes[workload].batch_size
    if batch_size not in (None, own):
        raise BadInput("--batch-size", str(batch_size), f"{own}, the batch size at which {workload} was measured")
    return Workload(workload, own)


def _kind_of(board: Board, work: Workload) -> Kind:
    try:
        return kind_of(board, WorkloadSpec(cost=work.name, batch_size=work.batch_size))
    except UnknownName as error:
        option = {"fleet.device": "--board", "workload.cost": "--workload"}.get(error.where, error.where)
        raise UnknownName(option, error.name, error.known) from error
