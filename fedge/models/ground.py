"""What a model can be learnt from: a measured table, or an emulated board of the catalogue that is profiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedge.costs.workloads import load_workloads
from fedge.devices.emulated import EmulatedBoard, thermal_of
from fedge.errors import BadInput, UnknownName
from fedge.evaluation.knowledge import Background, background_of
from fedge.evaluation.profiling import TableBoard
from fedge.experiment import Board, FleetEntry, WorkloadSpec
from fedge.explorers.bounded import STEPS
from fedge.fleetsim.boards import Kind, kind_of, surface_of
from fedge.modes import grid
from fedge.profiles.label import label_of
from fedge.seeds import generator
from fedge.types import DeviceSpec, Figure, Label, Measurement, Modes, PowerMode, ProfileTable, Workload

SAME_CLOCK = 0.02
"""A table's clock may differ so much from the catalogue's and still be the same step; steps lie 3 % apart at least."""


@dataclass(frozen=True, slots=True, eq=False)
class Ground:
    """Every mode that can be profiled, how one is measured, and what is known beforehand.

    ``truth`` is the measured table, or the emulated board's own surface; beside ``measure``, only figures of error see
    its seconds and watts. ``candidates`` are the modes to choose among later.
    """

    truth: ProfileTable
    measure: Callable[[PowerMode], Measurement]
    background: Background
    candidates: Modes
    candidates_from: str
    label: Label
    source: str
    idle: Figure | None = None

    @property
    def sha256(self) -> str | None:
        """The table's; an emulated board has none."""
        return self.truth.sha256 or None


def ground_of_table(
    table: ProfileTable,
    spec: DeviceSpec | None,
    name: str,
    references: Sequence[ProfileTable] = (),
    without: Sequence[str] = (),
) -> Ground:
    """The measured modes of ``table``, which is called ``name``; ``spec`` is the board behind it, where it is known."""
    own = table if spec is None else replace(table, device=spec.name)
    candidates, origin = candidates_of(own, spec)
    background = background_of(own, references, without)
    return Ground(own, TableBoard(own).measure, background, candidates, origin, label_of(Path(table.path)), name)


def candidates_of(table: ProfileTable, spec: DeviceSpec | None) -> tuple[Modes, str]:
    """Every mode of the board, and where they come from; the table's own where it has clocks that the board lacks.

    A clock of the table takes the place of the catalogue's that is nearly the same: the table has seen the board.
    """
    if spec is None:
        return table.modes, "the table's modes"
    known = (spec.cores, spec.cpu_mhz, spec.gpu_mhz, spec.mem_mhz)
    axes = [_merged(values, np.unique(seen).tolist()) for values, seen in zip(known, table.modes.knobs.T, strict=True)]
    if not all(axes):
        return table.modes, f"the table's modes: it has clocks that the catalogue's {spec.name} lacks"
    cores, cpu_mhz, gpu_mhz, mem_mhz = axes
    modes = grid(spec, [round(count) for count in cores], cpu_mhz, gpu_mhz, mem_mhz)
    return modes, f"every mode of the catalogue's {spec.name}"


def _merged(known: Sequence[float], seen: Sequence[float]) -> list[float]:
    """The known values, those seen in the place of the nearest; empty when one seen has no near one."""
    merged = {value: float(value) for value in known}
    for value in seen:
        near = min(known, key=lambda one: abs(one - value))
        if abs(value / near - 1.0) > SAME_CLOCK:
            return []
        merged[near] = value
    return sorted(merged.values())


def ground_of_board(
    device: str,
    workload: str,
    seed: int,
    references: Sequence[ProfileTable] = (),
    without: Sequence[str] = (),
) -> Ground:
    """An emulated board of the catalogue (or of the user's own file), one of its kind by ``seed``.

    Raises ``BadInput`` for a board or a workload that is not known.
    """
    sizes = load_workloads()
    if workload not in sizes:
        raise UnknownName("--workload", workload, tuple(sizes))
    work = Workload(workload, sizes[workload].batch_size)
    board = Board(name=f"{device}-1", index=0, entry=FleetEntry(device=device))
    kind = _kind_of(board, work)
    surface = surface_of(board, kind, seed)
    noise = generator(seed, board.name, "profiling")
    ambient_c = board.entry.ambient_c
    emulated = EmulatedBoard(kind.spec, surface, thermal_of(kind.spec, ambient_c), ambient_c, noise)
    truth = ProfileTable(
        kind.spec.name, workload, work.batch_size, surface.modes, surface.step_s, surface.power_w, sha256="", path=""
    )
    idle_w, known = emulated.idle_w(kind.spec.maxn), kind.spec.idle_w
    return Ground(
        truth,
        lambda mode: _measured(emulated, work, mode),
        background_of(truth, references, without),
        surface.modes,
        f"every mode of the catalogue's {kind.spec.name}",
        kind.truth_label,
        f"an emulated {kind.spec.name} (time and power: {kind.truth_source})",
        Figure(idle_w, "estimated", f"the emulated board's own, about its kind's {known.value:g} W: {known.source}"),
    )


def _kind_of(board: Board, work: Workload) -> Kind:
    try:
        return kind_of(board, WorkloadSpec(cost=work.name, batch_size=work.batch_size))
    except UnknownName as error:
        option = {"fleet.device": "--device", "workload.cost": "--workload"}.get(error.where, error.where)
        raise UnknownName(option, error.name, error.known) from error


def _measured(board: EmulatedBoard, work: Workload, mode: PowerMode) -> Measurement:
    """``STEPS`` minibatches in ``mode``; raises ``BadInput`` for a mode that the board does not have."""
    try:
        with board.in_mode(mode):
            return board.measure(work, STEPS, lambda _: None)
    except LookupError as error:
        raise BadInput("--explorer", f"the mode {mode}", "one of the candidates that it was given") from error
