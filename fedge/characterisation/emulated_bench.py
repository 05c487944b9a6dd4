"""An emulated board under profiling: its noise depends only on seed and mode, so that a campaign can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from fedge import __version__
from fedge.characterisation.mode_measurement import ProfilingBench
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
from fedge.protocols import SimulatedClock
from fedge.seeds import make_generator
from fedge.types import DeviceSpec, Measurement, Modes, PowerMode, Workload

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
        BadInput: If the board is unknown, or the workload cannot be priced on it.
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
